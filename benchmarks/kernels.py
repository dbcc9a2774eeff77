"""Time and peak memory of every rule, against plain torch, byzfl and a copy of the models; see README.md.

Run from the root of the repository: ``python -m benchmarks.kernels --help``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from benchmarks import naive

RULES: dict[str, eq.Aggregator] = {
    "FedAvg": eq.FedAvg(),
    "Krum": eq.Krum(),
    "TrimmedMean": eq.TrimmedMean(),
    "Median": eq.Median(),
    "FLTrust": eq.FLTrust(),
    "UBAR": eq.UBAR(),
    "SCClip": eq.SCClip(),
    "Balance": eq.Balance(),
    "BalanceMedian": eq.BalanceMedian(),
}

SPREAD = 1e-2  # of the models around their mean, relative: late in training clients nearly agree
PATIENCE = 10.0  # seconds after which a contestant gets no more turns
MIB = 1 << 20


# What is computed: a round of a graph of clients.


@dataclass(frozen=True)
class Workload:
    """``n`` clients that hear ``degree`` others each; ``n = 1`` is the call for one client."""

    name: str
    n: int
    degree: int
    d: int

    def __str__(self) -> str:
        heard = f"{'client' if self.n == 1 else 'clients'}, {self.degree} neighbours each"
        return f"{self.n:,} {heard}, {self.d:,} parameters"

    @property
    def tolerated(self) -> int:
        """Of ten neighbours two are expected to be malicious."""
        return max(1, self.degree // 5)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("1", 20, 10, 139_960),
        Workload("2", 50, 25, 1_000_000),
        Workload("3", 1_000, 10, 100_000),
        Workload("4", 100, 99, 1_000_000),
        Workload("5", 1, 10, 11_000_000),
    )
}
SCALING = (Workload("1000", 1_000, 10, 20_000), Workload("4000", 4_000, 10, 20_000))
SCALING_RULES = ("Median", "Balance")


def first_parameter(models: Tensor, *_: Tensor) -> Tensor:
    """Losses for UBAR that cost nothing, so that what is measured is UBAR."""
    return models[:, 0]


class Round:
    """The models of a workload, and the ways to aggregate them."""

    def __init__(self, workload: Workload) -> None:
        self.n, degree = workload.n, workload.degree
        rows = self.n if self.n > 1 else degree + 1  # one client is the first of a complete graph
        source = torch.Generator().manual_seed(0)
        self.models = torch.randn(rows, workload.d, generator=source).mul_(SPREAD)
        self.models += torch.randn(workload.d, generator=source)
        self.topology = eq.Topology.complete(rows) if degree == rows - 1 else eq.Topology.regular(rows, degree, seed=0)
        self.inputs: dict[str, Any] = dict(t=1, total=10, tolerated=workload.tolerated, loss_of=first_parameter)

    def ours(self, rule: str) -> eq.Aggregated:
        """All clients in one call; a new inbox each time, for it remembers norms."""
        if self.n == 1:
            return RULES[rule](self.models[0], self.models[1:], **self.inputs)
        return RULES[rule](self.models, self.topology.deliver(self.models), **self.inputs)

    def one_by_one(self, aggregate: naive.Aggregate, clients: int) -> Tensor:
        """So many of the clients, spread over the graph, in a loop."""
        if self.n == 1:
            return aggregate(self.models[0], self.models[1:])
        receivers = range(0, self.n, self.n // clients)[:clients]
        return naive.each_client(aggregate, self.models, self.topology.senders, receivers)


# Whom the library is compared with.


@cache
def byzfl_aggregators() -> ModuleType | None:
    """``byzfl.aggregators``, or None where byzfl is not installed.

    ``import byzfl`` also imports its training framework and with it torchvision, which rules have no use for and which
    does not load beside every build of torch; so the package is entered without running its ``__init__``.
    """
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        return None
    if "byzfl" not in sys.modules:
        package = ModuleType("byzfl")
        package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators")


def byzfl_rule(rule: str, tolerated: int) -> naive.Aggregate | None:
    """The rule of byzfl that is nearest to ours, if there is one."""
    found = byzfl_aggregators()
    names = {"FedAvg": "Average", "Krum": "Krum", "TrimmedMean": "TrMean", "Median": "Median"}
    if found is None or rule not in names:
        return None
    needs_count = rule in ("Krum", "TrimmedMean")
    aggregator = getattr(found, names[rule])(*([tolerated] if needs_count else []))
    return lambda own, received: aggregator(received)


def opponents(rule: str, work: Round) -> dict[str, naive.Aggregate]:
    """By name, the aggregates of one client to compare a rule with."""
    found: dict[str, naive.Aggregate] = {"naive": partial(naive.RULES[rule], **work.inputs)}
    theirs = byzfl_rule(rule, work.inputs["tolerated"])
    return found if theirs is None else found | {"byzfl": theirs}


# Time.


@dataclass(frozen=True)
class Row:
    """What was measured of one rule on one workload.

    ``ms`` are the times of copy, ours, naive and byzfl for all clients; ``clients`` is on how many of them the latter
    two were measured, ``failures`` what they raised.
    """

    workload: str
    rule: str
    ms: dict[str, float]
    clients: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    memory_mib: float | None = None

    def ratio(self, opponent: str) -> float | None:
        """How many times longer an opponent takes."""
        return self.ms[opponent] / self.ms["ours"] if opponent in self.ms else None


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def race(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Milliseconds of the best of some repetitions, in turns, so that a noisy moment does not hit one of them alone."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            if sum(seconds[name]) < PATIENCE:
                seconds[name].append(seconds_of(run))
    return {name: 1e3 * min(times) for name, times in seconds.items()}


def affordable(work: Round, aggregate: naive.Aggregate, seconds: float) -> int:
    """How many clients a loop gets through in this time, at least one; also its warm-up."""
    one = seconds_of(partial(work.one_by_one, aggregate, 1))
    return min(work.n, max(1, int(seconds / one)))


def measure_time(workload: Workload, work: Round, rule: str, repeats: int, naive_seconds: float) -> Row:
    target = torch.empty_like(work.models)
    runs: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(work.models),
        "ours": lambda: work.ours(rule),
    }
    for warm_up in runs.values():
        warm_up()
    clients, failures = {}, {}
    for name, aggregate in opponents(rule, work).items():
        try:
            clients[name] = affordable(work, aggregate, naive_seconds)
        except (RuntimeError, ValueError) as error:
            failures[name] = str(error)
        else:
            runs[name] = partial(work.one_by_one, aggregate, clients[name])
    ms = {name: best * work.n / clients.get(name, work.n) for name, best in race(runs, repeats).items()}
    return Row(workload.name, rule, ms, clients, failures)


def measure_scaling(rule: str, repeats: int) -> dict[str, float]:
    """Milliseconds of a rule by number of clients, which hear as many others as before."""
    rounds = {workload.name: Round(workload) for workload in SCALING}
    runs: dict[str, Callable[[], object]] = {name: partial(work.ours, rule) for name, work in rounds.items()}
    for warm_up in runs.values():
        warm_up()
    return race(runs, repeats)


# Memory, in a process of its own: a peak never falls, and freed memory that is used again would hide it.


def measure_memory(workload: Workload, rule: str, threads: int) -> float | None:
    """MiB of the peak beyond input and output, None where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(extra_mib, workload, rule, threads).result()


def extra_mib(workload: Workload, rule: str, threads: int) -> float:
    """The peak of resident memory during one call, less what was resident before and less the output."""
    torch.set_num_threads(threads)
    Round(Workload("warm-up", 6, 3, 10_000)).ours(rule)  # loads code and starts threads
    work = Round(workload)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident_peak()
    out = work.ours(rule)
    output = sum(part.nbytes for part in (out.model, out.weights) if part is not None)
    return max(0.0, (resident_peak() - before - output) / MIB)  # a small output fits into what was resident before


def resident_peak() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


# Goals, for one thread.

MOST_MIB = 256
LEAST_RATIO = 0.95  # nothing slower than naive, but for noise
RATIOS = {
    ("1", "Median"): 10,
    ("1", "TrimmedMean"): 10,
    ("1", "Balance"): 5,
    ("2", "Median"): 6,
    ("2", "TrimmedMean"): 6,
    ("2", "Balance"): 12,
    ("4", "Median"): 100,
    ("4", "TrimmedMean"): 100,
}
SCALING_RANGE = (3.2, 5.0)  # for four times the clients


@dataclass
class Results:
    """All that was measured, and under which settings."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    scaling: dict[str, dict[str, float]] = field(default_factory=dict)

    def find(self, workload: str, rule: str) -> Row | None:
        return next((row for row in self.rows if (row.workload, row.rule) == (workload, rule)), None)


@dataclass(frozen=True)
class Goal:
    """A value that should be in a range; None was not measured."""

    name: str
    value: float | None
    low: float = -math.inf
    high: float = math.inf

    @property
    def missed(self) -> bool:
        return self.value is not None and not self.low <= self.value <= self.high

    def __str__(self) -> str:
        wanted = f">= {self.low:g}" if self.high == math.inf else f"<= {self.high:g}"
        if math.isfinite(self.low) and math.isfinite(self.high):
            wanted = f"{self.low:g} to {self.high:g}"
        return f"{self.name}: wanted {wanted}, found {'nothing' if self.value is None else f'{self.value:.3g}'}"


def goals(results: Results) -> Iterator[Goal]:
    for workload in WORKLOADS:
        for rule in RULES:
            row = results.find(workload, rule)
            least = RATIOS.get((workload, rule), LEAST_RATIO)
            ratio, memory = (row.ratio("naive"), row.memory_mib) if row else (None, None)
            yield Goal(f"workload {workload}, {rule}, naive/ours", ratio, low=least)
            yield Goal(f"workload {workload}, {rule}, MiB", memory, high=MOST_MIB)
    for rule in SCALING_RULES:
        growth = growth_of(results.scaling[rule]) if rule in results.scaling else None
        yield Goal(f"scaling, {rule}, time for 4 times the clients", growth, *SCALING_RANGE)


def growth_of(ms: dict[str, float]) -> float:
    small, large = (ms[workload.name] for workload in SCALING)
    return large / small


def report_goals(results: Results) -> bool:
    """Print what is missed; whether all is well."""
    checked = list(goals(results))
    missed = [goal for goal in checked if goal.missed]
    unknown = sum(goal.value is None for goal in checked)
    print(f"\ngoals: {len(checked) - len(missed) - unknown} met, {len(missed)} missed, {unknown} not measured")
    for goal in missed:
        print(f"  missed: {goal}")
    return not missed


# Output.


def heading(workload: Workload) -> str:
    columns = f"{'rule':14}{'ms':>10}{'x copy':>9}{'naive/ours':>12}{'byzfl/ours':>12}{'MiB':>8}"
    return f"\nworkload {workload.name}: {workload}\n{columns}"


def line(row: Row, n: int) -> str:
    ratios = [f"{cell(row, name, n):>12}" for name in ("naive", "byzfl")]
    memory = "-" if row.memory_mib is None else f"{row.memory_mib:.0f}"
    ours = row.ms["ours"]
    return f"{row.rule:14}{ours:10.1f}{ours / row.ms['copy']:9.1f}{''.join(ratios)}{memory:>8}"


def cell(row: Row, opponent: str, n: int) -> str:
    """A ratio; with a star where it is scaled up from some of the clients."""
    ratio = row.ratio(opponent)
    if ratio is None:
        return ("fails" if opponent in row.failures else "-") + " "
    return f"{ratio:.2f}{'*' if row.clients[opponent] < n else ' '}"


def notes(results: Results) -> str:
    lines = ["", "* measured on some of the clients, scaled to all; see `clients` in the output of --json"]
    if results.settings["byzfl"] is None:
        lines.append("byzfl is not installed, so nothing is compared with it: pip install byzfl")
    if results.settings["memory"] and any(row.memory_mib is None for row in results.rows):
        lines.append("peak memory is measured on Linux only")
    for row in results.rows:
        lines += [f"{row.rule} of {who} fails on workload {row.workload}: {why}" for who, why in row.failures.items()]
    return "\n".join(lines)


def save(results: Results, path: Path | None) -> None:
    """Write what there is so far, so that a run that is stopped can be resumed."""
    if path is not None:
        path.write_text(json.dumps(asdict(results), indent=1) + "\n")


def load(path: Path, settings: dict[str, Any]) -> Results:
    stored = json.loads(path.read_text())
    if stored["settings"] != settings:
        raise ValueError(f"--resume needs the settings of {path}, {stored['settings']}, found {settings}")
    return Results(settings, [Row(**row) for row in stored["rows"]], stored["scaling"])


# The run.


def run_workload(workload: Workload, options: argparse.Namespace, results: Results) -> None:
    print(heading(workload), flush=True)
    work = None
    for rule in options.rules:
        row = results.find(workload.name, rule)
        if row is None:
            work = work or Round(workload)
            row = measure_time(workload, work, rule, options.repeats, options.naive_seconds)
            memory = None if options.skip_memory else measure_memory(workload, rule, options.threads)
            row = Row(**(asdict(row) | {"memory_mib": memory}))
            results.rows.append(row)
            save(results, options.json)
        print(line(row, workload.n), flush=True)


def run_scaling(options: argparse.Namespace, results: Results) -> None:
    small, large = SCALING
    print(f"\nscaling: {small}; then {large.n:,} clients\n{'rule':14}{small.n:>7} ms{large.n:>7} ms{'ratio':>8}")
    for rule in (rule for rule in SCALING_RULES if rule in options.rules):
        if rule not in results.scaling:
            results.scaling[rule] = measure_scaling(rule, options.repeats)
            save(results, options.json)
        ms = results.scaling[rule]
        print(f"{rule:14}{ms[small.name]:10.1f}{ms[large.name]:10.1f}{growth_of(ms):8.2f}", flush=True)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "threads": options.threads,
        "repeats": options.repeats,
        "naive_seconds": options.naive_seconds,
        "memory": not options.skip_memory,
        "torch": torch.__version__,
        "byzfl": None if byzfl_aggregators() is None else version("byzfl"),
    }


def workload_named(text: str) -> Workload | None:
    """One of the five, None for the scaling, or any other as ``NxDEGREExD``."""
    if text == "scaling":
        return None
    if text in WORKLOADS:
        return WORKLOADS[text]
    sizes = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if sizes is None:
        known = ", ".join(WORKLOADS)
        raise argparse.ArgumentTypeError(
            f"expected {known}, scaling or clients x neighbours x parameters, found {text}"
        )
    return Workload(text, *(int(size) for size in sizes.groups()))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    everything = [*WORKLOADS.values(), None]
    add(
        "--workloads", nargs="+", type=workload_named, default=everything, help="1 to 5, scaling, or such as 30x10x5000"
    )
    add("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE", help=", ".join(RULES))
    add("--repeats", type=int, default=3, help="repetitions, of which the best counts (default: 3)")
    add("--threads", type=int, default=1, help="threads of torch (default: 1)")
    add(
        "--naive-seconds", type=float, default=1.0, help="of a repetition of naive or byzfl (default: 1, or one client)"
    )
    add("--skip-memory", action="store_true", help="measure times only")
    add("--json", type=Path, metavar="FILE", help="write all that is measured, after every row")
    add("--resume", action="store_true", help="take over what FILE already has")
    add("--goals", action="store_true", help="exit with 1 if a goal is missed, and say which")
    options = parser.parse_args(arguments)
    if options.goals and options.threads != 1:
        parser.error(f"--goals are for one thread, found --threads {options.threads}")
    if options.resume and options.json is None:
        parser.error("--resume needs --json FILE")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    settings = settings_of(options)
    results = load(options.json, settings) if options.resume and options.json.exists() else Results(settings)
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    for workload in options.workloads:
        if workload is None:
            run_scaling(options, results)
        else:
            run_workload(workload, options, results)
    print(notes(results))
    return int(options.goals and not report_goals(results))


if __name__ == "__main__":
    sys.exit(main())
