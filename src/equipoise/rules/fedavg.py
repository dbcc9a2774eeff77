"""FedAvg: the mean of the received models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import Rule, as_diagnostic, own_share
from equipoise.topology import NoMalicious
from equipoise.types import Aggregated


@dataclass(frozen=True)
class FedAvg(Rule):
    r"""The (weighted) mean of the received models, without any defense.

    .. math:: \mathrm{AGG}_i = \sum_{j \in N_i} p_j w_j, \qquad
              p_j = 1 / |N_i| \text{ or } |D_j| / \sum_l |D_l|

    McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*,
    AISTATS 2017.

    Args:
        weighted: weigh each message by its sender's number of training examples. Pass these at the
            call as ``samples``, a tensor indexed by client id. The BALANCE paper says "weighted
            average" without defining the weights; the code of its authors takes the plain mean,
            which is the default here.
        cap: with ``weighted``, no message has more than this multiple of an equal weight. A sender
            may claim any number of examples; beyond the cap, a claim gains nothing.

    >>> received = torch.tensor([[0.0, 2.0], [4.0, 2.0]])
    >>> eq.FedAvg()(torch.zeros(2), received).model
    tensor([2., 2.])
    >>> samples = torch.tensor([30, 10])
    >>> eq.FedAvg(weighted=True)(torch.zeros(2), received, samples=samples).model
    tensor([1., 2.])
    """

    guarantee: ClassVar[NoMalicious] = NoMalicious()
    isotropic: ClassVar[bool] = True

    weighted: bool = False
    cap: float = math.inf

    def __post_init__(self) -> None:
        check_weighting(self.weighted, self.cap)

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of examples of each client, if messages are weighted by it."""
        return ("samples",) if self.weighted else ()

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        samples: Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Average all messages; if the mean is not finite, then only the finite ones."""
        model = None
        # The mean of all messages is finite only if all of them are, which saves a pass that looks
        # for NaN and infinity. In float64, however, finite models can have norms that overflow.
        if not inbox.keep_nonfinite and own.dtype != torch.float64:
            weights = self._weights(inbox, inbox.mask, samples)
            share = own_share(weights)
            model = kernels.combine_if_finite(own, share, inbox, weights, out=out)
        if model is None:
            weights = self._weights(inbox, inbox.present, samples)
            model = kernels.combine(own, own_share(weights), inbox, weights, out=out)
        return Aggregated(model, as_diagnostic(weights, own), state)

    def _weights(self, inbox: Inbox, accepted: Tensor, samples: Tensor | None) -> Tensor:
        """(n, k) equal weights, or the senders' shares of the training examples."""
        return message_shares(inbox, accepted, samples if self.weighted else None, self.cap)
