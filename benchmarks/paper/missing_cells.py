"""The cells of the tables that have not been run, and an estimate of the time they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmarks.paper.report import Cell
from benchmarks.paper.setting import Setting

Pace = Mapping[tuple[str, str], float]  # core seconds per client and round, by data set and rule

ABOUT = (
    "Not run yet; `python -m benchmarks.paper table NAME` runs them. Hours on one core for one "
    "seed, estimated from the runs that exist."
)


def remaining(tables: Mapping[str, list[Cell]], names: Iterable[str]) -> str:
    """Format the missing cells of the named tables; empty if none is missing."""
    pace = paces(cell for found in tables.values() for cell in found)
    lines = []
    for name in names:
        absent = [cell.setting for cell in tables[name] if not cell.runs]
        if absent:
            hours = _hours(absent, pace)
            lines.append(f"| `{name}` | {len(tables[name])} | {len(absent)} | {hours} |")
    if not lines:
        return ""
    head = ["| table | cells | missing | hours |", "|---|---|---|---|"]
    return "\n".join(["## Missing cells", "", ABOUT, "", *head, *lines])


def paces(found: Iterable[Cell]) -> Pace:
    """Return the seconds per client and round, by data set and rule; "" stands for any rule."""
    seconds = Counter[tuple[str, str]]()
    rounds = Counter[tuple[str, str]]()
    # A setting may be a cell of several tables: count its runs once.
    for setting, runs in {cell.setting: cell.runs for cell in found}.items():
        for rule in (setting.rule, ""):
            seconds[setting.data, rule] += sum(one["seconds"] for one in runs)
            rounds[setting.data, rule] += sum(one["trained"] for one in runs) * setting.n
    return {key: seconds[key] / count for key, count in rounds.items() if count}


def _hours(settings: Iterable[Setting], pace: Pace) -> str:
    hours = 0.0
    for one in settings:
        known = pace.get((one.data, one.rule)) or pace.get((one.data, "")) or float("nan")
        hours += known * one.rounds * one.n / 3600
    if hours >= 0.05:
        return f"{hours:.1f}"
    return "less than 0.1" if hours >= 0 else "not known"
