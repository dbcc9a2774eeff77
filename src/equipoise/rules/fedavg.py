"""FedAvg: the mean of the received models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_flag, describe
from equipoise.messages import Inbox
from equipoise.rules.base import Rule, as_diagnostic, combine_present, uniform
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
        """Average all messages that are present."""
        model, weights = combine_present(
            own, inbox, lambda accepted: self._weights(inbox, accepted, samples), out=out
        )
        return Aggregated(model, as_diagnostic(weights, own), state)

    def _weights(self, inbox: Inbox, accepted: Tensor, samples: Tensor | None) -> Tensor:
        """(n, k) equal weights, or the senders' shares of the training examples."""
        if not self.weighted:
            return uniform(accepted)
        counts = _as_samples(samples, inbox)
        # Absent slots may hold any sender, so they look up client 0, and count for 0.
        sizes = counts[inbox.senders.where(accepted, 0)].where(accepted, 0.0)
        total = kernels.row_sums(sizes)[:, None]
        # If no accepted sender has an example, own gets the whole weight; 0 / 0 would be NaN.
        return (sizes / total).where(total > 0, 0.0)


def _as_samples(samples: Tensor | None, inbox: Inbox) -> Tensor:
    """The number of examples of each client, float64; raise unless they are valid."""
    # Samples are looked up by client id, so the largest id decides how many are needed.
    clients = int(inbox.senders[inbox.mask].max()) + 1 if inbox.mask.any() else 1
    counts = torch.as_tensor(samples, device=inbox.slots.device).double()
    if counts.dim() != 1 or len(counts) < clients:
        expected = f"one number per client, at least {clients}"
        raise ValueError(f"samples must have {expected}, found {describe(counts)}")
    # Negative counts would give weights outside of [0, 1].
    if not (counts.isfinite() & (counts >= 0)).all():
        raise ValueError(f"samples must be finite and >= 0, found {counts.min()} to {counts.max()}")
    return counts
