"""The results of a sweep: tables, data frames and histories."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from equipoise._utils.atomic_write import atomic_write
from equipoise._utils.identity import identity
from equipoise._utils.optional import import_optional
from equipoise.simulation import History
from equipoise.sweeps._labels import Label
from equipoise.sweeps._table import Table

Names = str | Sequence[str]
SEED = "seed"


@dataclass(frozen=True, eq=False)
class CellResult:
    """One cell of a sweep.

    Args:
        labels: the short name of each argument.
        history: the rounds; None if the cell failed, or has not run.
        failure: the traceback if it failed.
        measured: what the function ``measure`` returned.
        choice: the arguments; empty if the results were read from a folder.
    """

    labels: Mapping[str, Label]
    history: History | None = None
    failure: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, float]:
        """The summary of the history, and the numbers that were measured."""
        found = {} if self.history is None else self.history.summary()
        return found | {
            name: value for name, value in self.measured.items() if isinstance(value, int | float)
        }


class Results:
    """The cells of a sweep, in the order of its grid.

    >>> from equipoise.sweeps import CellResult, Results
    >>> def ended(error, seed):
    ...     return eq.History(1, rounds=[eq.Round(9, {"error": [error]})], seed=seed)
    >>> results = Results([
    ...     CellResult({"rule": "Median", "seed": 0}, ended(0.25, 0)),
    ...     CellResult({"rule": "Median", "seed": 1}, ended(0.5, 1)),
    ...     CellResult({"rule": "Krum", "seed": 0}, failure="ValueError: no"),
    ... ])
    >>> print(results)
    3 cells: 2 finished, 1 failed
    rule=Krum, seed=0: ValueError: no
    >>> print(results.table(rows="rule", value="max_error"))
              max_error
    rule
    Median  0.38 ± 0.18
    Krum              -
    >>> results.frame()[["rule", "seed", "round", "max_error"]]
         rule  seed  round  max_error
    0  Median     0      9       0.25
    1  Median     1      9       0.50
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        self.cells = tuple(cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self.cells)

    def __repr__(self) -> str:
        return f"Results({self._counts()})"

    def __str__(self) -> str:
        lines = [self._counts()]
        for cell in self.failures:
            labels = ", ".join(f"{name}={label}" for name, label in cell.labels.items())
            lines.append(f"{labels}: {cell.failure.strip().splitlines()[-1]}")
        return "\n".join(lines)

    def _counts(self) -> str:
        finished = sum(cell.history is not None for cell in self.cells)
        failed = len(self.failures)
        parts = [f"{finished} finished", f"{failed} failed"]
        if absent := len(self.cells) - finished - failed:
            parts.append(f"{absent} not run")
        return f"{len(self.cells)} cells: {', '.join(parts)}"

    @property
    def failures(self) -> tuple[CellResult, ...]:
        """The cells that failed; ``failure`` is the traceback."""
        return tuple(cell for cell in self.cells if cell.failure)

    @property
    def axes(self) -> dict[str, list[Label]]:
        """The labels of each argument, in the order of the grid."""
        found: dict[str, dict[Label, None]] = {}
        for cell in self.cells:
            for name, label in cell.labels.items():
                found.setdefault(name, {})[label] = None
        return {name: list(labels) for name, labels in found.items()}

    def where(self, **wanted: Any) -> Results:
        """The cells with these arguments, each given as a label, a value, or a list of them."""
        self._check_axes(*wanted)
        kept = self.cells
        for name, values in wanted.items():
            several = values if isinstance(values, list | tuple | range) else [values]
            for value in several:
                if not any(_is(cell, name, value) for cell in kept):
                    known = ", ".join(map(str, self.axes[name]))
                    raise ValueError(f"{name} must be one of {known}, found {value!r}")
            kept = tuple(cell for cell in kept if any(_is(cell, name, x) for x in several))
        return Results(kept)

    # Histories

    def histories(self, over: str = SEED) -> dict[str, list[History]]:
        """The histories of all seeds, for ``eq.plots``, by the labels of the other arguments.

        Arguments that have one value are not part of the names.
        """
        groups: dict[str, list[History]] = {}
        varying = [name for name, labels in self.axes.items() if len(labels) > 1 and name != over]
        for cell in self.cells:
            if cell.history is not None:
                name = ", ".join(str(cell.labels[axis]) for axis in varying)
                groups.setdefault(name, []).append(cell.history)
        return groups

    # Tables

    def table(
        self,
        rows: Names,
        columns: Names = (),
        value: str = "max_error",
        *,
        over: Names = SEED,
    ) -> Table:
        """Mean and standard deviation of a value, over seeds.

        Args:
            rows: the argument, or arguments, whose values are the rows.
            columns: likewise for columns. Other arguments with several values become rows in front
                of these: a mean is over seeds only.
            value: a name in the `summary` of the cells: ``max_error``, ``tail_error``, ``bytes``.
            over: the argument, or arguments, to average over.
        """
        pandas = import_optional("pandas", "sweeps")
        over = _as_list(over)
        columns = _as_list(columns)
        named = [*_as_list(rows), *columns]
        self._check_axes(*named)
        rest = [
            name
            for name, labels in self.axes.items()
            if name not in named and name not in over and len(labels) > 1
        ]
        frame = self.summary()
        self._check_value(value, frame)
        rows = [*rest, *_as_list(rows)]
        grouped = frame.groupby([*rows, *columns], sort=False)[value]
        # NaN, a diverged run, makes the mean NaN: pandas would leave it out.
        parts = {
            "mean": grouped.agg(lambda x: x.mean(skipna=False)),
            "sd": grouped.agg(lambda x: x.std(skipna=False)),
            "count": grouped.size(),
        }
        indices = {name: pandas.Index(labels, name=name) for name, labels in self.axes.items()}
        row_indices = [indices[row] for row in rows]
        column_indices = [indices[column] for column in columns]
        shaped = {
            name: _wide(series, row_indices, column_indices) for name, series in parts.items()
        }
        return Table(**shaped, value=value, over=tuple(name for name in over if name in self.axes))

    def summary(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each finished cell and a column for each result."""
        rows = [
            {**cell.labels, **cell.summary()} for cell in self.cells if cell.history is not None
        ]
        return import_optional("pandas", "sweeps").DataFrame(rows, columns=self._columns(rows))

    def frame(self) -> Any:
        """A tidy ``pandas.DataFrame`` with a row for each finished cell and each evaluation.

        ``max_`` and ``mean_`` of a metric are over benign clients; other columns are the values of
        that round. A run without metrics has a row for its last round.
        """
        rows = []
        for cell in self.cells:
            if cell.history is not None:
                rows += [{**cell.labels, **row} for row in _evaluations(cell.history)]
        return import_optional("pandas", "sweeps").DataFrame(rows, columns=self._columns(rows))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the tidy table as CSV."""
        with atomic_write(path, "results") as file:
            file.write(self.frame().to_csv(index=False, lineterminator="\n").encode())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the tidy table as Parquet; needs ``pip install "equipoise[parquet]"``."""
        import_optional("pyarrow", "parquet")
        frame = self.frame()
        # An argument with numbers and texts, such as alpha=[0.5, "random"], has no type of Parquet.
        for name in self.axes:
            if frame[name].dtype == object:
                frame[name] = frame[name].astype(str)
        with atomic_write(path, "results") as file:
            frame.to_parquet(file, index=False)

    def _columns(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return list(dict.fromkeys([*self.axes, *(name for row in rows for name in row)]))

    def _check_axes(self, *names: str) -> None:
        for name in names:
            if name not in self.axes:
                known = ", ".join(self.axes)
                raise ValueError(f"names must be arguments of the sweep, {known}, found {name!r}")

    def _check_value(self, value: str, frame: Any) -> None:
        known = [name for name in frame.columns if name not in self.axes]
        if not known:
            raise ValueError(f"a table needs a finished cell, found {self._counts()}")
        if value not in known:
            close = get_close_matches(str(value), known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"value must be one of {', '.join(known)}, found {value!r}{hint}")


def _evaluations(history: History) -> Iterator[dict[str, float]]:
    """A row for each round with metrics, or for the last round if there are none."""
    columns: dict[str, dict[int, float]] = {}
    for metric in history.metrics():
        columns[f"max_{metric}"] = dict(zip(*history.worst(metric), strict=True))
        columns[f"mean_{metric}"] = dict(zip(*history.mean(metric), strict=True))
    for record in history.evaluated or list(history)[-1:]:
        measured = {
            name: values[record.t] for name, values in columns.items() if record.t in values
        }
        yield {"round": record.t, **measured, **record.values}


def _is(cell: CellResult, name: str, value: Any) -> bool:
    """Whether an argument of a cell has this label, or is this value."""
    if isinstance(value, str | int | float) and value == cell.labels[name]:
        return True
    if value is None or name not in cell.choice:
        return value is None and cell.labels[name] == "none"
    return identity(value) == identity(cell.choice[name])


def _as_list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _wide(series: Any, rows: Sequence[Any], columns: Sequence[Any]) -> Any:
    """A table of a series, with all labels of some arguments as rows and of others as columns."""
    if not columns:
        return _in_order(series.to_frame(), rows, axis=0)
    table = _in_order(series.unstack([column.name for column in columns]), rows, axis=0)
    return _in_order(table, columns, axis=1)


def _in_order(table: Any, indices: Sequence[Any], axis: int) -> Any:
    """Sort by the order of the grid, and add what has no finished cell."""
    pandas = import_optional("pandas", "sweeps")
    if len(indices) == 1:
        return table.reindex(indices[0], axis=axis)
    whole = pandas.MultiIndex.from_product(indices)
    return table.reindex(whole, axis=axis)
