"""A history as a tidy table: one row for every round, client and metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from equipoise.optional import import_optional

if TYPE_CHECKING:
    from equipoise.simulation.history import History

COLUMNS = ("round", "client", "malicious", "metric", "value")


def rows(history: History) -> Iterator[tuple[Any, ...]]:
    """The rows of the table, without names."""
    liars = set(history.malicious)
    for one in history:
        for metric, values in one.clients.items():
            yield from ((one.t, i, i in liars, metric, value) for i, value in enumerate(values))
        yield from ((one.t, i, i in liars, "diverged", 1.0) for i in one.diverged)
        yield from ((one.t, None, None, name, value) for name, value in one.values.items())
        yield from ((one.t, None, None, f"{phase}_seconds", value) for phase, value in one.seconds.items())


def frame(history: History) -> Any:
    """The table as a ``pandas.DataFrame``."""
    pandas: Any = import_optional("pandas", "frames")
    table = pandas.DataFrame(list(rows(history)), columns=list(COLUMNS))
    return table.astype({"round": "int64", "client": "Int64", "malicious": "boolean", "value": "float64"})


def csv_text(history: History) -> str:
    """The table as CSV; what does not apply is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(history))
    return text.getvalue()
