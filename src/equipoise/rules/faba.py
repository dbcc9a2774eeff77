"""FABA: the mean without the messages that are farthest from it, dropped one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated
from equipoise.topology import Neighbors


@dataclass(frozen=True)
class FABA(WeightedRule):
    r"""Drop the message farthest from the mean of the messages, :math:`f_i` times; average.

    .. math:: \mathrm{AGG}_i = \frac{1}{|U_f| + 1} \Bigl(w_i + \sum_{j \in U_f} w_j\Bigr), \qquad
              U_{s+1} = U_s \smallsetminus \arg\max_{j \in U_s}
              \Bigl\|w_j - \frac{1}{|U_s|} \sum_{l \in U_s} w_l\Bigr\|

    from :math:`U_0 = N_i`. Xia et al., *FABA: An Algorithm for Fast Aggregation against Byzantine
    Attacks in Distributed Neural Networks*, IJCAI 2019, with a server; here in the decentralized
    form of Wu, Chen and Ling, 2023 (see `IOS`), where own is averaged in at the end, and has no
    part in the means before. Of equally far messages, the one with the highest client id is
    dropped. The aggregate contains own: mix it with ``alpha=0``.

    With :math:`|N_i| > 2 f_i`, the mean of :math:`U_f` is within
    :math:`R \, |N_i| / (|N_i| - 2 f_i)` of the mean of the benign messages, where R is the largest
    distance of one of them from it, for the reason given in `IOS`.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i \ge |N_i|`, where malicious messages may outnumber
            the benign ones, instead of a warning. If all messages are dropped, the aggregate is
            own.

    >>> received = torch.tensor([[1.0], [2.0], [90.0]])
    >>> out = eq.FABA(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.]), tensor([0.3333, 0.3333, 0.0000]))
    """

    guarantee: ClassVar[Neighbors] = Neighbors(2, 1)
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give own and the remaining messages equal weights."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=self.strict)
        kept = kernels.without_farthest(own, inbox, Tensor.double, f, include_own=False)
        return kept / (kept.sum(1, keepdim=True) + 1)
