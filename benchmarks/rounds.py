"""Race whole simulated rounds against what an expert would write in plain PyTorch.

Run from the root of the repository: ``python -m benchmarks.rounds --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import round_tables
from benchmarks.batched import RULES
from benchmarks.peers import versions
from benchmarks.racing import use_threads
from benchmarks.results import save
from benchmarks.round_bars import report_bars
from benchmarks.round_contenders import contenders
from benchmarks.round_costs import measure_alone, measure_costs
from benchmarks.round_limits import measure_limit
from benchmarks.round_race import phases, race
from benchmarks.round_results import Cell, RoundResults, resumed
from benchmarks.round_workloads import TASKS, Setting, Task
from equipoise.kernels import native


def run_cell(task: Task, rule: str, turns: int, rounds: int) -> Cell:
    runners = contenders(Setting(task), rule)
    found = race(runners, turns, rounds)
    # Some more rounds, but not within the turns, where reading them would take time.
    return Cell(task.name, rule, found, phases(runners["ours"], max(5, rounds)))


def run_task(task: Task, options: argparse.Namespace, results: RoundResults) -> None:
    for rule in options.rules:
        cell = results.find(task.name, rule)
        if cell is None:
            cell = run_cell(task, rule, options.turns, options.rounds or task.rounds)
            results.cells.append(cell)
            save(results, options.json)
        print(round_tables.lines(cell), flush=True)
    if not options.skip_costs and task.name not in results.limits:
        results.limits[task.name] = measure_limit(task, options.turns)
        save(results, options.json)
    if not options.skip_costs and task.name not in results.alone:
        alone = measure_alone(task)
        if alone is not None:
            results.alone[task.name] = alone
            save(results, options.json)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "turns": options.turns,
        "rounds": options.rounds,
        "native": native.available(),
        "torch": torch.__version__,
        "byzfl": versions()["byzfl"],
    }


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.rounds", description=(__doc__ or "").split("\n")[0]
    )
    add = found.add_argument
    add("--workloads", nargs="+", choices=TASKS, default=list(TASKS), metavar="NAME")
    rules = ["Balance", "Median", "Krum"]
    add("--rules", nargs="+", choices=RULES, default=rules, metavar="RULE", help=", ".join(RULES))
    add("--turns", type=int, default=9, help="turns of each contender (default: 9)")
    add("--rounds", type=int, help="rounds of a turn (default: 1 to 30, by workload)")
    add("--skip-costs", action="store_true", help="race only: no memory, momentum or overhead")
    add("--json", type=Path, metavar="FILE", help="write all that is measured, after every rule")
    add("--resume", action="store_true", help="take over what FILE already has")
    add("--markdown", action="store_true", help="also print the tables of the README")
    add("--bars", action="store_true", help="print all bars, and exit with 1 if one is missed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.resume and options.json is None:
        parser().error("--resume needs --json FILE")
    use_threads(1)
    results = RoundResults(settings_of(options))
    if options.resume and options.json.exists():
        results = resumed(options.json, results.settings)
    print(", ".join(f"{name} {value}" for name, value in results.settings.items()))
    print("CPU milliseconds of a round, one thread; ours / it: below 1, ours is faster")
    print(round_tables.HEADING)
    for name in options.workloads:
        run_task(TASKS[name], options, results)
    if not options.skip_costs and not results.costs:
        results.costs = measure_costs(options.turns)
        save(results, options.json)
    if options.markdown:
        print("\n" + round_tables.markdown(results))
    return int(options.bars and not report_bars(results))


if __name__ == "__main__":
    sys.exit(main())
