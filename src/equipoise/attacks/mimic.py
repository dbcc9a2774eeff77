"""Copies of one benign model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise._utils.validation import check_count
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Mimic:
    r"""Every malicious client copies the model of one benign client: :math:`m = w_{\text{target}}`.

    The copies give that client more weight than it should have. Karimireddy et al.,
    *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR 2022.

    Args:
        target: the client to copy; by default the first benign client with a finite model.

    >>> known = eq.attacks.Knowledge(torch.eye(3), eq.Topology.complete(3), malicious=[0])
    >>> eq.attacks.Mimic().forge(known).rows
    tensor([[0., 1., 0.]])
    """

    uses_malicious_models: ClassVar[bool] = False

    target: int | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            check_count("target", self.target, 0)

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row for all receivers."""
        if not known._is_feasible:
            return None
        # The same client in every round, as long as its model is finite.
        target = int(known.finite_benign.nonzero()[0]) if self.target is None else self.target
        n = len(known.models)
        # A malicious target would be no attack: the clients would send benign models.
        if not 0 <= target < n or known.malicious_mask[target]:
            raise ValueError(f"target must be a benign client from 0 to {n - 1}, found {target}")
        # A copy: lies must not share memory with the models.
        return Lies.to_all(known.models[target].clone())
