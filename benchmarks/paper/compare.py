"""Whether two folders of results say the same: what was run again, and what it should be like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.paper.results import Store
from benchmarks.paper.run import Run, tail
from benchmarks.paper.setting import Setting

FREE = frozenset({"seconds", "aggregate_seconds", "version", "commit", "torch"})
"""What may change although the same was computed: time, and which program it was."""


@dataclass(frozen=True)
class Pair:
    """The runs that two folders have of one setting and seed."""

    setting: Setting
    first: Run
    second: Run

    @property
    def differences(self) -> list[str]:
        """The names of what is not the same to the digit."""
        names = dict.fromkeys([*self.first, *self.second])
        return [name for name in names if name not in FREE and self.first.get(name) != self.second.get(name)]


def pairs(first: Store, second: Store) -> Iterator[Pair]:
    """All settings and seeds that both have results of."""
    for setting in first.settings():
        others = {one["seed"]: one for one in second.runs(setting)}
        for run in first.runs(setting):
            if run["seed"] in others:
                yield Pair(setting, run, others[run["seed"]])


def comparison(found: list[Pair]) -> str:
    """How many are the same, and those that are not: the error that each is judged by, here and there."""
    different = [pair for pair in found if pair.differences]
    same = len(found) - len(different)
    lines = [f"Runs in both: {len(found)}. The same in every figure: {same}. Others: {len(different)}."]
    if different:
        lines += ["", "| run | first | second | different |", "|---|---|---|---|"]
    for pair in different:
        errors = (f"{tail(run, pair.setting.task.metric):.4f}" for run in (pair.first, pair.second))
        command = f"`{pair.setting} --seed {pair.first['seed']}`"
        lines.append(f"| {command} | {' | '.join(errors)} | {', '.join(pair.differences)} |")
    return "\n".join(lines)
