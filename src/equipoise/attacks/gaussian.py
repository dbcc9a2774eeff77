"""Gaussian noise in the place of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from equipoise._utils.validation import is_finite
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Gaussian:
    r"""Every malicious client sends pure noise, drawn anew each round: :math:`w_j \sim N(0, \sigma^2 I)`.

    Blanchard et al., NeurIPS 2017; appendix D of the BALANCE paper draws from N(0, 200), read as the variance. The
    noise takes the place of the model, it is not added to it.

    Args:
        std: standard deviation of every coordinate.

    >>> known = eq.attacks.Knowledge(torch.zeros(3, 4), eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Gaussian(std=1.0).forge(known).rows.shape
    torch.Size([1, 4])
    """

    std: float = math.sqrt(200)

    def __post_init__(self) -> None:
        if not is_finite(self.std) or self.std < 0:
            raise ValueError(f"std must be a finite number >= 0, found {self.std!r}")

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """One noise vector per malicious client, told to everybody."""
        ids = known.liars.nonzero().flatten()
        if not len(ids):
            return None
        return Lies(known.randn(len(ids), known.models.shape[1], std=self.std), ids, torch.full_like(ids, -1))
