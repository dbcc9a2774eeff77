"""SMEA: the mean of the messages with the least variance in any direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules._subset_search import least_spread
from equipoise.rules.base import WeightedRule, as_tolerated
from equipoise.topology import Neighbors

MOST_SUBSETS = 5_000

# Squared distances are cut off here, so that sums of them are finite.
LARGEST_SQUARE = 1e290


@dataclass(frozen=True)
class SMEA(WeightedRule):
    r"""Smallest maximum eigenvalue averaging: the mean of the subset of least variance.

    .. math:: \mathrm{AGG}_i = \frac{1}{|S_i|} \sum_{j \in S_i} w_j, \qquad
              S_i = \arg\min_{|S| = |N_i| - f_i}
              \lambda_{\max}\Bigl(\frac{1}{|S|} \sum_{j \in S} (w_j - \mu_S)
              (w_j - \mu_S)^\top\Bigr)

    where :math:`\mu_S` is the mean of S. Allouah et al., *On the Privacy-Robustness-Utility
    Trilemma in Distributed Learning*, ICML 2023. All subsets are searched, up to 5,000 of them;
    more are an error. The eigenvalues are those of the products of all pairs of messages, and
    exact. The package byzfl takes one step of a power iteration from a random vector for each
    subset, so that its choice varies. Of equal eigenvalues, the subset of the lowest client ids
    counts. Here :math:`f_i` is at most :math:`\lfloor (|N_i| - 1) / 2 \rfloor`. Own is not among
    the models.

    Lies within the usual spread of benign models are in the subset.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i \ge |N_i|`, instead of clamping with a warning.

    >>> received = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.2], [9.0, 9.0]])
    >>> out = eq.SMEA(tolerated=1)(torch.zeros(2), received)
    >>> out.model, out.weights
    (tensor([0.0333, 0.0667]), tensor([0.3333, 0.3333, 0.3333, 0.0000]))
    """

    guarantee: ClassVar[Neighbors] = Neighbors(2, 1)
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
        return least_spread(own, inbox, f, largest_variances, most=MOST_SUBSETS, rule="SMEA")


def largest_variances(squares: Tensor, subsets: Tensor) -> Tensor:
    """(r, s) the largest eigenvalue of the covariance of each subset (s, size)."""
    apart = squares[:, subsets[:, :, None], subsets[:, None, :]].clamp_max(LARGEST_SQUARE)
    # <w_j - mean, w_l - mean> from squared distances; their mean has the covariance's eigenvalues.
    means = apart.mean(3)
    total = means.mean(2)[:, :, None, None]
    products = (means[:, :, :, None] + means[:, :, None, :] - apart - total) / 2
    values: Tensor = torch.linalg.eigvalsh(products)[:, :, -1]
    return values.clamp_min(0) / subsets.shape[1]
