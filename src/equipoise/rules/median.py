"""Median: the middle value of each coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import Rule
from equipoise.topology import Neighbors
from equipoise.types import Aggregated


@dataclass(frozen=True)
class Median(Rule):
    r"""The coordinate-wise median of the received models.

    .. math:: \mathrm{AGG}_i[c] = \mathrm{med}\{w_j[c] : j \in N_i\}

    Yin et al., *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*,
    ICML 2018. For an even number of messages, it is the mean of the two middle values;
    ``torch.median`` returns the lower one.

    Args:
        weighted: weigh each message by its sender's number of training examples, which is passed at
            the call as ``samples``, a tensor indexed by client id: the smallest value up to which
            at least half of the weight lies or, at exactly half, the mean of it and the next.
        cap: with ``weighted``, no message has more than this multiple of an equal weight. A sender
            may claim any number of examples; beyond the cap, a claim gains nothing. Malicious
            neighbors decide nothing while ``cap`` times their share of the neighbors is below 1/2.

    >>> received = torch.tensor([[1.0, 5.0], [2.0, 4.0], [99.0, 3.0], [4.0, -99.0]])
    >>> eq.Median()(torch.zeros(2), received).model
    tensor([3.0000, 3.5000])
    """

    guarantee: ClassVar[Neighbors] = Neighbors(2, 1)

    weighted: bool = False
    cap: float = 2.0

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
        """Trim all but one or two values; weights differ by coordinate, so there are none."""
        # A median is not a weighted sum with one weight per message, so there are no weights.
        if self.weighted:
            shares = message_shares(inbox, inbox.present, samples, self.cap)
            half = torch.full((inbox.n,), 0.5, dtype=torch.float64, device=own.device)
            model = kernels.weighted_trimmed_mean(own, inbox, shares, half, out=out)
            return Aggregated(model, None, state)
        # The kernel clamps the trim to (count - 1) // 2, which leaves one or two middle values. The
        # number of finite messages need not be known for that.
        trim = torch.full((inbox.n,), inbox.k, device=own.device)
        return Aggregated(kernels.trimmed_mean(own, inbox, trim, out=out), None, state)
