"""Trimmed mean: the mean of each coordinate without its extreme values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import Rule, as_tolerated
from equipoise.topology import Trimming
from equipoise.types import Aggregated


@dataclass(frozen=True)
class TrimmedMean(Rule):
    r"""The mean of each coordinate without its :math:`b` largest and :math:`b` smallest values.

    .. math:: \mathrm{AGG}_i[c] = \frac{1}{|N_i| - 2b} \sum_{r=b+1}^{|N_i|-b} w_{(r)}[c], \qquad
              b = f_i

    where :math:`w_{(r)}[c]` is the r-th smallest received value of coordinate c. Yin et al.,
    *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, ICML 2018. The
    papers do not define the case in which no value would be left. Here :math:`b` is at most
    :math:`\lfloor (|N_i| - 1) / 2 \rfloor`, which gives the coordinate-wise median.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i \ge |N_i|`, where malicious values can decide,
            instead of clamping with a warning.
        weighted: weigh each message by its sender's number of training examples, which is passed at
            the call as ``samples``, a tensor indexed by client id. The :math:`f_i` largest weights
            are cut from both ends; the weight of a value at the boundary is cut in part.
        cap: with ``weighted``, no message has more than this multiple of an equal weight. A sender
            may claim any number of examples; beyond the cap, a claim gains nothing.

    >>> received = torch.tensor([[1.0, 9.0], [2.0, 2.0], [3.0, 3.0], [100.0, -7.0]])
    >>> eq.TrimmedMean(tolerated=1)(torch.zeros(2), received).model
    tensor([2.5000, 2.5000])
    """

    guarantee: ClassVar[Trimming] = Trimming()

    tolerated: int | None = None
    strict: bool = False
    weighted: bool = False
    cap: float = 2.0

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)
        check_weighting(self.weighted, self.cap)

    @property
    def needs(self) -> tuple[str, ...]:
        """The tolerated number, and the number of examples if messages are weighted by it."""
        return ("tolerated", "samples") if self.weighted else ("tolerated",)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        tolerated: int | Tensor | None = None,
        samples: Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Trim and average; weights differ by coordinate, so there are none."""
        f = as_tolerated(self, tolerated, inbox)
        if self.weighted:
            model = self._aggregate_weighted(own, inbox, f, samples, out)
            return Aggregated(model, None, state)
        # 2 f_i < |N_i| means f_i <= (|N_i| - 1) // 2. Messages that are not finite count as well:
        # they may come from the f_i malicious neighbors.
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=self.strict)
        # The kernel clamps f to (count - 1) // 2 of the finite messages, so that one or two values
        # are left even if f is too large.
        return Aggregated(kernels.trimmed_mean(own, inbox, f, out=out), None, state)

    def _aggregate_weighted(
        self, own: Tensor, inbox: Inbox, f: Tensor, samples: Tensor | None, out: Tensor | None
    ) -> Tensor:
        shares = message_shares(inbox, inbox.present, samples, self.cap)
        # Cut as much as any f senders can have: which ones are malicious is unknown.
        cuts = torch.cat([shares.new_zeros(inbox.n, 1), _largest_first(shares).cumsum(1)], 1)
        below_half = (cuts[:, 1:] < 0.5).sum(1)
        check_guarantee(f, below_half, inbox.mask.sum(1), strict=self.strict)
        cut = cuts.gather(1, f.clamp_max(inbox.k)[:, None])[:, 0]
        return kernels.weighted_trimmed_mean(own, inbox, shares, cut, out=out)


def _largest_first(weights: Tensor) -> Tensor:
    return weights.sort(dim=1, descending=True).values
