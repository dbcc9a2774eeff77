"""What a caller may give for an argument, and how an error calls what was found instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from equipoise.types import RoundInputs

INPUTS = tuple(RoundInputs.__annotations__)
"""What rules may be told about a round."""

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)

Clients = Tensor | Iterable[int]  # a bool mask (n,), or client ids


def describe(x: object) -> str:
    """A tensor's dtype and shape, or the type of something else, for error messages."""
    if not isinstance(x, Tensor):
        return type(x).__name__
    if x.is_nested:
        return "a nested tensor"
    layout = "" if x.layout == torch.strided else f" {str(x.layout).removeprefix('torch.')}"
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}{layout}"


def is_floating(x: object) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of floating-point numbers."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and not x.is_nested


def check_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise unless ``value`` is an integer in range."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or value < least
        or (most is not None and value > most)
    ):
        expected = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {expected}, found {value!r}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a real number, of Python or numpy, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_probability(name: str, value: object) -> None:
    """Raise unless ``value`` is a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, found {value!r}")


def check_number(name: str, value: object, *, positive: bool = False) -> None:
    """Raise unless ``value`` is a finite number >= 0, or > 0."""
    if not is_number(value) or not 0 <= value < math.inf or (positive and value == 0):
        raise ValueError(f"{name} must be a finite number {'>' if positive else '>='} 0, found {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, found {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of the choices, at least two."""
    if not isinstance(value, str) or value not in choices:
        expected = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise ValueError(f"{name} must be {expected}, found {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raise unless ``value`` can be called and is not a class."""
    if isinstance(value, type) or not callable(value):
        found = f"the class {value.__name__}" if isinstance(value, type) else describe(value)
        raise ValueError(f"{name} must be a function, found {found}")


def check_inputs(rule: str, inputs: Mapping[str, Any]) -> None:
    """Raise unless these are round inputs, and those that are numbers or functions are valid.

    A known input that a rule does not need is ignored, but a misspelled one is an error.
    """
    for name in inputs:
        if name not in INPUTS:
            close = get_close_matches(name, INPUTS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"rules know {', '.join(INPUTS)}"
            raise TypeError(f"{rule} got an unknown input {name!r}: {hint}")
    if inputs.get("t") is not None:
        check_count("t", inputs["t"], 0)
    if inputs.get("total") is not None:
        check_count("total", inputs["total"], 1)
    if inputs.get("loss_of") is not None and not callable(inputs["loss_of"]):
        raise ValueError(f"loss_of must be a function, found {describe(inputs['loss_of'])}")


def check_range(name: str, ids: Tensor, least: int, end: int | None) -> None:
    """Raise unless all ids are in range."""
    if ids.numel() and (ids.min() < least or (end is not None and ids.max() >= end)):
        expected = f"at least {least}" if end is None else f"from {least} to {end - 1}"
        found = f"{ids.min()}" if ids.min() == ids.max() else f"{ids.min()} to {ids.max()}"
        raise ValueError(f"{name} must be {expected}, found {found}")


def as_mask(clients: Clients | None, n: int, *, name: str = "malicious") -> Tensor:
    """A set of clients, given as nothing, a bool mask (n,) or ids, as a bool mask (n,).

    >>> from equipoise._utils.validation import as_mask
    >>> as_mask([0, 2], 4)
    tensor([ True, False,  True, False])
    """
    if clients is None:
        return torch.zeros(n, dtype=torch.bool, device="cpu")
    chosen = as_tensor(clients, f"{name} must be a bool mask of shape ({n},) or client ids")
    if chosen.dtype == torch.bool and chosen.shape == (n,):
        return chosen
    if chosen.dim() != 1 or chosen.dtype == torch.bool or (chosen.is_floating_point() and chosen.numel()):
        raise ValueError(f"{name} must be a bool mask of shape ({n},) or client ids, found {describe(chosen)}")
    ids, times = chosen.long().unique(return_counts=True)
    check_range(name, ids, 0, n)
    if len(ids) < len(chosen):
        raise ValueError(f"{name} must name every client once, found client {ids[times > 1][0]} more than once")
    return torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill(0, ids, True)


def as_counts(name: str, value: Any, n: int, device: torch.device) -> Tensor:
    """(n,) whole numbers >= 0 of n clients, given as one number for all of them or one per client."""
    try:
        counts = torch.as_tensor(value, device=device)
        whole = not (counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool)
    except (TypeError, ValueError, RuntimeError):  # no number, or one beyond int64
        whole = False
    if not whole or (counts < 0).any():
        raise ValueError(f"{name} must be whole numbers >= 0, found {value!r}")
    if counts.dim() and counts.shape != (n,):
        raise ValueError(f"{name} must be one number or one per client ({n},), found {tuple(counts.shape)}")
    return counts.long().expand(n)


def as_tensor(values: Any, expected: str) -> Tensor:
    """A tensor, an array or an iterable as a tensor, or an error that says what was expected."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.array(values if isinstance(values, np.ndarray) else list(values), order="C")
        return torch.as_tensor(array, device="cpu")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}, found {values!r:.100}") from error


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


def check_integers(name: str, labels: Tensor) -> None:
    """Raise unless ``labels`` is a tensor of integers."""
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        raise ValueError(f"{name} must be a tensor of integer labels, found {describe(labels)}")
