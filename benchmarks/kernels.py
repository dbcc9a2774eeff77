"""Time and peak memory of each rule, compared with a copy, plain torch, byzfl and Flower.

Run from the root of the repository: ``python -m benchmarks.kernels --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import tables
from benchmarks.goals import report_goals
from benchmarks.limits import measured_limits
from benchmarks.memory import measure_memory
from benchmarks.peers import versions
from benchmarks.racing import measure_time
from benchmarks.results import Results, resumed, save
from benchmarks.scale import SCALE, SCALE_RULES, ScaleRace
from benchmarks.workloads import FURTHER_RULES, RULES, WORKLOADS, Round, Workload, workload_named
from equipoise.kernels import native


def run_workload(workload: Workload, options: argparse.Namespace, results: Results) -> None:
    print(tables.heading(workload), flush=True)
    work = None
    for rule in options.rules:
        row = results.find(workload.name, rule)
        if row is None:
            work = work or Round(workload)
            row = measure_time(
                workload, work, rule, options.repeats, options.naive_seconds, options.threads
            )
            if not options.skip_memory and "equipoise" not in row.failures:
                row = replace(row, memory_mib=measure_memory(workload, rule, max(options.threads)))
            results.rows.append(row)
            save(results, options.json)
        print(tables.lines(row, workload.n), flush=True)


def run_scale(large: Workload, options: argparse.Namespace, results: Results) -> None:
    print(
        f"\nscale: {large}, ns per edge and parameter, one thread\n{tables.SCALE_HEADING}",
        flush=True,
    )
    race = None
    for rule in (rule for rule in SCALE_RULES if rule in options.rules):
        row = results.find_scale(large.name, rule)
        if row is None:
            race = race or ScaleRace(large)
            row = race.measure(rule, options.repeats, memory=not options.skip_memory)
            results.scale.append(row)
            save(results, options.json)
        print(tables.scale_line(row), flush=True)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "threads": options.threads,
        "repeats": options.repeats,
        "naive_seconds": options.naive_seconds,
        "memory": not options.skip_memory,
        "native": native.available(),
        "torch": torch.__version__,
        **versions(),
    }


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=(__doc__ or "").split("\n")[0]
    )
    add = found.add_argument
    everything = [*WORKLOADS.values(), None]
    add(
        "--workloads",
        nargs="+",
        type=workload_named,
        default=everything,
        help="1 to 5, scale, or such as 30x10x5000",
    )
    add(
        "--rules",
        nargs="+",
        choices=[*RULES, *FURTHER_RULES],
        default=list(RULES),
        metavar="RULE",
        help=", ".join([*RULES, *FURTHER_RULES]),
    )
    add(
        "--repeats",
        type=int,
        default=5,
        help="turns of everybody, of which the best counts (default: 5)",
    )
    add(
        "--threads",
        nargs="+",
        type=int,
        default=[1],
        help="numbers of threads, compared in one race (default: 1)",
    )
    add(
        "--naive-seconds",
        type=float,
        default=1.0,
        help="of a turn of naive or a peer (default: 1, or one client)",
    )
    add("--skip-memory", action="store_true", help="measure times only")
    add("--json", type=Path, metavar="FILE", help="write all that is measured, after every row")
    add("--resume", action="store_true", help="take over what FILE already has")
    add("--markdown", action="store_true", help="also print the tables of the README")
    add("--goals", action="store_true", help="exit with 1 if a goal is missed, and say which")
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser().parse_args(arguments)
    if options.goals and 1 not in options.threads:
        parser().error(
            f"--goals need one thread among --threads, found {' '.join(map(str, options.threads))}"
        )
    if options.resume and options.json is None:
        parser().error("--resume needs --json FILE")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = settings_of(options)
    results = (
        resumed(options.json, settings)
        if options.resume and options.json.exists()
        else Results(settings)
    )
    results.limits = results.limits or measured_limits()
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    for workload in options.workloads:
        if workload is None:
            for large in SCALE:
                run_scale(large, options, results)
        else:
            run_workload(workload, options, results)
    print(tables.notes(results))
    if options.markdown:
        print("\n" + tables.markdown(results))
    return int(options.goals and not report_goals(results))


if __name__ == "__main__":
    sys.exit(main())
