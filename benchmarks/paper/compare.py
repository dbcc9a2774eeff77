"""Compare two folders of results, such as the committed ones and a repetition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.paper.archive import Archive
from benchmarks.paper.run import Run, tail
from benchmarks.paper.setting import Setting

FREE = frozenset({"seconds", "aggregate_seconds", "version", "commit", "torch"})
"""Fields that may differ between equal computations: times, and the versions of the software."""


@dataclass(frozen=True)
class Pair:
    """The runs of one setting and seed in two folders."""

    setting: Setting
    first: Run
    second: Run

    @property
    def differences(self) -> list[str]:
        """The names of the fields that are not equal to the last digit."""
        names = [name for name in dict.fromkeys([*self.first, *self.second]) if name not in FREE]
        return [name for name in names if self.first.get(name) != self.second.get(name)]


def pairs(first: Archive, second: Archive) -> Iterator[Pair]:
    """Iterate over the settings and seeds that have results in both folders."""
    for setting in first.settings():
        others = {one["seed"]: one for one in second.runs(setting)}
        for run in first.runs(setting):
            if run["seed"] in others:
                yield Pair(setting, run, others[run["seed"]])


def comparison(found: list[Pair]) -> str:
    """Count the equal runs, and list the others with their errors in both folders."""
    different = [pair for pair in found if pair.differences]
    lines = [
        f"Runs in both folders: {len(found)}. Equal in every figure: {len(found) - len(different)}."
        f" Different: {len(different)}."
    ]
    if different:
        lines += ["", "| run | first | second | different fields |", "|---|---|---|---|"]
    for pair in different:
        metric = pair.setting.task.metric
        errors = (f"{tail(run, metric):.4f}" for run in (pair.first, pair.second))
        command = f"`{pair.setting} --seed {pair.first['seed']}`"
        lines.append(f"| {command} | {' | '.join(errors)} | {', '.join(pair.differences)} |")
    return "\n".join(lines)
