"""RTC: gossip without the farthest messages, the others clipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._gossip import (
    adaptive_radius,
    all_but_farthest,
    chosen_exactly,
    edges_of,
    keep_broken,
)
from equipoise.rules._guarantees import check_tolerance
from equipoise.rules.base import WeightedRule
from equipoise.topology import Spectral


@dataclass(frozen=True)
class RTC(WeightedRule):
    r"""Gossip: remove the messages farthest from own, then clip the others to a ball around own.

    .. math:: \mathrm{AGG}_i = w_i + \sum_{j \in S_i} W_{ij}
              \min\Bigl(1, \frac{\tau_i}{\|w_j - w_i\|}\Bigr) (w_j - w_i), \qquad
              \tau_i^2 = \frac{1}{b_i} \sum_{j \in S_i} W_{ij} \|w_j - w_i\|^2

    where :math:`b_i` is the weight that malicious neighbors may have, that of the :math:`f_i`
    heaviest. Yang and Ghaderi, *Byzantine-Robust Decentralized Learning via Remove-then-Clip
    Aggregation*, AAAI 2024.

    Public implementations contradict each other, so this is one reading. The farthest messages are
    removed one by one as long as they weigh at most :math:`b_i` together; other code goes on until
    they weigh more, or measures from the mean. :math:`S_i` are the messages that remain. A removed
    message counts as own. Messages are clipped by their distance, not by its square. With equal
    weights, the :math:`f_i` farthest are removed. With :math:`f_i = 0` it is `Gossip`. Equal
    distances are kept by ascending client id.

    The weights are the round input ``gossip``; without it, those of own and the messages are equal.
    The aggregate contains own: mix it with ``alpha=0``.

    Let :math:`F_i` be the move, the aggregate minus own. If all messages have the same weight, then
    for every set S of all but :math:`f_i` neighbors, such as the benign ones,
    :math:`\|F_i - \sum_S W_{ij} (w_j - w_i)\|^2 \le 4 b_i \sum_S W_{ij} \|w_j - w_i\|^2`, whatever
    the others sent: as for `GTS`, since clipping costs no more. If weights differ, no constant
    holds: a light benign message that is the farthest may be removed in place of a heavy lie.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`f_i` neighbors may have the weight of all, where every
            message is removed, instead of a warning.

    >>> received = torch.tensor([[1.0], [1.0], [1.0], [6.0], [90.0], [90.0]])
    >>> out = eq.RTC(tolerated=2)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.0594]), tensor([0.1429, 0.1429, 0.1429, 0.1051, 0.0000, 0.0000]))
    """

    # As for ClippedGossip, but the messages of S outside of S_i, at distances of at least e, are
    # lost as a whole: the move is wrong by m min(e, 1) + (1 - m e^2) / 4 + sqrt(m D) at most, whose
    # square is at most 4 times the sum over S, as for m = e = D = 1.
    guarantee: ClassVar[Spectral] = Spectral(4.0, equal_weights=True)
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated", "gossip")

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Take the gossip weights of the messages that remain, times the factors that clip them."""
        edges = edges_of(self, own, inbox, inputs, share=1)
        remaining = chosen_exactly(all_but_farthest, own, inbox, edges, edges.tolerated)
        radius = adaptive_radius(remaining, edges.distances, edges.tolerated)
        clipped = remaining * kernels.clip_factors(radius, edges.distances)
        return keep_broken(clipped, edges.norms)
