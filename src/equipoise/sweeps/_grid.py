"""The cells of a grid: every choice of arguments that a sweep runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from equipoise._utils.identity import digest, identity
from equipoise.sweeps._labels import Label, labels_of


@dataclass(frozen=True, eq=False)
class Cell:
    """One choice of arguments.

    Args:
        key: identifies the choice, the functions of the sweep and the version: see `identity`.
        labels: the short name of each argument.
        choice: the arguments. Empty if the cell was read from a folder, which holds labels only.
        texts: what the key identifies, by name of the argument.
    """

    key: str
    labels: Mapping[str, Label]
    choice: Mapping[str, Any]
    texts: Mapping[str, str]


class Option(NamedTuple):
    """One value of an argument."""

    label: Label
    value: Any
    text: str


def cells_of(
    grid: Iterable[Mapping[str, Any]] | None, axes: Mapping[str, Any], functions: str
) -> list[Cell]:
    """All cells of a list of choices, of axes, or of the product of both.

    ``functions`` identifies what the cells run.
    """
    rows: list[dict[str, Option]] = [{}] if grid is None else _rows(grid)
    if repeated := [name for name in axes if name in rows[0]]:
        raise ValueError(f"the axes must be new, found {repeated[0]}, which grid has as well")
    options = {name: _axis(name, values) for name, values in axes.items()}
    cells = []
    for row in rows:
        for chosen in product(*options.values()):
            cells.append(_cell(row | dict(zip(options, chosen, strict=True)), functions))
    if not cells or not cells[0].choice:
        raise ValueError("a sweep must have a value for each axis, found none")
    if len({cell.key for cell in cells}) < len(cells):
        raise ValueError("grid must hold different choices, found one of them twice")
    return cells


def _cell(options: Mapping[str, Option], functions: str) -> Cell:
    # Sorted: the order of arguments does not matter.
    texts = [f"{name}={options[name].text}" for name in sorted(options)]
    return Cell(
        key=digest("\n".join([functions, *texts])),
        labels={name: option.label for name, option in options.items()},
        choice={name: option.value for name, option in options.items()},
        texts={name: option.text for name, option in options.items()},
    )


def _rows(grid: Iterable[Mapping[str, Any]]) -> list[dict[str, Option]]:
    """The choices of a list of dicts; equal values have one label in all of them."""
    rows = _checked(grid)
    found: list[dict[str, Option]] = [{} for _ in rows]
    for name in rows[0]:
        texts = [_text(name, row[name]) for row in rows]
        values = {text: row[name] for text, row in zip(texts, rows, strict=True)}
        labels = dict(zip(values, labels_of(list(values.values())), strict=True))
        for position, text in enumerate(texts):
            found[position][name] = Option(labels[text], values[text], text)
    return found


def _checked(grid: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The dicts of a grid, at least one, which have the same names."""
    expected = "a list of dicts that have the same names"
    if isinstance(grid, Mapping | str) or not isinstance(grid, Iterable):
        raise ValueError(f"grid must be {expected}, found {grid!r:.80}")
    rows = list(grid)
    for row in rows:
        if not isinstance(row, Mapping) or set(row) != set(rows[0]):
            raise ValueError(f"grid must be {expected}, found {row!r:.80}")
    if not rows:
        raise ValueError(f"grid must be {expected}, found no dict")
    return rows


def _axis(name: str, values: Any) -> list[Option]:
    """The values of an axis, which must differ."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, Mapping):
        labels: Sequence[Label] = [str(label) for label in values]
        values = list(values.values())
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        labels = labels_of(values)
    else:
        expected = "a list of values, or a dict of labels and values"
        raise ValueError(f"{name} must be {expected}, found {values!r:.80}")
    texts = [_text(name, value) for value in values]
    for position, text in enumerate(texts):
        if text in texts[:position]:
            found = f"{labels[texts.index(text)]} twice"
            raise ValueError(f"{name} must hold different values, found {found}")
    return [Option(*option) for option in zip(labels, values, texts, strict=True)]


def _text(name: str, value: Any) -> str:
    try:
        return identity(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; a frozen dataclass is one") from error
