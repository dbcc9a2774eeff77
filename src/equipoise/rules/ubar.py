"""UBAR: the nearest neighbors, if they have a lower loss on the client's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice
from equipoise.messages import Inbox
from equipoise.rules._candidate_losses import candidate_losses
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated, uniform
from equipoise.topology import NoTheorem


@dataclass(frozen=True)
class UBAR(WeightedRule):
    r"""The mean of the nearest received models whose loss on own data is lower than that of own.

    .. math:: \mathrm{AGG}_i = \frac{1}{|N_i^r|} \sum_{j \in N_i^r} w_j, \qquad
              N_i^r = \{j \in N_i^s : \ell_i(w_j) < \ell_i(w_i)\}

    where :math:`N_i^s` are the :math:`|N_i| - f_i` neighbors closest to own. Guo et al.,
    *Byzantine-Resilient Decentralized Stochastic Gradient Descent*, 2021, as in section 6.1.2 of
    the BALANCE paper. Pass ``loss_of`` at the call. It evaluates all models on the same examples of
    the receiver, and must not modify them. A model whose loss is NaN is never accepted.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        empty: the aggregate if no loss is lower, which the papers define differently: ``"best"``,
            the nearest neighbor with the lowest loss (Guo et al.); ``"closest"``, the closest
            neighbor (code of He et al.); or ``"own"``.
        strict: raise an error if :math:`f_i \ge |N_i|`, where no message is accepted, instead of a
            warning.

    >>> loss_of = lambda models: models.square().sum(1)
    >>> received = torch.tensor([[0.5], [1.5], [-9.0]])
    >>> out = eq.UBAR(tolerated=1)(torch.ones(1), received, loss_of=loss_of)
    >>> out.model, out.weights
    (tensor([0.5000]), tensor([1., 0., 0.]))
    """

    guarantee: ClassVar[NoTheorem] = NoTheorem("losses decide which models count")
    needs: ClassVar[tuple[str, ...]] = ("loss_of", "tolerated")

    tolerated: int | None = None
    empty: Literal["best", "closest", "own"] = "best"
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)
        check_choice("empty", self.empty, ("best", "closest", "own"))

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give the messages that pass both stages equal weights."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, degrees - 1, degrees, strict=self.strict)
        # First stage: the nearest messages N_i^s. Only these are evaluated, since losses cost most.
        distances, near = self._nearest(own, inbox, f)
        losses, own_losses = candidate_losses(inputs["loss_of"], own, inbox, near)
        # Second stage: strictly lower, so that a copy of own is not accepted.
        accepted = near & (losses < own_losses[:, None])
        if self.empty != "own":
            order = losses if self.empty == "best" else distances
            ranks = kernels.rank_with_ties(order, inbox.senders)
            # An infinite loss is NaN or absent, and must not be the best one.
            first = near & (ranks == 0) & order.isfinite()
            accepted |= first & ~accepted.any(1, keepdim=True)
        return uniform(accepted)

    def _nearest(self, own: Tensor, inbox: Inbox, tolerated: Tensor) -> tuple[Tensor, Tensor]:
        """(n, k) distances, and which messages are the nearest, all but ``tolerated`` (n,)."""
        distances, norms = kernels.distances(own, inbox)
        # |N_i| - f_i, of the messages that are present. It may be negative; then none is near.
        amount = inbox.counts - tolerated
        ranks = [amount - 1]
        if self.empty == "closest":
            # The closest message decides here as well, so ties with it must be exact, too.
            ranks.append(torch.zeros_like(amount))
        distances = kernels.exact_near_ranks(own, inbox, norms, distances, *ranks)
        place = kernels.rank_with_ties(distances, inbox.senders)
        return distances, (place < amount[:, None]) & inbox.present
