"""The results of one round, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any, TypeVar

from equipoise._utils.validation import check_count

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, eq=False)
class Round:
    """The results of one round.

    Two rounds are equal if their results are equal: ``seconds`` do not count, and NaN equals NaN.

    Args:
        t: the number of the round, from 0.
        clients: one value for each client, by name of the metric; empty in rounds that were not
            evaluated.
        values: values of the whole system, such as ``consensus``, ``accepted_benign``,
            ``accepted_malicious`` or ``bytes`` (sent by a client on average).
        seconds: the time of each phase, such as ``train`` or ``aggregate``.
        diverged: clients whose models became non-finite in this round. Naming a client again in a
            later round changes nothing.

    >>> Round(0, {"error": torch.tensor([0.5, 0.25])}, {"consensus": 0.1}).clients
    {'error': (0.5, 0.25)}
    """

    t: int
    clients: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    diverged: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("t", self.t, 0)
        # Plain numbers: a record must not change with the tensors that it was made from.
        put = partial(object.__setattr__, self)
        put("t", int(self.t))
        put("clients", {key: _tuple(key, x, float) for key, x in _items("clients", self.clients)})
        for name in ("values", "seconds"):
            table = _items(name, getattr(self, name))
            put(name, {key: _as_number(key, x, float) for key, x in table})
        # index, unlike int, rejects fractions: a client 1.5 is an error.
        put("diverged", _tuple("diverged", self.diverged, index))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Round):
            return NotImplemented
        # In to_dict, NaN is a string, which equals itself.
        return self.to_dict() | {"seconds": None} == other.to_dict() | {"seconds": None}

    @property
    def alone(self) -> bool:
        """Whether benign clients received messages and accepted none: all of them trained alone.

        >>> Round(0, values={"accepted_benign": 0.0, "accepted_malicious": torch.nan}).alone
        True
        """
        rates = [self.values.get(f"accepted_{kind}", math.nan) for kind in ("benign", "malicious")]
        # NaN: there was no such message, or the rule does not report weights.
        known = [rate for rate in rates if not math.isnan(rate)]
        return bool(known) and not any(known)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name as strict JSON types; non-finite numbers are strings."""
        return {
            "t": self.t,
            "clients": {
                name: [_strict(x) for x in values] for name, values in self.clients.items()
            },
            "values": {name: _strict(x) for name, x in self.values.items()},
            "seconds": {name: _strict(x) for name, x in self.seconds.items()},
            "diverged": list(self.diverged),
        }


def as_round(data: Any) -> Round:
    """The round that :meth:`Round.to_dict` returned."""
    names = ("t", "clients", "values", "seconds", "diverged")
    # Round(**data) would raise a TypeError for other keys.
    if not isinstance(data, Mapping) or set(data) != set(names):
        raise ValueError(f"rounds must hold {', '.join(names)} each, found {data!r:.80}")
    return Round(**data)


def as_list(name: str, values: Any) -> list[Any]:
    """The values as a list; a string or a mapping is an error, although both can be iterated."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list, found {values!r:.80}")
    return list(values)


def _items(name: str, table: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
        raise ValueError(f"{name} must map names to numbers, found {table!r:.80}")
    return table.items()


def _tuple(name: str, values: Any, kind: Callable[[Any], Number]) -> tuple[Number, ...]:
    """Numbers from a tensor, an array or an iterable."""
    # One copy from the device of a tensor, instead of one for each number.
    plain = values.tolist() if hasattr(values, "tolist") else values
    return tuple(_as_number(name, x, kind) for x in as_list(name, plain))


def _as_number(name: str, x: Any, kind: Callable[[Any], Number]) -> Number:
    try:
        return kind(x)
    # OverflowError: an integer of a JSON file may exceed the largest float.
    except (TypeError, ValueError, OverflowError) as error:
        # The value may come from a file and be of any length: 80 characters identify it.
        raise ValueError(f"{name} must be numbers, found {x!r:.80}") from error


def _strict(x: float) -> float | str:
    """A number that strict JSON can hold: float("nan") and the like read these strings back."""
    return x if math.isfinite(x) else str(x)
