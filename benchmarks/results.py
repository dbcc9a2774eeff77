"""The measurements, and the file that stores them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.racing import Row
from benchmarks.scale import ScaleRow
from equipoise._utils.atomic_write import atomic_write


@dataclass
class Results:
    """All that was measured, and under which settings."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    scale: list[ScaleRow] = field(default_factory=list)
    limits: dict[str, float] | None = None  # operations per ns of the machine; see `limits`

    def find(self, workload: str, rule: str) -> Row | None:
        return next(
            (row for row in self.rows if (row.workload, row.rule) == (workload, rule)), None
        )

    def find_scale(self, workload: str, rule: str) -> ScaleRow | None:
        return next(
            (row for row in self.scale if (row.workload, row.rule) == (workload, rule)), None
        )

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(row.workload for row in self.rows))

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(row.rule for row in self.rows))


def save(results: Any, path: Path | None) -> None:
    """Write a dataclass of results so far, so that a run that is stopped can be resumed."""
    if path is not None:
        with atomic_write(path, "results") as file:
            file.write((json.dumps(asdict(results), indent=1) + "\n").encode())


def load(path: Path) -> Results:
    stored = json.loads(path.read_text())
    rows, scale = (
        [Row(**row) for row in stored["rows"]],
        [ScaleRow(**row) for row in stored["scale"]],
    )
    return Results(stored["settings"], rows, scale, stored.get("limits"))


def resumed(path: Path, settings: dict[str, Any]) -> Results:
    """The measurements of an earlier run with the same settings."""
    results = load(path)
    if results.settings != settings:
        raise ValueError(
            f"--resume needs the settings of {path}, {results.settings}, found {settings}"
        )
    return results
