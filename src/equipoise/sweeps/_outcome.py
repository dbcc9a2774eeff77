"""The outcome of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.simulation import History


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished cell has a history, a failed one a traceback, and one that did not run neither.

    Args:
        history: the rounds.
        measured: what the function ``measure`` of the sweep returned.
        failure: the traceback, as a text.
        busy: another process is running the cell.
        warnings: category and text of the warnings that the cell gave.
    """

    history: History | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    busy: bool = False
    warnings: tuple[tuple[type[Warning], str], ...] = ()
