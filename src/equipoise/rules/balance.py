"""BALANCE: accept models that are close to own, with a limit that falls as training proceeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise._utils.formatting import as_call
from equipoise._utils.validation import check_number
from equipoise.messages import Inbox
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import WeightedRule
from equipoise.topology import BenignConnected


@dataclass(frozen=True)
class Balance(WeightedRule):
    r"""The mean of the received models that are close to own.

    .. math:: \mathrm{AGG}_i = \frac{1}{|S_i|} \sum_{j \in S_i} w_j, \qquad
              S_i = \{j \in N_i : \|w_i - w_j\| \le \gamma \, e^{-\kappa \lambda(t)} \, \|w_i\|\}

    Fang et al., *Byzantine-Robust Decentralized Federated Learning*, CCS 2024, equations 3 and 4
    and Algorithm 3. Variant I of its section 7 is ``Balance(kappa=0)``. Norms run over the whole
    flattened model. The comparison is inclusive and has the accuracy of float64.

    The paper does not define the aggregate if no model is accepted. Here it is own, never the
    closest message, which would let an attacker in whenever all messages are rejected. If your
    parameters are all zero, Balance rejects every non-zero message. If they are not finite, it
    rejects every message.

    Args:
        gamma: upper limit of the relative distance.
        kappa: how fast the limit falls.
        progress: :math:`\lambda(t, T)`, non-negative and increasing in t; by default t / T.
        weighted: weigh the accepted messages by their senders' numbers of training examples, which
            are passed at the call as ``samples``, a tensor indexed by client id.
        cap: with ``weighted``, no message has more than this multiple of an equal weight. A sender
            may claim any number of examples; beyond the cap, a claim gains nothing.

    >>> own = torch.tensor([3.0, 4.0])
    >>> received = torch.tensor([[3.0, 5.0], [3.0, 6.0], [30.0, 40.0]])
    >>> rule = eq.Balance(gamma=0.4)
    >>> rule(own, received, t=0, total=10).weights
    tensor([0.5000, 0.5000, 0.0000])
    >>> rule(own, received, t=9, total=10).weights
    tensor([1., 0., 0.])
    >>> rule
    Balance(gamma=0.4, kappa=1.0, progress=None, weighted=False, cap=2.0)
    """

    # Assumption 5 of the paper.
    guarantee: ClassVar[BenignConnected] = BenignConnected(
        "assumes equal distributions; its error bound contains gamma"
    )
    isotropic: ClassVar[bool] = True

    gamma: float = 0.3
    kappa: float = 1.0
    progress: Callable[[int, int], float] | None = None
    weighted: bool = False
    cap: float = 2.0

    __repr__ = as_call

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)
        check_number("kappa", self.kappa)
        if self.progress is not None and not callable(self.progress):
            raise ValueError(f"progress must be a function of t and total, found {self.progress!r}")
        check_weighting(self.weighted, self.cap)

    @property
    def needs(self) -> tuple[str, ...]:
        """The round, unless the limit is constant, and the samples if they are weights."""
        # With kappa = 0, variant I of the paper, the limit is gamma in all rounds.
        rounds = ("t", "total") if self.kappa > 0 else ()
        return (*rounds, "samples") if self.weighted else rounds

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give the accepted messages equal weights, or those of their samples."""
        # gamma * exp(-kappa * lambda(t)): the acceptance radius, relative to the norm of own.
        limit = float(self.gamma)
        if self.kappa > 0:
            limit *= self._decay(inputs["t"], inputs["total"])
        # Close to the limit, distances are computed in float64: otherwise an attacker could place a
        # message where rounding decides.
        accepted = kernels.close_messages(own, inbox, limit)
        samples = inputs["samples"] if self.weighted else None
        return message_shares(inbox, accepted, samples, self.cap)

    def _decay(self, t: int, total: int) -> float:
        if t >= total:
            raise ValueError(f"t must be a round from 0 to total - 1 = {total - 1}, found {t}")
        progress = t / total if self.progress is None else self.progress(t, total)
        # Written as a negation, so that NaN is an error as well. A negative progress would raise
        # the limit above gamma, and with it the bound on the influence of an attacker.
        if not progress >= 0:
            raise ValueError(
                f"progress must be a number >= 0, found {progress} at t={t}, total={total}"
            )
        return math.exp(-self.kappa * progress)
