"""Median: the middle value of each coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
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

    >>> received = torch.tensor([[1.0, 5.0], [2.0, 4.0], [99.0, 3.0], [4.0, -99.0]])
    >>> eq.Median()(torch.zeros(2), received).model
    tensor([3.0000, 3.5000])
    """

    guarantee: ClassVar[Neighbors] = Neighbors(2, 1)
    needs: ClassVar[tuple[str, ...]] = ()

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Trim all but one or two values; weights differ by coordinate, so there are none."""
        # The kernel clamps the trim to (count - 1) // 2, which leaves one or two middle values. The
        # number of finite messages need not be known for that.
        trim = torch.full((inbox.n,), inbox.k, device=own.device)
        # A median is not a weighted sum with one weight per message, so there are no weights.
        return Aggregated(kernels.trimmed_mean(own, inbox, trim, out=out), None, state)
