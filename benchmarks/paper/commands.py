"""The commands: one run, a table, a report, a comparison, the theorem."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.paper import figures, theorem_1
from benchmarks.paper.archive import Archive
from benchmarks.paper.compare import comparison, pairs
from benchmarks.paper.missing_cells import remaining
from benchmarks.paper.registry import ATTACKS, GRAPHS, REGULAR, RULES, check_name, paper_label
from benchmarks.paper.report import Cell, as_csv, cells, markdown, overview, section
from benchmarks.paper.run import SAVED, is_over, run, simulator, summary, tail
from benchmarks.paper.setting import PARTITIONS, Setting
from benchmarks.paper.tables import TABLES, Table
from benchmarks.paper.tasks import TASKS, load
from equipoise import Simulator, sweep, sweeps


def show_names() -> int:
    """Print the names that the other commands take, with the paper's labels."""
    for title, names in (("rules", RULES), ("attacks", ATTACKS)):
        print(f"{title} (and the paper's label):")
        for name in names:
            print(f"  {name:<24} {paper_label(name)}".rstrip())
        print()
    print(f"graphs: {', '.join((*REGULAR, *GRAPHS))}\n")
    print(f"partitions: {', '.join(PARTITIONS)}\n")
    print(f"data sets: {', '.join(TASKS)}\n")
    print("tables and figures, of the paper and beyond it:")
    for name, table in TABLES.items():
        count = len(table.rows) * len(table.columns)
        print(f"  {name:<15} {table.caption} ({count} cells)")
    return 0


def run_one(setting: Setting, seed: int, root: str, results: Path, last: int = 0) -> int:
    """Train one setting, print a summary, and save the result and a table of all rounds.

    Models are evaluated after each of the ``last`` rounds, too.
    """
    archive = Archive(results)
    checkpoint = results / f"{setting.slug}.{seed}.unfinished"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    # Report missing data and damaged results before hours of training.
    load(setting.data, root, seed)
    archive.runs(setting)
    found, history = run(setting, seed, root, checkpoint=checkpoint, last=last, progress=True)
    print(f"{setting} --seed {seed}\n{history}")
    for metric in history.metrics():
        print(f"Max.{metric}, mean of the last 5 % of rounds: {tail(found, metric):.4f}")
        rounds_and_errors = zip(*history.worst(metric), strict=True)
        errors = [worst for t, worst in rounds_and_errors if t >= setting.rounds - last]
        if errors:
            print(f"Max.{metric} in the last {len(errors)} rounds: {_spread(errors)}")
    archive.add([(setting, found)])
    checkpoint.unlink(missing_ok=True)
    rounds = checkpoint.with_suffix(".csv")
    history.to_csv(rounds)
    print(f"Result: {archive.path(setting)}\nAll rounds: {rounds}")
    return 0


def _spread(values: Sequence[float]) -> str:
    """Format quantiles; NaN counts as the largest value."""
    ordered = torch.tensor(values, dtype=torch.float64, device="cpu").sort().values
    places = {"minimum": 0.0, "median": 0.5, "90 %": 0.9, "maximum": 1.0}
    quantiles = {name: ordered[int(share * (len(ordered) - 1))] for name, share in places.items()}
    return ", ".join(f"{name} {value:.4f}" for name, value in quantiles.items())


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
    """Run the missing cells of a table; returns 1 if a run failed."""
    archive = Archive(results)
    table = TABLES[name]
    for row in rows:
        check_name("--rows", row, table.rows)
    for column in columns:
        check_name("--columns", column, table.columns)
    settings = [
        setting
        for row, column, setting in table.cells(**_rounds(rounds))
        if (not rows or row in rows) and (not columns or column in columns)
    ]
    jobs = missing(archive, settings, seeds)
    total = len(settings) * len(seeds)
    print(f"{name}: {len(settings)} cells, {total - len(jobs)} of {total} runs exist.", flush=True)
    failures = _run_all(jobs, root, archive, processes) if jobs else ()
    for cell in failures:
        reason = cell.failure.strip().splitlines()[-1]
        print(f"{cell.choice['setting']} --seed {cell.labels['seed']}: {reason}", file=sys.stderr)
    print(markdown(table, cells(table, archive, **_rounds(rounds))))
    return 1 if failures else 0


def missing(
    archive: Archive, settings: Iterable[Setting], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the settings and seeds that have no results, seed by seed."""
    known = {one: {run["seed"] for run in archive.runs(one)} for one in settings}
    return [
        {"setting": one, "seed": seed} for seed in seeds for one in known if seed not in known[one]
    ]


def _run_all(
    jobs: Sequence[dict[str, Any]], root: str, archive: Archive, processes: int
) -> Sequence[sweeps.CellResult]:
    """Run the jobs as a sweep, and add what has finished to the archive, also after Ctrl-C."""
    # Report missing data once, instead of once per job.
    load(jobs[0]["setting"].data, root, jobs[0]["seed"])
    folder = archive.folder / "sweep"
    options: dict[str, Any] = {"measure": summary, "on_round": is_over, "save_every": SAVED}
    try:
        found = sweep(_make, jobs, root=[root], workers=processes, folder=folder, **options)
    except KeyboardInterrupt:
        _archive(jobs, sweeps.read(folder), archive)
        raise
    _archive(jobs, found, archive)
    return found.failures


def _archive(jobs: Sequence[dict[str, Any]], results: sweeps.Results, archive: Archive) -> None:
    """Add the finished cells, which are in the order of the jobs."""
    pairs = zip(jobs, results, strict=True)
    archive.add((job["setting"], dict(cell.measured)) for job, cell in pairs if cell.history)


def _make(setting: Setting, seed: int, root: str) -> Simulator:
    return simulator(setting, seed, root)


def report(names: Sequence[str], results: Path, rounds: int, output: Path | None) -> int:
    """Print tables; with an output folder, write them as Markdown and CSV, with pictures."""
    for name in names:
        check_name("NAME", name, TABLES)
    archive = Archive(results)
    known = {name: cells(table, archive, **_rounds(rounds)) for name, table in TABLES.items()}
    shown = {
        name: found
        for name, found in known.items()
        if name in names or (not names and any(cell.runs for cell in found))
    }
    if not shown:
        others = archive.settings()
        there = f"{len(others)} of other settings, such as {others[0]}" if others else "none"
        raise ValueError(
            f"expected results of a table in {results}, found {there}; "
            "python -m benchmarks.paper table NAME creates them"
        )
    sections = [section(name, TABLES[name], found) for name, found in shown.items()]
    parts = [overview(shown), *sections]
    parts.append(remaining(known, names or known))
    text = "\n\n".join(part for part in parts if part)
    print(text)
    if output is not None:
        (output / "report.md").write_text(f"# All tables of the reproduction\n\n{text}\n")
        for name, found in shown.items():
            # Not {name}.csv: the folder may also hold results, which have such names.
            (output / f"table-{name}.csv").write_text(as_csv(found))
            _picture(TABLES[name], found, output / f"table-{name}.svg")
    return 0


def compare(first: Path, second: Path) -> int:
    """Compare the runs that both folders have; returns 1 if any differ."""
    for folder in (first, second):
        if not folder.is_dir():
            raise ValueError(f"expected a folder of results, found none at {folder}")
    found = list(pairs(Archive(first), Archive(second)))
    if not found:
        raise ValueError(
            f"expected results of the same settings in {first} and {second}, found none"
        )
    print(comparison(found))
    return 1 if any(pair.differences for pair in found) else 0


def check_theorem(seed: int, rounds: int, output: Path) -> int:
    """Check the bound of Theorem 1 under each attack; returns 1 if it is exceeded."""
    found = theorem_1.check(seed, rounds)
    print(theorem_1.table(found))
    for path in theorem_1.save(found, output):
        print(f"Saved: {path}")
    return 0 if all(one["holds"] for one in found.values()) else 1


def _picture(table: Table, found: list[Cell], path: Path) -> None:
    if not any(cell.ours for cell in found):
        return
    try:
        figures.draw(table, found, path)
    except ImportError as error:
        print(f"No picture of {table.caption}: {error}", file=sys.stderr)


def _rounds(rounds: int) -> dict[str, int]:
    return {"rounds": rounds} if rounds else {}
