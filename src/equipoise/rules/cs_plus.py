"""CS+: gossip with messages clipped to a distance that enough others exceed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._gossip import LARGEST, SAME_WEIGHT, Edges, edges_of, keep_broken
from equipoise.rules._guarantees import check_tolerance
from equipoise.rules.base import WeightedRule
from equipoise.topology import Spectral


@dataclass(frozen=True)
class CSPlus(WeightedRule):
    r"""Gossip, each message clipped to the distance that twice the tolerated weight reaches.

    .. math:: \mathrm{AGG}_i = w_i + \sum_{j \in N_i} W_{ij}
              \min\Bigl(1, \frac{\tau_i}{d_j}\Bigr) (w_j - w_i), \qquad
              \tau_i = \max\Bigl\{\tau : \sum_{d_j \ge \tau} W_{ij} \ge 2 b_i\Bigr\}

    where :math:`d_j = \|w_j - w_i\|`, and :math:`b_i` is the weight that malicious neighbors may
    have, that of the :math:`f_i` heaviest. CS+ of Gaucher, Dieuleveut and Hendrikx, *Unified
    Breakdown Analysis for Byzantine Robust Gossip*, ICML 2025, which was CG+ in the first preprint.
    With equal weights, the radius is the :math:`2 f_i`-th largest distance. With :math:`f_i = 0`,
    nothing is clipped, as in `Gossip`. If all messages together weigh less than :math:`2 b_i`, the
    radius is 0, and the aggregate is own.

    The weights are the round input ``gossip``; without it, those of own and the messages are equal.
    The aggregate contains own: mix it with ``alpha=0``. The step size of the paper is a factor of
    the weights.

    Let :math:`F_i` be the move, the aggregate minus own. For every set S of neighbors that leaves
    out a weight of at most :math:`b_i`, such as the benign ones,
    :math:`\|F_i - \sum_S W_{ij} (w_j - w_i)\|^2 \le 2 b_i \sum_S W_{ij} \|w_j - w_i\|^2`, whatever
    the others sent. The authors' code exceeds this bound for weights that differ; this class
    follows the definition.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`f_i` neighbors may have more than half of the weight of
            all, where no message counts, instead of a warning.

    >>> received = torch.tensor([[1.0], [2.0], [3.0], [90.0]])
    >>> out = eq.CSPlus(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.8000]), tensor([0.2000, 0.2000, 0.2000, 0.0067]))
    """

    guarantee: ClassVar[Spectral] = Spectral(2.0)
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated", "gossip")

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Multiply the gossip weights by the factors that clip the messages."""
        edges = edges_of(self, own, inbox, inputs, share=0.5)
        # The radius is one of the distances, and as accurate as these.
        factors = kernels.clip_factors(_radius(edges), edges.distances)
        return keep_broken(edges.weights * factors, edges.norms)


def _radius(edges: Edges) -> Tensor:
    """(n, 1) the largest distance that messages of twice the tolerated weight reach, or 0."""
    if not edges.weights.shape[1]:
        return edges.distances.new_zeros(len(edges.distances), 1)
    # Absent messages have no weight, and come last.
    distances, order = edges.distances.where(edges.weights > 0, 0.0).sort(dim=1, descending=True)
    reached = edges.weights.gather(1, order).cumsum(1)
    needed = 2 * edges.tolerated[:, None]
    is_enough = reached >= needed * (1 - SAME_WEIGHT)
    first = is_enough.int().argmax(1, keepdim=True)
    radius = distances.gather(1, first).where(is_enough[:, -1:], 0.0)
    return radius.where(needed > 0, LARGEST)
