"""Short names of values in tables and figures."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from equipoise._utils.identity import identity, without_addresses

Label: TypeAlias = bool | int | float | str

LONGEST = 60  # characters of a repr that serves as a label


def labels_of(values: Sequence[Any]) -> list[Label]:
    """A label for each of several different values of one axis.

    Numbers and strings are their own labels. Objects are called by their class, with the arguments
    in which they differ from others of their class.

    >>> from equipoise.sweeps._labels import labels_of
    >>> labels_of([eq.Median(), eq.Balance(), eq.Balance(kappa=0), None])
    ['Median', 'Balance(kappa=1.0)', 'Balance(kappa=0)', 'none']
    >>> labels_of([eq.Topology.ring(3), eq.Topology.complete(3)])
    ['Topology(n=3, k=2, e=6) #1', 'Topology(n=3, k=2, e=6) #2']
    """
    names = [_name(value) for value in values]
    # By text: the numbers 1 and 1.0 and True are equal, but have different texts.
    alike: dict[str, list[Any]] = {}
    for name, value in zip(names, values, strict=True):
        alike.setdefault(str(name), []).append(value)
    labels: list[Label] = []
    for name, value in zip(names, values, strict=True):
        others = alike[str(name)]
        labels.append(_distinguished(str(name), value, others) if len(others) > 1 else name)
    return _numbered(labels)


def _name(value: Any) -> Label:
    """The label of a value without regard to others."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, functools.partial):
        return str(_name(value.func))
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        # The function f of a test is test.<locals>.f.
        return str(value.__qualname__).rpartition(".")[2]
    # Dataclasses with a repr of their own, such as a Topology, tell more by it.
    if is_dataclass(value) and all(f.name in repr(value) for f in fields(value) if f.repr):
        return type(value).__name__
    text = without_addresses(repr(value))
    return text if len(text) <= LONGEST else type(value).__name__


def _distinguished(name: str, value: Any, alike: Sequence[Any]) -> str:
    """The name with the arguments in which values of one name differ."""
    arguments = [_arguments(other) for other in alike]
    mine = _arguments(value)
    differing = [
        field for field in mine if len({identity(other.get(field)) for other in arguments}) > 1
    ]
    if not differing or "(" in name:
        return name
    return f"{name}({', '.join(f'{field}={_name(mine[field])}' for field in differing)})"


def _arguments(value: Any) -> Mapping[str, Any]:
    if isinstance(value, functools.partial):
        return value.keywords
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    return {}


def _numbered(labels: Sequence[Label]) -> list[Label]:
    """Append numbers to labels that occur several times."""
    # The number 1 and the text "1" look alike in a table.
    total = Counter(map(str, labels))
    seen = Counter[str]()
    found: list[Label] = []
    for label in labels:
        seen[str(label)] += 1
        found.append(label if total[str(label)] == 1 else f"{label} #{seen[str(label)]}")
    return found
