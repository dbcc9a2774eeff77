"""The measurements of rounds, and the file that stores them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.round_limits import Limit
from benchmarks.round_race import Turns


@dataclass
class Cell:
    """The measurements of one rule on one workload; phases are milliseconds of ours."""

    workload: str
    rule: str
    contenders: dict[str, Turns]
    phases: dict[str, float] = field(default_factory=dict)

    def ratio(self, names: Iterable[str]) -> float | None:
        """The best turn of ours relative to that of the fastest of these contenders."""
        known = [self.contenders[name].best for name in names if name in self.contenders]
        return self.contenders["ours"].best / min(known) if known else None

    @property
    def others(self) -> list[str]:
        return [name for name in self.contenders if name != "ours"]


@dataclass(frozen=True)
class Alone:
    """The simulator with BALANCE in a process of its own: MiB, and page faults per round.

    ``peak_mib`` includes the examples, of which the caller holds ``data_mib``, and all models,
    which take ``models_mib`` once.
    """

    peak_mib: float
    models_mib: float
    data_mib: float
    faults: float

    @property
    def multiple(self) -> float:
        return self.peak_mib / (self.models_mib + self.data_mib)


@dataclass
class RoundResults:
    """All that was measured, and under which settings; costs are named in `round_costs`."""

    settings: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    alone: dict[str, Alone] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)

    def find(self, workload: str, rule: str) -> Cell | None:
        return next((c for c in self.cells if (c.workload, c.rule) == (workload, rule)), None)

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(cell.workload for cell in self.cells))

    @property
    def contenders(self) -> list[str]:
        """In the order of the first workloads; those that only others have come last."""
        return list(dict.fromkeys(name for cell in self.cells for name in cell.contenders))


def load(path: Path) -> RoundResults:
    stored = json.loads(path.read_text())
    cells = [loaded_cell(**cell) for cell in stored["cells"]]
    alone = {name: Alone(**found) for name, found in stored["alone"].items()}
    limits = {name: Limit(**found) for name, found in stored.get("limits", {}).items()}
    return RoundResults(stored["settings"], cells, alone, stored["costs"], limits)


def loaded_cell(contenders: dict[str, Any], **rest: Any) -> Cell:
    return Cell(contenders={name: Turns(**turns) for name, turns in contenders.items()}, **rest)


def resumed(path: Path, settings: dict[str, Any]) -> RoundResults:
    """The measurements of an earlier run with the same settings."""
    results = load(path)
    if results.settings != settings:
        raise ValueError(
            f"--resume needs the settings of {path}, {results.settings}, found {settings}"
        )
    return results
