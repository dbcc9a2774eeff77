"""ClippedGossip: gossip with messages clipped to a radius that adapts to their distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._gossip import adaptive_radius, edges_of, keep_broken, nearest
from equipoise.rules._guarantees import check_tolerance
from equipoise.rules.base import WeightedRule
from equipoise.topology import Spectral


@dataclass(frozen=True)
class ClippedGossip(WeightedRule):
    r"""Gossip, each message clipped to a ball around own whose radius adapts to the distances.

    .. math:: \mathrm{AGG}_i = w_i + \sum_{j \in N_i} W_{ij}
              \min\Bigl(1, \frac{\tau_i}{\|w_j - w_i\|}\Bigr) (w_j - w_i), \qquad
              \tau_i^2 = \frac{1}{b_i} \sum_{j \in S_i} W_{ij} \|w_j - w_i\|^2

    where :math:`b_i` is the weight that malicious neighbors may have, that of the :math:`f_i`
    heaviest, and :math:`S_i` are the neighbors nearest to own, of total weight
    :math:`\sum_j W_{ij} - b_i`. He, Karimireddy and Jaggi, *Byzantine-Robust Decentralized Learning
    via ClippedGossip*, 2022. If weights differ, no set of neighbors may have exactly that weight;
    here a neighbor at the boundary counts with the part that fits, so that a malicious one cannot
    raise the radius beyond that of the benign ones. With :math:`f_i = 0`, nothing is clipped, as in
    `Gossip`; with all neighbors tolerated, the radius is 0. For a fixed radius, use
    ``SCClip(contains_own=True)``.

    The weights are the round input ``gossip``; without it, those of own and the messages are equal.
    The aggregate contains own: mix it with ``alpha=0``.

    Let :math:`F_i` be the move, the aggregate minus own. For every set S of neighbors that leaves
    out a weight of at most :math:`b_i`, such as the benign ones,
    :math:`\|F_i - \sum_S W_{ij} (w_j - w_i)\|^2 \le \frac{25}{16} b_i \sum_S W_{ij}
    \|w_j - w_i\|^2`, whatever the others sent.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`f_i` neighbors may have the weight of all, where every
            message is clipped to own, instead of a warning.

    >>> received = torch.tensor([[1.0], [1.0], [1.0], [90.0]])
    >>> out = eq.ClippedGossip(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([0.9464]), tensor([0.2000, 0.2000, 0.2000, 0.0038]))
    """

    # Let b = tau = 1, m the weight of S outside of S_i, and D its part of the sum over S. S_i then
    # has lies of weight m at most; let e be their distance, so that D >= m e^2. The sum over S is
    # 1 - m e^2 + D. Lies move the aggregate by 1 - m + m min(e, 1) at most. Clipping takes d - 1
    # from S, at most (1 - m e^2) / 4 within S_i, since d - 1 <= d^2 / 4, and sqrt(m D) - m outside.
    # The square of the total is at most 25 / 16 of the sum, as for m = 0.
    guarantee: ClassVar[Spectral] = Spectral(25 / 16)
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated", "gossip")

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Multiply the gossip weights by the factors that clip the messages."""
        edges = edges_of(self, own, inbox, inputs, share=1)
        # The radius is continuous in the distances: their rounding changes it by as much.
        weights = nearest(edges.distances, inbox.senders, edges.weights, edges.others)
        radius = adaptive_radius(weights, edges.distances, edges.tolerated)
        clipped = edges.weights * kernels.clip_factors(radius, edges.distances)
        return keep_broken(clipped, edges.norms)
