"""GTS: gossip without the farthest messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise.messages import Inbox
from equipoise.rules._gossip import chosen_exactly, edges_of, keep_broken, nearest
from equipoise.rules._guarantees import check_tolerance
from equipoise.rules.base import WeightedRule
from equipoise.topology import Spectral


@dataclass(frozen=True)
class GTS(WeightedRule):
    r"""Gossip without the messages that are farthest from own, up to the tolerated weight.

    .. math:: \mathrm{AGG}_i = w_i + \sum_{j \in N_i} \kappa_j (w_j - w_i), \qquad
              \kappa_j = \min\Bigl(W_{ij}, \max\Bigl(0,
              \sum_l W_{il} - b_i - \sum_{l \text{ nearer than } j} W_{il}\Bigr)\Bigr)

    where :math:`b_i` is the weight that malicious neighbors may have, that of the :math:`f_i`
    heaviest: the farthest messages lose a weight of :math:`b_i`, a message at the boundary a part
    of its own. Gossip trimming of Gaucher, Dieuleveut and Hendrikx, *Unified Breakdown Analysis for
    Byzantine Robust Gossip*, ICML 2025. With equal weights, the :math:`f_i` farthest messages are
    left out. With :math:`f_i = 0`, it is `Gossip`. Equal distances are taken by ascending client
    id.

    The weights are the round input ``gossip``; without it, those of own and the messages are equal.
    The aggregate contains own: mix it with ``alpha=0``. The step size of the paper is a factor of
    the weights.

    Let :math:`F_i` be the move, the aggregate minus own. For every set S of neighbors that leaves
    out a weight of at most :math:`b_i`, such as the benign ones,
    :math:`\|F_i - \sum_S W_{ij} (w_j - w_i)\|^2 \le 4 b_i \sum_S W_{ij} \|w_j - w_i\|^2`, whatever
    the others sent. The authors' code exceeds this bound for weights that differ; this class
    follows the definition.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`f_i` neighbors may have the weight of all, where no message
            counts, instead of a warning.

    >>> received = torch.tensor([[1.0], [2.0], [3.0], [90.0]])
    >>> out = eq.GTS(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.2000]), tensor([0.2000, 0.2000, 0.2000, 0.0000]))
    """

    guarantee: ClassVar[Spectral] = Spectral(4.0)
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated", "gossip")

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Take the gossip weights of the nearest messages."""
        edges = edges_of(self, own, inbox, inputs, share=1)
        taken = chosen_exactly(nearest, own, inbox, edges, edges.others)
        return keep_broken(taken, edges.norms)
