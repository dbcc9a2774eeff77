"""Time: candidates take turns, and the minimum of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from benchmarks.naive import Opponent
from benchmarks.peers import opponents
from benchmarks.workloads import Round, Workload
from equipoise.kernels import native

Run = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """The measurements of one rule on one workload.

    ``ms[threads][contestant]`` are times for all clients; ``clients`` is on how many of them the
    opponents were measured, ``failures`` what these, or the rule itself, raised.
    """

    workload: str
    rule: str
    ms: dict[str, dict[str, float]]
    clients: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    memory_mib: float | None = None

    def time(self, candidate: str, threads: int | str = 1) -> float | None:
        """Milliseconds; of ours, which is the native library where there is one."""
        times = self.ms.get(str(threads), {})
        if candidate == "ours":
            candidate = "native" if "native" in times else "torch"
        return times.get(candidate)

    def ratio(self, candidate: str, to: str, threads: int | str = 1) -> float | None:
        """How many times longer one takes than another, None if either was not measured."""
        return quotient(self.time(candidate, threads), self.time(to, threads))

    def speed_up(self, candidate: str, threads: int | str) -> float | None:
        """How many times faster than with one thread."""
        return quotient(self.time(candidate), self.time(candidate, threads))


def quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


@cache
def blas() -> Any:
    """A limit on the threads of numpy, where threadpoolctl is installed."""
    with suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()
    return None


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
    if blas() is not None:
        blas().limit(limits=count, user_api="blas")


def seconds_of(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def race(
    contestants: dict[str, Run], repeats: int, threads: Sequence[int] = (1,), before: Run = int
) -> dict[str, dict[str, float]]:
    """Milliseconds of the best turn of each, by number of threads.

    They take turns, so that a noisy moment does not hit one of them alone, and everybody has
    equally many; every other time in reverse, because whoever follows its like finds code and data
    in the cache. For the same reason ``before`` is run before every turn, and not measured.
    """
    best: dict[str, dict[str, float]] = {str(count): {} for count in threads}
    order = [(name, count) for name in contestants for count in threads]
    for repeat in range(repeats):
        for name, count in order[:: -1 if repeat % 2 else 1]:
            use_threads(count)
            before()
            ms = 1e3 * seconds_of(contestants[name])
            best[str(count)][name] = min(ms, best[str(count)].get(name, ms))
    return best


def affordable(work: Round, opponent: Opponent, seconds: float) -> int:
    """How many clients a loop gets through in this time, at least one; also its warm-up."""
    one = seconds_of(partial(work.one_by_one, opponent, 1))
    return min(work.n, max(1, int(seconds / one)))


def contestants(rule: str, work: Round) -> dict[str, Run]:
    """A copy of the models, and the library: native (also without ``out``) and in torch."""
    runs: dict[str, Run] = {"copy": work.copy}
    if native.available():
        runs["native"] = partial(work.ours, rule, out=work.out)
        runs["fresh"] = partial(work.ours, rule)
    runs["torch"] = partial(work.in_torch, rule, out=work.out)
    return runs


def measure_time(
    workload: Workload,
    work: Round,
    rule: str,
    repeats: int,
    naive_seconds: float,
    threads: Sequence[int] = (1,),
) -> Row:
    """Race all implementations of a rule after a warm-up; opponents on a sample of the clients."""
    use_threads(threads[0])
    runs = contestants(rule, work)
    try:
        for warm_up in runs.values():
            warm_up()
    except ValueError as error:  # such as too many subsets to search
        nothing: dict[str, dict[str, float]] = {str(count): {} for count in threads}
        return Row(workload.name, rule, nothing, failures={"equipoise": str(error)})
    clients: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, opponent in opponents(rule, work).items():
        try:
            clients[name] = affordable(work, opponent, naive_seconds)
        except (RuntimeError, ValueError, MemoryError) as error:
            failures[name] = str(error)
        else:
            runs[name] = partial(work.one_by_one, opponent, clients[name])
    times = race(runs, repeats, threads, before=work.copy)
    ms = {
        count: {name: best * work.n / clients.get(name, work.n) for name, best in found.items()}
        for count, found in times.items()
    }
    return Row(workload.name, rule, ms, clients, failures)
