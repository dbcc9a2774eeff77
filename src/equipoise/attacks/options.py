"""Checks of the options that attacks share."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

ALLOWED = {
    "scope": ("receiver", "global"),
    "space": ("model", "update"),
    "perturbation": ("unit", "sign", "std"),
    "form": ("group", "fang"),
    "mode": ("max", "literal"),
    "centre": ("mean", "own"),
    "weights": ("uniform", "metropolis"),
}


STRENGTHS = ("epsilon", "z", "start", "tolerance", "factor", "noise", "std")


def check_options(attack: object) -> None:
    """Raise a ValueError if one of an attack's options is none of those that there are, or no finite number."""
    for name, allowed in ALLOWED.items():
        value = getattr(attack, name, allowed[0])
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, found {value!r}")
    for name in STRENGTHS:
        strength = getattr(attack, name, None)
        if strength is not None and not is_finite(strength):
            raise ValueError(f"{name} must be a finite number, found {strength!r}")


def is_finite(value: object) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, Real) and math.isfinite(value)
