"""Min-Sum: as far as possible from the benign mean, by the sum of squared distances."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.attacks._perturbation import BoundedPerturbation, Rays, distance_bounds
from equipoise.attacks._statistics import Observed


@dataclass(frozen=True)
class MinSum(BoundedPerturbation):
    r"""The lie's sum of squared distances is at most the smallest sum of a benign vector.

    .. math:: m_i = \mu_i - \gamma p_i, \qquad
              \sum_j \|m_i - v_j\|^2 \le \min_l \sum_j \|v_l - v_j\|^2

    with the largest such :math:`\gamma`, in closed form. Shejwalkar and Houmansadr,
    *Manipulating the Byzantine*, NDSS 2021.

    Args:
        perturbation: p is the ``"unit"`` vector of the mean, its ``"sign"``, or the standard
            deviation ``"std"``.
        scope: observe the benign neighbors of each victim, ``"receiver"``, or all benign clients,
            ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[4.0], [6.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.MinSum(scope="global").forge(known).rows  # 1 + 1 + 2 gamma^2 <= 4
    tensor([[4.]])
    """

    def _gamma(self, benign: Observed, rays: Rays) -> Tensor:
        """Return the root of one quadratic inequality; the slopes sum to zero at the mean."""
        bound = distance_bounds(benign, rays, lambda squares: squares.sum(2).amin(1))
        # For c vectors, c square gamma^2 + sum of distances <= bound. The mean minimizes that sum,
        # so a negative slack is rounding.
        slack = (bound - rays.distance.sum(1)).clamp_min(0)
        gamma = (slack / (benign.inbox.counts * rays.square)).sqrt()
        # 0 / 0 for a direction of zeros, x / 0 without vectors: the lie is the mean.
        return gamma.nan_to_num(nan=0.0, posinf=0.0)
