"""Records of rounds as a long table: one row for every round, client and metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Iterator
from typing import Any

from equipoise._utils.optional import import_optional
from equipoise.simulation.record import Round

LONG_COLUMNS = ("round", "client", "malicious", "metric", "value")
LongRow = tuple[int, int | None, bool | None, str, float]


def long_rows(rounds: Iterable[Round], malicious: Container[int]) -> Iterator[LongRow]:
    """The rows of the table; client and malicious are None for values of the whole system."""
    for record in rounds:
        t = record.t
        for metric, values in record.clients.items():
            for client, value in enumerate(values):
                yield t, client, client in malicious, metric, value
        # Rows of their own: a round that is not evaluated has no other rows of clients.
        for client in record.diverged:
            yield t, client, client in malicious, "diverged", 1.0
        for name, value in record.values.items():
            yield t, None, None, name, value
        for phase, value in record.seconds.items():
            yield t, None, None, f"{phase}_seconds", value


def as_frame(rows: Iterable[LongRow]) -> Any:
    """The table as a ``pandas.DataFrame``."""
    pandas: Any = import_optional("pandas", "frames")
    table = pandas.DataFrame(list(rows), columns=list(LONG_COLUMNS))
    # Types with capital letters are those of pandas that can be missing.
    types = {"round": "int64", "client": "Int64", "malicious": "boolean", "value": "float64"}
    return table.astype(types)


def as_csv(rows: Iterable[LongRow]) -> str:
    """The table as CSV; None is an empty field."""
    text = io.StringIO()
    # The default is \r\n, on every system.
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LONG_COLUMNS)
    writer.writerows(rows)
    return text.getvalue()
