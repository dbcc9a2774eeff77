"""Gaussian noise instead of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise._utils.validation import is_finite
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Gaussian:
    r"""Every malicious client sends fresh noise each round: :math:`m_j \sim N(0, \sigma^2 I)`.

    Blanchard et al., NeurIPS 2017. Appendix D of the BALANCE paper draws from N(0, 200); we read
    200 as the variance. The noise replaces the model; it is not added to it.

    Args:
        std: standard deviation of every coordinate.

    >>> known = eq.attacks.Knowledge(torch.zeros(3, 4), eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Gaussian(std=1.0).forge(known).rows.shape
    torch.Size([1, 4])
    """

    uses_malicious_models: ClassVar[bool] = False
    uses_models: ClassVar[bool] = False

    std: float = math.sqrt(200)

    def __post_init__(self) -> None:
        if not is_finite(self.std) or self.std < 0:
            raise ValueError(f"std must be a finite number >= 0, found {self.std!r}")

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row per malicious client, for all receivers."""
        # Drawn even without victims, so that the random numbers of later rounds do not depend on
        # the graph of this one.
        senders = known.malicious_mask.nonzero().flatten()
        if not len(senders):
            return None
        rows = known.randn(len(senders), known.models.shape[1], std=self.std)
        return Lies(rows, senders, torch.full_like(senders, -1))  # -1: to all receivers
