"""Argument validation and error formatting."""

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
"""Names of the round inputs."""

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)

Clients = Tensor | Iterable[int]  # a bool mask (n,), or client ids


def describe(x: object) -> str:
    """The dtype and shape of a tensor, or the type of another object, for error messages."""
    if not isinstance(x, Tensor):
        return type(x).__name__
    # Asking a nested tensor for its shape raises.
    if x.is_nested:
        return "a nested tensor"
    layout = "" if x.layout == torch.strided else f" {str(x.layout).removeprefix('torch.')}"
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}{layout}"


def is_floating(x: object) -> TypeGuard[Tensor]:
    """Whether ``x`` is a dense floating-point tensor."""
    if not isinstance(x, Tensor) or x.is_nested:
        return False
    return x.is_floating_point() and x.layout == torch.strided


def check_count(name: str, value: object, minimum: int, maximum: int | None = None) -> None:
    """Raise unless ``value`` is an integer in range."""
    if not is_integer(value) or value < minimum or (maximum is not None and value > maximum):
        expected = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ValueError(f"{name} must be an integer {expected}, found {value!r}")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an integer of Python or numpy, but not a bool."""
    # A bool is an int in Python, but True is not a count.
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a real number of Python or numpy, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_probability(name: str, value: object) -> None:
    """Raise unless ``value`` is a number from 0 to 1."""
    # NaN fails the comparison, here and below.
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, found {value!r}")


def check_number(name: str, value: object, *, positive: bool = False) -> None:
    """Raise unless ``value`` is a finite number >= 0, or > 0."""
    if not is_number(value) or not 0 <= value < math.inf or (positive and value == 0):
        bound = "> 0" if positive else ">= 0"
        raise ValueError(f"{name} must be a finite number {bound}, found {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, found {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of two or more choices."""
    if not isinstance(value, str) or value not in choices:
        expected = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise ValueError(f"{name} must be {expected}, found {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raise unless ``value`` can be called and is not a class."""
    # A class can be called, too, but passing it instead of an instance is a mistake.
    if isinstance(value, type) or not callable(value):
        found = f"the class {value.__name__}" if isinstance(value, type) else describe(value)
        raise ValueError(f"{name} must be a function, found {found}")


def check_inputs(rule: str, inputs: Mapping[str, Any]) -> None:
    """Raise unless all names are round inputs, and ``t``, ``total`` and ``loss_of`` are valid.

    An input that the rule does not need is ignored; a misspelled one is an error.
    """
    for name in inputs:
        if name not in INPUTS:
            close = get_close_matches(name, INPUTS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"rules know {', '.join(INPUTS)}"
            raise TypeError(f"{rule} got an unknown input {name!r}: {hint}")
    # None is the same as an input that is left out.
    if inputs.get("t") is not None:
        check_count("t", inputs["t"], 0)
    if inputs.get("total") is not None:
        check_count("total", inputs["total"], 1)
    if inputs.get("loss_of") is not None and not callable(inputs["loss_of"]):
        raise ValueError(f"loss_of must be a function, found {describe(inputs['loss_of'])}")


def check_range(name: str, ids: Tensor, minimum: int, end: int | None) -> None:
    """Raise unless all ids are in range."""
    # An empty tensor has no minimum.
    if ids.numel() and (ids.min() < minimum or (end is not None and ids.max() >= end)):
        expected = f"at least {minimum}" if end is None else f"from {minimum} to {end - 1}"
        found = f"{ids.min()}" if ids.min() == ids.max() else f"{ids.min()} to {ids.max()}"
        raise ValueError(f"{name} must be {expected}, found {found}")


def as_mask(clients: Clients | None, n: int, *, name: str = "malicious") -> Tensor:
    """A set of clients as a bool mask (n,), from None, a bool mask (n,) or ids.

    >>> from equipoise._utils.validation import as_mask
    >>> as_mask([0, 2], 4)
    tensor([ True, False,  True, False])
    """
    if clients is None:
        # An explicit device, here and elsewhere: torch.set_default_device must not change it.
        return torch.zeros(n, dtype=torch.bool, device="cpu")
    expected = f"a bool mask of shape ({n},) or client ids"
    chosen = as_tensor(clients, f"{name} must be {expected}")
    if chosen.dtype == torch.bool and chosen.shape == (n,):
        return chosen
    # An empty list becomes a tensor of floats, but is a valid set of ids.
    is_float = chosen.is_floating_point() and chosen.numel() > 0
    if chosen.dim() != 1 or chosen.dtype == torch.bool or is_float:
        raise ValueError(f"{name} must be {expected}, found {describe(chosen)}")
    ids, times = chosen.long().unique(return_counts=True)
    check_range(name, ids, 0, n)
    # A repeated id is a mistake: the caller counts more clients than there are.
    if len(ids) < len(chosen):
        found = f"client {ids[times > 1][0]} more than once"
        raise ValueError(f"{name} must name every client once, found {found}")
    return torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill(0, ids, True)


def as_counts(name: str, value: Any, n: int, device: torch.device) -> Tensor:
    """(n,) whole numbers >= 0, from one number for all clients or one per client."""
    try:
        counts = torch.as_tensor(value, device=device)
        is_whole = not counts.is_floating_point() and not counts.is_complex()
        is_whole = is_whole and counts.dtype != torch.bool
    except (TypeError, ValueError, RuntimeError):  # not a number, or beyond int64
        is_whole = False
    if not is_whole or (counts < 0).any():
        raise ValueError(f"{name} must be whole numbers >= 0, found {value!r}")
    if counts.dim() and counts.shape != (n,):
        expected = f"one number or one per client ({n},)"
        raise ValueError(f"{name} must be {expected}, found {tuple(counts.shape)}")
    return counts.long().expand(n)  # one number is not copied n times, so do not write to it


def as_tensor(values: Any, expected: str) -> Tensor:
    """A tensor from a tensor, an array or an iterable; errors start with ``expected``."""
    if isinstance(values, Tensor):
        return values
    try:
        # A copy in C order, because torch does not take arrays with negative strides.
        array = np.array(values if isinstance(values, np.ndarray) else list(values), order="C")
        return torch.as_tensor(array, device="cpu")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}, found {values!r:.100}") from error


# The choices of an option, which are the same for all attacks that have it.
ALLOWED = {
    "scope": ("receiver", "global"),
    "space": ("model", "update"),
    "form": ("group", "fang"),
    "mode": ("max", "literal"),
    "center": ("mean", "own"),
    "weights": ("uniform", "metropolis"),
}


# Numbers that an attack may have. None is a default that depends on the round.
STRENGTHS = ("epsilon", "z", "start", "tolerance", "factor", "noise", "std")


def check_options(attack: object) -> None:
    """Raise unless the options of an attack are valid choices or finite numbers."""
    for name, allowed in ALLOWED.items():
        value = getattr(attack, name, allowed[0])
        if value not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, allowed))}, found {value!r}"
            )
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
