"""What happened in one round, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, TypeVar

from equipoise._utils.validation import check_count

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, eq=False)
class Round:
    """One round. Two rounds are equal if their results are: ``seconds`` do not count, and NaN equals NaN.

    ``clients`` holds, by name of a metric, one value for each client; it is empty in rounds that were not evaluated.
    ``values`` are of the whole system, such as ``consensus``, ``accepted_benign``, ``accepted_malicious`` or ``bytes``
    (sent by a client on average). ``seconds`` are per phase, such as ``train`` or ``aggregate``. ``diverged`` names
    the clients whose models became non-finite in this round; to name them again later changes nothing.

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
        plain = {
            "t": int(self.t),
            "clients": {metric: _tuple(metric, x, float) for metric, x in _named("clients", self.clients)},
            "values": {name: _number(name, x, float) for name, x in _named("values", self.values)},
            "seconds": {phase: _number(phase, x, float) for phase, x in _named("seconds", self.seconds)},
            "diverged": _tuple("diverged", self.diverged, index),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Round):
            return NotImplemented
        return self.to_dict() | {"seconds": None} == other.to_dict() | {"seconds": None}

    @property
    def alone(self) -> bool:
        """Whether benign clients received messages and accepted none, so that everybody trained alone.

        >>> Round(0, values={"accepted_benign": 0.0, "accepted_malicious": torch.nan}).alone
        True
        """
        rates = [self.values.get(f"accepted_{who}", math.nan) for who in ("benign", "malicious")]
        known = [rate for rate in rates if not math.isnan(rate)]
        return bool(known) and not any(known)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as strict JSON has them: what is not finite is the string nan, inf or -inf."""
        return {
            "t": self.t,
            "clients": {name: [_strict(x) for x in values] for name, values in self.clients.items()},
            "values": {name: _strict(x) for name, x in self.values.items()},
            "seconds": {name: _strict(x) for name, x in self.seconds.items()},
            "diverged": list(self.diverged),
        }


def as_round(data: Any) -> Round:
    """The round that :meth:`Round.to_dict` describes."""
    names = ("t", "clients", "values", "seconds", "diverged")
    if not isinstance(data, Mapping) or set(data) != set(names):
        raise ValueError(f"rounds must hold {', '.join(names)} each, found {data!r:.80}")
    return Round(**data)


def as_list(name: str, values: Any) -> list[Any]:
    """A list, but not of the letters of a string or the keys of a mapping."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list, found {values!r:.80}")
    return list(values)


def _named(name: str, table: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
        raise ValueError(f"{name} must map names to numbers, found {table!r:.80}")
    return table.items()


def _tuple(name: str, values: Any, kind: Callable[[Any], Number]) -> tuple[Number, ...]:
    """Numbers from a tensor, an array or a sequence."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    return tuple(_number(name, x, kind) for x in as_list(name, plain))


def _number(name: str, x: Any, kind: Callable[[Any], Number]) -> Number:
    try:
        return kind(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be numbers, found {x!r:.80}") from error


def _strict(x: float) -> float | str:
    return x if math.isfinite(x) else str(x)
