"""The same worthless message for everybody."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch

from equipoise._utils.validation import check_count, is_finite
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Zero:
    """Every malicious client sends the zero model, which pulls averages towards it.

    >>> known = eq.attacks.Knowledge(torch.ones(3, 2), eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Zero().forge(known).rows
    tensor([[0., 0.]])
    """

    def forge(self, known: Knowledge) -> Lies | None:
        """One row for everybody."""
        return Lies.to_all(torch.zeros_like(known.models[0])) if len(known.victims) else None


@dataclass(frozen=True)
class NonFinite:
    """Every malicious client sends a message of NaN, or of an infinity: rules must not even notice.

    Args:
        value: NaN, inf or -inf.

    >>> known = eq.attacks.Knowledge(torch.ones(3, 2), eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.NonFinite().forge(known).rows
    tensor([[nan, nan]])
    """

    value: float = math.nan

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real) or is_finite(self.value):
            raise ValueError(f"value must be NaN or infinite, found {self.value!r}")

    def forge(self, known: Knowledge) -> Lies | None:
        """One row for everybody."""
        return Lies.to_all(torch.full_like(known.models[0], self.value)) if len(known.victims) else None


@dataclass(frozen=True)
class Mimic:
    """Every malicious client repeats the model of one benign client, which then has more say than it should.

    Karimireddy et al., *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR 2022.

    Args:
        target: the client that is repeated; the benign client of the lowest id whose model is finite, if not given.

    >>> known = eq.attacks.Knowledge(torch.eye(3), eq.Topology.complete(3), malicious=[0])
    >>> eq.attacks.Mimic().forge(known).rows
    tensor([[0., 1., 0.]])
    """

    target: int | None = None

    def __post_init__(self) -> None:
        if self.target is not None:
            check_count("target", self.target, 0)

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """One row for everybody."""
        if known.is_hopeless:
            return None
        target = int(known.sane.nonzero()[0]) if self.target is None else self.target
        if not 0 <= target < len(known.models) or known.liars[target]:
            raise ValueError(f"target must be a benign client from 0 to {len(known.models) - 1}, found {target}")
        return Lies.to_all(known.models[target].clone())
