"""What of the tables has not been run, and how long that would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmarks.paper.report import Cell
from benchmarks.paper.setting import Setting

Pace = Mapping[tuple[str, str], float]  # seconds of one core for a client and a round, by data set and rule

ABOUT = "Not run yet; `equipoise table NAME` does it. Hours of one core for one seed, at the pace of what was run."


def remaining(tables: Mapping[str, list[Cell]], names: Iterable[str]) -> str:
    """What is missing of the named ones of these tables, as a table; nothing if nothing is missing."""
    pace = paces(cell for found in tables.values() for cell in found)
    lines = []
    for name in names:
        absent = [cell.setting for cell in tables[name] if not cell.runs]
        if absent:
            lines.append(f"| `{name}` | {len(tables[name])} | {len(absent)} | {_time(absent, pace)} |")
    if not lines:
        return ""
    head = ["| table | cells | missing | hours |", "|---|---|---|---|"]
    return "\n".join(["## What is missing", "", ABOUT, "", *head, *lines])


def paces(found: Iterable[Cell]) -> Pace:
    """How long a client takes for a round, by data set and rule, and with any rule ("")."""
    seconds, rounds = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for setting, runs in {cell.setting: cell.runs for cell in found}.items():
        for rule in (setting.rule, ""):
            seconds[setting.data, rule] += sum(one["seconds"] for one in runs)
            rounds[setting.data, rule] += sum(one["rounds"] for one in runs) * setting.n
    return {key: seconds[key] / count for key, count in rounds.items() if count}


def _time(settings: Iterable[Setting], pace: Pace) -> str:
    each = [
        (pace.get((one.data, one.rule)) or pace.get((one.data, "")) or float("nan")) * one.rounds * one.n
        for one in settings
    ]
    hours = sum(each) / 3600
    return f"{hours:.1f}" if hours >= 0.05 else "less than 0.1" if hours >= 0 else "not known"
