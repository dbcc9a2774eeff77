"""Min-Max: as far as possible from the benign mean, within the diameter of the benign vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.attacks._perturbation import BoundedPerturbation, Rays, distance_bounds
from equipoise.attacks._statistics import Observed


@dataclass(frozen=True)
class MinMax(BoundedPerturbation):
    r"""The lie is no farther from any benign vector than the two most distant ones are apart.

    .. math:: m_i = \mu_i - \gamma p_i, \qquad
              \max_j \|m_i - v_j\| \le \max_{j,l} \|v_j - v_l\|

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
    >>> eq.attacks.MinMax(scope="global").forge(known).rows  # 2 away from 6
    tensor([[4.]])
    """

    def _gamma(self, benign: Observed, rays: Rays) -> Tensor:
        """Return the smallest root of the quadratic inequalities, one for each vector."""
        bound = distance_bounds(benign, rays, lambda squares: squares.flatten(1).amax(1))
        square = rays.square[:, None]
        # At gamma = 0 every inequality holds, so a negative discriminant is rounding.
        discriminant = rays.slope.square() + square * (bound[:, None] - rays.distance)
        # For each vector, the larger root of square gamma^2 - 2 slope gamma + distance = bound.
        roots = (rays.slope + discriminant.clamp_min(0).sqrt()) / square
        smallest = roots.where(rays.present, torch.inf).amin(1).clamp_min(0)
        # 0 / 0 for a direction of zeros, inf without vectors: the lie is the mean.
        return smallest.nan_to_num(nan=0.0, posinf=0.0)
