"""Messages of NaN or infinity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch

from equipoise._utils.validation import is_finite
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class NonFinite:
    """Every malicious client sends NaN, or an infinity, in every parameter.

    Rules treat such a message as absent.

    Args:
        value: NaN, inf or -inf.

    >>> known = eq.attacks.Knowledge(torch.ones(3, 2), eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.NonFinite().forge(known).rows
    tensor([[nan, nan]])
    """

    uses_malicious_models: ClassVar[bool] = False
    uses_models: ClassVar[bool] = False

    value: float = math.nan

    def __post_init__(self) -> None:
        # Accept any real type, such as a numpy scalar, but not a string like "nan".
        if not isinstance(self.value, Real) or is_finite(self.value):
            raise ValueError(f"value must be NaN or infinite, found {self.value!r}")

    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row for all receivers."""
        if not len(known.victims):  # lies would reach only malicious clients
            return None
        # One row for all edges: a row per client would take the memory of all models.
        return Lies.to_all(torch.full_like(known.models[0], self.value))
