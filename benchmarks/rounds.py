"""Race whole simulated rounds against what an expert would write in plain PyTorch.

Run from the root of the repository: ``python -m benchmarks.rounds``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.racing import use_threads
from benchmarks.round_contenders import contenders
from benchmarks.round_race import Turns, phases, race
from benchmarks.round_workloads import TASKS, Setting, Task

RULES = ("Balance", "Median", "Krum", "FedAvg", "TrimmedMean")


def run_cell(task: Task, rule: str, options: argparse.Namespace) -> None:
    runners = contenders(Setting(task), rule)
    found = race(runners, options.turns, options.rounds or task.rounds)
    seconds = phases(runners["ours"], options.rounds or task.rounds)
    for name, turns in found.items():
        print(line(task.name, rule, name, turns, found["ours"]), flush=True)
    parts = ", ".join(f"{phase} {ms:.2f}" for phase, ms in seconds.items())
    print(f"{'':13}phases of ours, ms: {parts}", flush=True)


def line(task: str, rule: str, name: str, turns: Turns, ours: Turns) -> str:
    times = f"{turns.best:9.2f}{turns.median:9.2f}{100 * turns.spread:7.0f} %{min(turns.wall):9.2f}"
    ratios = f"{ours.best / turns.best:10.2f}{ours.median / turns.median:9.2f}"
    return f"{task:6}{rule:12}{name:14}{times}{ratios}{min(turns.faults):10,.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES[:3])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(arguments)
    use_threads(1)
    print(
        f"{'task':6}{'rule':12}{'contender':14}{'best':>9}{'median':>9}{'spread':>9}{'wall':>9}"
        f"{'ours/best':>10}{'median':>9}{'faults':>10}"
    )
    for name in options.workloads:
        for rule in options.rules:
            run_cell(TASKS[name], rule, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
