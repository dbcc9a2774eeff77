"""Krum: the received model that is closest to its nearest neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated
from equipoise.topology import Neighbors


@dataclass(frozen=True)
class Krum(WeightedRule):
    r"""The received model with the smallest sum of squared distances to its nearest other models.

    .. math:: \mathrm{AGG}_i = \arg\min_{w_j, j \in N_i}
              \sum_{l \in \text{nearest}_q(j)} \|w_j - w_l\|^2, \qquad q = |N_i| - f_i - 2

    Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*,
    NeurIPS 2017, as in section 6.1.2 of the BALANCE paper: own is neither a candidate nor a
    neighbor. The guarantee requires :math:`|N_i| \ge 2 f_i + 3`. Beyond it, Krum still returns a
    result, with a warning: :math:`q` is clamped to the range from 1 to :math:`|N_i| - 1`, and a
    single message is accepted. Equal scores go to the lowest client id. With two neighbors, as on
    a ring, scores are always equal.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`|N_i| < 2 f_i + 3`, instead of a warning.

    >>> received = torch.tensor([[0.0], [0.1], [0.3], [0.6], [9.0]])
    >>> out = eq.Krum(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([0.1000]), tensor([0., 1., 0., 0., 0.]))
    """

    guarantee: ClassVar[Neighbors] = Neighbors(2, 3)
    isotropic: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give the message with the lowest score the weight 1."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        # The guarantee is about neighbors, not about finite messages: see `check_guarantee`.
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 3) // 2, degrees, strict=self.strict)
        weights = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
        # q = |N_i| - f - 2 leaves out the message itself, and f + 1 others.
        for group, scores in kernels.nearest_sums(own, inbox, excluded=f + 2):
            # Equal scores go to the lowest client id, so that an attacker gains nothing from the
            # order in which messages arrive.
            is_lowest = scores == scores.amin(1, keepdim=True)
            senders = inbox.senders[group.receivers[:, None], group.columns]
            first = senders.where(is_lowest, torch.iinfo(torch.int64).max).argmin(1)
            weights[group.receivers, group.columns.gather(1, first[:, None])[:, 0]] = 1
        return weights
