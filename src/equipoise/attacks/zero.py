"""The zero model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Zero:
    """Every malicious client sends the zero model, which pulls averages toward zero.

    >>> known = eq.attacks.Knowledge(torch.ones(3, 2), eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Zero().forge(known).rows
    tensor([[0., 0.]])
    """

    uses_malicious_models: ClassVar[bool] = False
    uses_models: ClassVar[bool] = False

    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row for all receivers."""
        if not len(known.victims):  # lies would reach only malicious clients
            return None
        # One row for all edges: a row per client would take the memory of all models.
        return Lies.to_all(torch.zeros_like(known.models[0]))
