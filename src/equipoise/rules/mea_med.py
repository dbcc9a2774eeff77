"""MeaMed: the mean of the values of each coordinate that are nearest to the median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import Rule, as_tolerated
from equipoise.types import Aggregated


@dataclass(frozen=True)
class MeaMed(Rule):
    r"""The mean of the :math:`|N_i| - f_i` values of each coordinate nearest to their median.

    .. math:: \mathrm{AGG}_i[c] = \frac{1}{|N_i| - f_i} \sum_{j \in B_c} w_j[c]

    where :math:`B_c` are the :math:`|N_i| - f_i` neighbors whose values of coordinate c are closest
    to the median of the received values. Xie, Koyejo and Gupta, *Generalized Byzantine-tolerant
    SGD*, 2018, called mean around median there. The median of an even number is the mean of the two
    middle values. Of two values equally far from it, the smaller one counts. Here :math:`f_i` is at
    most :math:`\lfloor (|N_i| - 1) / 2 \rfloor`, as in `TrimmedMean`.

    All malicious values that stay within the range of benign ones count in full.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i \ge |N_i|`, where malicious values can decide,
            instead of clamping with a warning.

    >>> received = torch.tensor([[1.0, 9.0], [2.0, 2.0], [3.0, 4.0], [100.0, -7.0]])
    >>> eq.MeaMed(tolerated=1)(torch.zeros(2), received).model
    tensor([2., 5.])
    """

    coordinatewise: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        tolerated: int | Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Average around the median; weights differ by coordinate, so there are none."""
        f = as_tolerated(self, tolerated, inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=self.strict)
        amount = inbox.counts - f.minimum((inbox.counts - 1) // 2)
        model = kernels.mean_around_median(own, inbox, inbox.present, amount, out=out)
        return Aggregated(model, None, state)
