"""The phases of a round of the paper's CNN with each rule, and growth with the number of clients.

Run from the root of the repository: ``python -m benchmarks.round_phases``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equipoise as eq
from benchmarks import workloads
from benchmarks.racing import use_threads
from benchmarks.round_contenders import Ours
from benchmarks.round_costs import MIB, resident_peak
from benchmarks.round_race import WARM_UP, phases
from benchmarks.round_workloads import TASKS, Setting
from benchmarks.tables import framed, number

RULES: dict[str, Any] = {**workloads.RULES, "LEARN": eq.LEARN()}


def phase_table(rules: Sequence[str], rounds: int) -> str:
    """Milliseconds of each phase of workload A, for every rule."""
    setting = Setting(TASKS["A"])
    found = {rule: phases_of(Ours(setting, RULES[rule]), rounds) for rule in rules}
    names = list(dict.fromkeys(phase for parts in found.values() for phase in parts))
    body = [
        [f"`{rule}`", *(number(parts.get(name)) for name in names), share_of_training(parts)]
        for rule, parts in found.items()
    ]
    return framed(["rule", *names, "training"], body)


def phases_of(ours: Ours, rounds: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        ours.round()
    return phases(ours, rounds)


def share_of_training(parts: dict[str, float]) -> str:
    return f"{100 * parts['train'] / sum(parts.values()):.0f} %"


def growth_table(sizes: Sequence[int], rounds: int, features: int, classes: int) -> str:
    """Rounds per second of logistic regression with Balance, and the peak memory so far."""
    build = partial(eq.models.logistic_regression, features, classes)
    body = []
    for n in sizes:
        task = replace(TASKS["C"], n=n, build=build, shape=(features,), classes=classes)
        setting = Setting(replace(task, examples=40))
        ms = sum(phases_of(Ours(setting, eq.Balance()), rounds).values())
        cells = [f"{1e3 / ms:.1f}", f"{1e3 * ms / n:.1f}", f"{resident_peak() / MIB:,.0f}"]
        body.append([f"{n:,}", f"{len(setting.initial):,}", *cells])
    columns = ["clients", "parameters", "rounds a second", "us per client and round"]
    return framed([*columns, "peak memory, MiB"], body)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.round_phases", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--rules", nargs="*", default=list(RULES), choices=list(RULES), metavar="RULE")
    add("--sizes", nargs="*", type=int, default=[1_000, 4_000, 10_000], help="numbers of clients")
    add("--features", type=int, default=64)
    add("--classes", type=int, default=10)
    add("--rounds", type=int, default=15)
    add("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    use_threads(options.threads)
    print(phase_table(options.rules, options.rounds), flush=True)
    print()
    print(growth_table(options.sizes, options.rounds, options.features, options.classes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
