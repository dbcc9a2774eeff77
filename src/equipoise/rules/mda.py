"""MDA: the mean of the messages that are closest together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules._subset_search import least_spread
from equipoise.rules.base import WeightedRule, as_tolerated

MOST_SUBSETS = 20_000


@dataclass(frozen=True)
class MDA(WeightedRule):
    r"""Minimum diameter averaging: the mean of the subset whose models are closest together.

    .. math:: \mathrm{AGG}_i = \frac{1}{|S_i|} \sum_{j \in S_i} w_j, \qquad
              S_i = \arg\min_{|S| = |N_i| - f_i} \max_{j, l \in S} \|w_j - w_l\|

    El-Mhamdi et al., *Genuinely Distributed Byzantine Machine Learning*, PODC 2020, after Rousseeuw
    (1985). All subsets are searched, up to 20,000 of them; more are an error. Of equal diameters,
    the subset of the lowest client ids counts. Here :math:`f_i` is at most
    :math:`\lfloor (|N_i| - 1) / 2 \rfloor`. Own is not among the models.

    Lies within the diameter of the benign models are in the subset.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i \ge |N_i|`, instead of clamping with a warning.

    >>> received = torch.tensor([[0.0], [0.1], [0.3], [9.0]])
    >>> out = eq.MDA(tolerated=2)(torch.zeros(1), received[[0, 1, 2, 3, 3]])
    >>> out.model, out.weights
    (tensor([0.1333]), tensor([0.3333, 0.3333, 0.3333, 0.0000, 0.0000]))
    """

    isotropic: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give the messages of the subset equal weights."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=self.strict)
        f = f.minimum((inbox.counts - 1).clamp_min(0) // 2)
        return least_spread(own, inbox, f, squared_diameters, most=MOST_SUBSETS, rule="MDA")


def squared_diameters(squares: Tensor, subsets: Tensor) -> Tensor:
    """(r, s) the largest squared distance (r, c, c) between members of each subset (s, size)."""
    return squares[:, subsets[:, :, None], subsets[:, None, :]].flatten(2).amax(2)
