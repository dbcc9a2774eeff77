"""Variant II of BALANCE: accept the closer half of the messages, if it is close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_number
from equipoise.messages import Inbox
from equipoise.rules.base import WeightedRule, uniform
from equipoise.topology import NoTheorem


@dataclass(frozen=True)
class BalanceMedian(WeightedRule):
    r"""The mean of the received models up to the median of the relative distances, and up to gamma.

    .. math:: S_i = \{j \in N_i : q_j \le \min(\mathrm{med}(q), \gamma)\}, \qquad
              q_j = \|w_i - w_j\| / \|w_i\|

    Variant II in section 7 of Fang et al., *Byzantine-Robust Decentralized Federated Learning*,
    CCS 2024. For an even number of messages the median is the lower of the two middle values,
    which accepts the same set as their mean. If no model is accepted, the aggregate is own. If your
    parameters are all zero, BalanceMedian rejects every non-zero message.

    Args:
        gamma: upper limit of the relative distance. It protects clients whose neighbors are mostly
            malicious.

    >>> received = torch.tensor([[3.0, 5.0], [3.0, 4.5], [3.0, 4.1], [30.0, 40.0]])
    >>> eq.BalanceMedian(gamma=0.3)(torch.tensor([3.0, 4.0]), received).weights
    tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """

    guarantee: ClassVar[NoTheorem] = NoTheorem("the theorems of its paper are about Balance")
    isotropic: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()

    gamma: float = 0.3

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)

    def weigh(self, own: Tensor, inbox: Inbox, **_: Any) -> Tensor:
        """Give the accepted messages equal weights."""
        distances, norms = kernels.distances(own, inbox)
        # All q_j of a client have the same denominator, so the ranks of distances are those of q.
        # Absent messages are infinitely far away, so they come after all others.
        middle = (inbox.counts - 1) // 2
        distances = kernels.exact_near_ranks(own, inbox, norms, distances, middle)
        # Without gamma, a malicious majority would choose the median, and accept itself.
        within_gamma = kernels.within(own, inbox, norms, distances, float(self.gamma))
        return uniform(within_gamma & (distances <= kernels.value_at_rank(distances, middle)))
