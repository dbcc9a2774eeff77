"""What the commands do: one run, a table, a report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks.paper import figures
from benchmarks.paper import theorem_1 as theory
from benchmarks.paper import workers as pool
from benchmarks.paper.compare import comparison, pairs
from benchmarks.paper.registry import ATTACKS, GRAPHS, REGULAR, RULES
from benchmarks.paper.remaining import remaining
from benchmarks.paper.report import Cell, as_csv, cells, markdown, overview, section
from benchmarks.paper.results import Store
from benchmarks.paper.run import run, tail
from benchmarks.paper.setting import Setting
from benchmarks.paper.tables import TABLES, Table
from benchmarks.paper.tasks import TASKS, load
from equipoise._utils.progress import Progress
from equipoise.simulation import Simulator


def show_names() -> int:
    """Print all names that other commands take."""
    sections: dict[str, Iterable[str]] = {
        "rules": RULES,
        "attacks": ATTACKS,
        "graphs": (*REGULAR, *GRAPHS),
        "data sets": TASKS,
    }
    for title, names in sections.items():
        print(f"{title}: {', '.join(names)}\n")
    print("tables and figures, of the paper and of what it leaves open:")
    for name, table in TABLES.items():
        print(f"  {name:<15} {table.caption} ({len(table.rows) * len(table.columns)} cells)")
    return 0


def run_one(setting: Setting, seed: int, root: str, results: Path, last: int = 0) -> int:
    """Train one setting, say what came out, and keep it: the result, and all rounds as a table.

    Models are tested after each of the ``last`` rounds too.
    """
    store = Store(results)
    checkpoint = store.checkpoint(setting, seed)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    load(setting.data, root, seed)  # a missing file is better reported before anything else
    with Progress(setting.rounds, "round") as bar:

        def step(simulator: Simulator) -> None:
            bar.skip(simulator.t - 1 - bar.done)  # what a checkpoint had
            bar.advance(simulator.history.status)

        found, history = run(setting, seed, root, step=step, checkpoint=checkpoint, last=last)
    print(f"{setting} --seed {seed}\n{history}")
    for metric in history.metrics():
        print(f"Max.{metric}, mean of the last 5 % of rounds: {tail(found, metric):.4f}")
        tested = [worst for t, worst in zip(*history.worst(metric), strict=True) if t >= setting.rounds - last]
        if tested:
            span = min(last, setting.rounds)
            print(f"Max.{metric} in the last {span} rounds, tested {len(tested)} times: {_spread(tested)}")
    store.add(setting, found)
    checkpoint.unlink(missing_ok=True)
    rounds = store.path(setting).with_suffix(f".{seed}.csv")
    history.to_csv(rounds)
    print(f"Result: {store.path(setting)}\nAll rounds: {rounds}")
    return 0


def _spread(values: Sequence[float]) -> str:
    """Where values lie; those that are no numbers are the largest."""
    ordered = torch.tensor(values, dtype=torch.float64, device="cpu").sort().values
    places = {"least": 0.0, "median": 0.5, "90 %": 0.9, "largest": 1.0}
    return ", ".join(f"{name} {ordered[int(share * (len(ordered) - 1))]:.4f}" for name, share in places.items())


def run_table(
    name: str,
    seeds: Sequence[int],
    rows: Sequence[str],
    columns: Sequence[str],
    rounds: int,
    processes: int,
    root: str,
    results: Path,
) -> int:
    """Run what is missing of a table; returns 1 if something went wrong."""
    table, store = TABLES[name], Store(results)
    _check_names("--rows", rows, table.rows)
    _check_names("--columns", columns, table.columns)
    settings = [
        setting
        for row, column, setting in table.cells(**_rounds(rounds))
        if (not rows or row in rows) and (not columns or column in columns)
    ]
    jobs = pool.missing(store, settings, seeds)
    print(f"{name}: {len(settings)} cells, {len(settings) * len(seeds) - len(jobs)} of the runs are there.", flush=True)
    problems = pool.run_all(jobs, root, store, processes)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(markdown(table, cells(table, store, **_rounds(rounds))))
    return 1 if problems else 0


def report(names: Sequence[str], results: Path, rounds: int, output: Path | None) -> int:
    """Print tables; with an output folder, write them there, as Markdown and CSV, with pictures."""
    store = Store(results)
    known = {name: cells(table, store, **_rounds(rounds)) for name, table in TABLES.items()}
    shown = {
        name: found
        for name, found in known.items()
        if name in names or (not names and any(cell.runs for cell in found))
    }
    if not shown:
        others = store.settings()
        there = f"{len(others)} of other settings, such as {others[0]}" if others else "none"
        raise ValueError(f"expected results of a table in {results}, found {there}; equipoise table NAME makes them")
    parts = [overview(shown), *(section(name, TABLES[name], found) for name, found in shown.items())]
    parts.append(remaining(known, names or known))
    text = "\n\n".join(part for part in parts if part)
    print(text)
    if output is not None:
        (output / "report.md").write_text(f"# Measured, and in the paper\n\n{text}\n")
        for name, found in shown.items():
            (output / f"{name}.csv").write_text(as_csv(found))
            _picture(TABLES[name], found, output / f"{name}.svg")
    return 0


def compare(first: Path, second: Path) -> int:
    """Say whether two folders have the same results, where both have some; returns 1 if not."""
    for folder in (first, second):
        if not folder.is_dir():
            raise ValueError(f"expected a folder of results, found none at {folder}")
    found = list(pairs(Store(first), Store(second)))
    if not found:
        raise ValueError(f"expected results of the same settings in {first} and {second}, found none")
    print(comparison(found))
    return 1 if any(pair.differences for pair in found) else 0


def check_theorem(seed: int, rounds: int, output: Path) -> int:
    """Compare the bound of Theorem 1 with what BALANCE does under every attack; returns 1 if the bound is exceeded."""
    found = theory.check(seed, rounds)
    print(theory.table(found))
    for path in theory.save(found, output):
        print(f"Saved: {path}")
    return 0 if all(one["holds"] for one in found["attacks"].values()) else 1


def _picture(table: Table, found: list[Cell], path: Path) -> None:
    if not any(cell.ours for cell in found):
        return
    try:
        figures.draw(table, found, path)
    except ImportError as error:
        print(f"No picture of {table.caption}: {error}", file=sys.stderr)


def _rounds(rounds: int) -> dict[str, int]:
    return {"rounds": rounds} if rounds else {}


def _check_names(option: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in (valid := list(known)):
            raise ValueError(f"{option} must be of {', '.join(valid)}, found {name!r}")
