"""FedAvg: the mean of what was received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_flag, describe
from equipoise.messages import Inbox
from equipoise.rules.base import Rule, as_diagnostic, needed, own_share, uniform
from equipoise.types import Aggregated


@dataclass(frozen=True)
class FedAvg(Rule):
    r"""The (weighted) mean of the received models, with no defence.

    .. math:: \mathrm{AGG}_i = \sum_{j \in N_i} p_j w_j, \qquad p_j = 1 / |N_i| \text{ or } |D_j| / \sum_l |D_l|

    McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

    Args:
        weighted: weigh each message by its sender's number of training examples, given at the call as
            ``samples``, a tensor that is looked up by sender id. The BALANCE paper says "weighted average" and leaves
            the weights open; its group's code takes the plain mean, the default here.

    >>> received = torch.tensor([[0.0, 2.0], [4.0, 2.0]])
    >>> eq.FedAvg()(torch.zeros(2), received).model
    tensor([2., 2.])
    >>> samples = torch.tensor([30, 10])
    >>> eq.FedAvg(weighted=True)(torch.zeros(2), received, samples=samples).model
    tensor([1., 2.])
    """

    isotropic: ClassVar[bool] = True

    weighted: bool = False

    def __post_init__(self) -> None:
        check_flag("weighted", self.weighted)

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
        weights, model = self._weights(inbox, inbox.mask, samples), None
        if not inbox.keep_nonfinite and own.dtype != torch.float64:  # there, norms can overflow in finite models
            model = kernels.combine_if_finite(own, own_share(weights), inbox, weights, out=out)
        if model is None:
            weights = self._weights(inbox, inbox.present, samples)
            model = kernels.combine(own, own_share(weights), inbox, weights, out=out)
        return Aggregated(model, as_diagnostic(weights, own), state)

    def _weights(self, inbox: Inbox, taken: Tensor, samples: Tensor | None) -> Tensor:
        """(n, k) equal weights of the messages that are taken, or their senders' shares of the training examples."""
        if not self.weighted:
            return uniform(taken)
        (samples,) = needed(self, samples=samples)
        sizes = _checked(samples, inbox)[inbox.senders.where(taken, 0)].where(taken, 0.0)
        total = sizes.sum(1, keepdim=True)
        return (sizes / total).where(total > 0, 0.0)


def _checked(samples: Tensor, inbox: Inbox) -> Tensor:
    ids = int(inbox.senders[inbox.mask].max()) + 1 if inbox.mask.any() else 0
    counts = torch.as_tensor(samples, device=inbox.slots.device).double()
    if counts.dim() != 1 or len(counts) < max(ids, 1):
        raise ValueError(f"samples must have one number per client, at least {max(ids, 1)}, found {describe(counts)}")
    if not (counts.isfinite() & (counts >= 0)).all():
        raise ValueError(f"samples must be finite and >= 0, found {counts.min()} to {counts.max()}")
    return counts
