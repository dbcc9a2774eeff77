"""Representations of objects as the call that makes them, and hints for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from equipoise._utils.validation import describe


def vector_hint(x: object, name: str) -> str:
    """How to turn an argument into a floating-point vector, for error messages."""
    if isinstance(x, nn.Module):
        return "; flatten(module) makes one"
    if isinstance(x, Mapping):
        return "; load a state_dict into a module, and flatten that"
    if isinstance(x, Tensor):
        return "" if x.is_floating_point() else f"; {name}.float() makes one"
    # The result of a rule has its vector in .model.
    return "; take its .model" if hasattr(x, "model") else f"; torch.tensor({name}) makes one"


def as_call(made: Any) -> str:
    """The call that makes a dataclass; functions appear by name, tensors by dtype and shape.

    >>> eq.Balance(gamma=0.5)
    Balance(gamma=0.5, kappa=1.0, progress=None, weighted=False, cap=2.0)
    """
    # Fields with repr=False are caches, not arguments.
    shown = {field.name: getattr(made, field.name) for field in fields(made) if field.repr}
    return call(type(made).__name__, **shown)


def call(function: str, /, **arguments: Any) -> str:
    """A call of a function; functions appear by name, tensors by dtype and shape.

    >>> from equipoise._utils.formatting import call
    >>> call("mix", alpha=0.5, models=torch.zeros(2, 3))
    'mix(alpha=0.5, models=float32 (2, 3))'
    """
    shown = [f"{name}={_shown(value)}" for name, value in arguments.items()]
    return f"{function}({', '.join(shown)})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return describe(value)
    # The repr of a function has its address in memory, which differs from run to run.
    return getattr(value, "__qualname__", None) or repr(value)
