"""Variant II of BALANCE: accept the closer half, if it is close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_number
from equipoise.messages import Inbox
from equipoise.rules.base import WeightedRule, uniform


@dataclass(frozen=True)
class BalanceMedian(WeightedRule):
    r"""The mean of the received models whose relative distance is at most the median of all, and at most gamma.

    .. math:: S_i = \{j \in N_i : q_j \le \min(\mathrm{med}(q), \gamma)\}, \qquad q_j = \|w_i - w_j\| / \|w_i\|

    Variant II in section 7 of Fang et al., *Byzantine-Robust Decentralized Federated Learning*, CCS 2024. Of an even
    number of messages the lower middle value stands for the median, which accepts the same set as the mean of the
    two. When none is accepted the aggregate is own. An own of all zeros accepts only zeros.

    Args:
        gamma: upper limit of the relative distance, for when most neighbours are malicious.

    >>> received = torch.tensor([[3.0, 5.0], [3.0, 4.5], [3.0, 4.1], [30.0, 40.0]])
    >>> eq.BalanceMedian(gamma=0.3)(torch.tensor([3.0, 4.0]), received).weights
    tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """

    isotropic: ClassVar[bool] = True

    gamma: float = 0.3

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)

    def weigh(self, own: Tensor, inbox: Inbox, **_: Any) -> Tensor:
        """Equal weights for the accepted messages."""
        apart, sizes = kernels.distances(own, inbox)
        if inbox.k == 0:
            return apart
        apart = kernels.sharpened(own, inbox, sizes, apart, _median(apart, inbox)[:, 0])
        return uniform(kernels.within(own, inbox, sizes, apart, float(self.gamma)) & (apart <= _median(apart, inbox)))


def _median(apart: Tensor, inbox: Inbox) -> Tensor:
    """(n, 1) the lower middle of the distances to the messages that are present, the first ones when sorted."""
    return apart.sort(dim=1).values.gather(1, (inbox.counts - 1).clamp_min(0)[:, None] // 2)
