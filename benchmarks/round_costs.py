"""Costs of the simulator alone: memory, page faults, momentum and Python."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

import equipoise as eq
from benchmarks.memory import MIB, resident_peak
from benchmarks.racing import use_threads
from benchmarks.round_contenders import Ours
from benchmarks.round_race import WARM_UP, page_faults, race
from benchmarks.round_results import Alone
from benchmarks.round_workloads import TASKS, TOTAL, Setting, Task
from benchmarks.workloads import RULES

# 20 clients with 2,000 parameters: what is left of such a round is mostly Python.
SMALL = Task(
    name="small",
    title="logistic 199 to 10",
    build=partial(eq.models.logistic_regression, 199, 10),
    shape=(199,),
    classes=10,
    n=20,
    degree=10,
    rounds=50,
)
ONE_CLIENT = ("FedAvg", "Median", "Balance")  # with 10 messages of 5,000 parameters


# Memory and page faults.


def measure_alone(task: Task, rounds: int = 5) -> Alone | None:
    """Run the simulator in a new process; None where the system does not tell its memory."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    # The memory of another contender would be reused here, and so hide a peak and page faults.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(alone, task, rounds).result()


def alone(task: Task, rounds: int) -> Alone:
    use_threads(1)
    # A first run on a small graph loads code, which is not what is measured.
    play(Setting(replace(task, n=5, degree=4, examples=task.batch)), 1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident_peak()
    setting = Setting(task)
    faults = play(setting, rounds)
    return Alone(
        peak_mib=(resident_peak() - before) / MIB,
        models_mib=task.n * setting.initial.nbytes / MIB,
        data_mib=(setting.x.nbytes + setting.y.nbytes) / MIB,
        faults=faults,
    )


def play(setting: Setting, rounds: int) -> float:
    """Page faults per round, after the third."""
    ours = Ours(setting, RULES["Balance"])
    for _ in range(WARM_UP):
        ours.round()
    before = page_faults()
    for _ in range(rounds):
        ours.round()
    return (page_faults() - before) / rounds


# Times.


def measure_costs(turns: int, task: Task = TASKS["D"]) -> dict[str, float]:
    """By name: a ratio for momentum, milliseconds for the others."""
    costs = {"momentum": momentum_ratio(task, turns), "overhead": overhead(SMALL, turns)}
    return costs | {f"one client, {rule}": one_client(rule, turns) for rule in ONE_CLIENT}


def momentum_ratio(task: Task, turns: int) -> float:
    """CPU time of a round with momentum 0.9, relative to one without."""
    setting = Setting(task)
    contenders = {name: Ours(setting, RULES["Balance"], name) for name in (0.0, 0.9)}
    times = race(contenders, turns, task.rounds)
    return times[0.9].best / times[0.0].best


def overhead(task: Task, turns: int) -> float:
    """Milliseconds of a round of BALANCE outside training and the bare rule, the best turn."""
    setting = Setting(task)
    ours = Ours(setting, RULES["Balance"])
    untrained_seconds(ours, WARM_UP)
    differences = [
        untrained_seconds(ours, task.rounds) - rule_seconds(ours, setting, task.rounds)
        for _ in range(turns)
    ]
    return 1e3 * min(differences)


def untrained_seconds(ours: Ours, rounds: int) -> float:
    """The median time of a round, without that of training."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        record = ours.round()
        times.append(time.perf_counter() - start - record.seconds["train"])
    return statistics.median(times)


def rule_seconds(ours: Ours, setting: Setting, repeats: int) -> float:
    """The median time of BALANCE on inboxes that are ready; a new one each, for they remember."""
    own = ours.simulator.models
    sent = own.clone()
    sent[setting.task.benign :].normal_(std=setting.task.std)
    inboxes = [setting.topology.deliver(sent) for _ in range(repeats)]
    inputs = {"t": 0, "total": TOTAL}
    return median_seconds(lambda: RULES["Balance"](own, inboxes.pop(), **inputs), repeats)


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def one_client(rule: str, turns: int) -> float:
    """CPU milliseconds of a call for one client, the best turn of 200 calls."""
    own = torch.ones(5_000)
    received = own + 0.01 * torch.randn(10, 5_000, generator=torch.Generator().manual_seed(0))
    call = partial(RULES[rule], own, received, t=0, total=10)
    return 1e3 * min(cpu_seconds(call, 200) for _ in range(turns))


def cpu_seconds(call: Callable[[], object], repeats: int) -> float:
    """The mean; one call is too short for the clock of CPU time."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats
