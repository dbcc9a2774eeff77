"""How objects are shown to people: like the call that makes them, without addresses in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from equipoise._utils.validation import describe


def way_to_a_vector(x: object, name: str) -> str:
    """What to do about something that is given for a model and is no floating-point tensor, for error messages."""
    if isinstance(x, nn.Module):
        return "; flatten(module) makes one"
    if isinstance(x, Mapping):
        return "; load a state_dict into a module, and flatten that"
    if isinstance(x, Tensor):
        return "" if x.is_floating_point() else f"; {name}.float() makes one"
    return "; take its .model" if hasattr(x, "model") else f"; torch.tensor({name}) makes one"


def as_call(made: Any) -> str:
    """A dataclass as the call that makes it: functions by name, tensors by dtype and shape.

    >>> eq.Balance(gamma=0.5)
    Balance(gamma=0.5, kappa=1.0, progress=None)
    """
    return call(type(made).__name__, **{field.name: getattr(made, field.name) for field in fields(made) if field.repr})


def call(function: str, /, **arguments: Any) -> str:
    """A call of a function with these arguments: functions by name, tensors by dtype and shape.

    >>> from equipoise._utils.formatting import call
    >>> call("mix", alpha=0.5, models=torch.zeros(2, 3))
    'mix(alpha=0.5, models=float32 (2, 3))'
    """
    return f"{function}({', '.join(f'{key}={_shown(value)}' for key, value in arguments.items())})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return describe(value)
    return getattr(value, "__qualname__", None) or repr(value)
