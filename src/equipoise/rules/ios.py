"""IOS: gossip without the messages that are farthest from the mean, dropped one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._gossip import gossip_weights
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated, own_share
from equipoise.topology import Minority


@dataclass(frozen=True)
class IOS(WeightedRule):
    r"""Iterative outlier scissor: drop the message farthest from the mean, :math:`f_i` times.

    .. math:: \mathrm{AGG}_i = c_{U_f}, \qquad
              c_U = \frac{W_{ii} w_i + \sum_{j \in U} W_{ij} w_j}{W_{ii} + \sum_{j \in U} W_{ij}},
              \qquad U_{s+1} = U_s \smallsetminus \arg\max_{j \in U_s} \|w_j - c_{U_s}\|

    from :math:`U_0 = N_i`. Own is never dropped. Wu, Chen and Ling, *Byzantine-Resilient
    Decentralized Stochastic Optimization With Robust Aggregation Rules*, IEEE Transactions on
    Signal Processing, 2023. Of equally far messages, the one with the highest client id is dropped.
    A message of weight 0 counts as absent.

    The weights are the round input ``gossip``; without it, those of own and the messages are equal.
    The aggregate contains own: mix it with ``alpha=0``.

    If the :math:`f_i` heaviest messages weigh :math:`b < 1/2`, the aggregate is within
    :math:`R / (1 - 2 b)` of the weighted mean of own and the benign messages, where R is the
    largest distance of one of them from that mean. For when the first benign message is dropped, no
    other one is farther from :math:`c_U`, which the lies weigh too little to have drawn far away.
    The theorem of the paper, about clients on a graph, compares such a constant with the spectral
    gap; `Topology.diagnose` does not check it.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i > |N_i|`, where malicious clients may outnumber the
            benign ones with own among them, instead of a warning. If all messages are dropped, the
            aggregate is own.

    >>> received = torch.tensor([[1.0], [2.0], [90.0]])
    >>> out = eq.IOS(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.]), tensor([0.3333, 0.3333, 0.0000]))
    """

    guarantee: ClassVar[Minority] = Minority()
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated", "gossip")

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Divide the weights of the remaining messages by their sum with that of own."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, degrees // 2, degrees, strict=self.strict)
        gossip = inputs.get("gossip")

        def weigh(accepted: Tensor) -> Tensor:
            return gossip_weights(gossip, inbox, accepted)

        kept = kernels.without_farthest(own, inbox, weigh, f, include_own=True)
        total = (own_share(weigh(inbox.present)) + kernels.row_sums(kept))[:, None]
        # Without a message, or if the only ones with weight are dropped, own has the whole weight.
        return (kept / total).where(total > 0, 0.0)
