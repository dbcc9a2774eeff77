"""Min-Max and Min-Sum: as far as possible from the benign mean, but not from the benign models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_options
from equipoise.attacks._statistics import Crowd, Perturbation, Told, in_full, perturbation, slopes
from equipoise.attacks.knowledge import Knowledge, Scope, Space


class Rays(NamedTuple):
    """How far mean - gamma * direction is from each vector, squared: apart - 2 gamma slope + gamma^2 square."""

    mean: Tensor  # (a, d)
    apart: Tensor  # (a, k), 0 where there is none
    slope: Tensor  # (a, k)
    square: Tensor  # (a,)
    present: Tensor  # (a, k)


@dataclass(frozen=True)
class _AlongPerturbation(ABC):
    """The mean of a crowd, moved along a perturbation by the largest amount that a bound allows."""

    perturbation: Perturbation = "unit"
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)

    @in_full
    def forge(self, known: Knowledge) -> Told:
        """One row per victim, or one for all."""
        crowd = Crowd.of(known, self, self.scope, self.space)
        mean = crowd.mean()
        direction = perturbation(self.perturbation, crowd, mean)
        gamma = self.amount(crowd, _rays(crowd, mean, direction))
        return crowd.lies(mean.addcmul_(direction, -gamma.to(mean.dtype)[:, None]).add_(crowd.centre))

    @abstractmethod
    def amount(self, crowd: Crowd, rays: Rays) -> Tensor:
        """(a,) the largest allowed amount."""


@dataclass(frozen=True)
class MinMax(_AlongPerturbation):
    r"""The lie is no farther from any benign vector than some two of them are from each other.

    .. math:: m_i = \mu_i - \gamma p_i, \qquad
              \max_j \|m_i - v_j\| \le \max_{j,l} \|v_j - v_l\|

    with the largest such :math:`\gamma`, in closed form. Shejwalkar and Houmansadr, *Manipulating the Byzantine*,
    NDSS 2021.

    Args:
        perturbation: p is the ``"unit"`` vector of the mean, its ``"sign"``, or the standard deviation ``"std"``.
        scope: look at the benign neighbours of each victim, ``"receiver"``, or at all benign clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[4.0], [6.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.MinMax(scope="global").forge(known).rows  # 2 away from 6
    tensor([[4.]])
    """

    def amount(self, crowd: Crowd, rays: Rays) -> Tensor:
        """The smallest root of the quadratic inequalities, one for each vector."""
        bound = _bounds(crowd, rays, lambda squares: squares.flatten(1).amax(1))
        square = rays.square[:, None]
        room = (rays.slope.square() + square * (bound[:, None] - rays.apart)).clamp_min(0)
        roots = ((rays.slope + room.sqrt()) / square).where(rays.present, torch.inf)
        return roots.amin(1).clamp_min(0).nan_to_num(nan=0.0, posinf=0.0)


@dataclass(frozen=True)
class MinSum(_AlongPerturbation):
    r"""The lie's sum of squared distances to the benign vectors is no larger than the smallest of theirs.

    .. math:: m_i = \mu_i - \gamma p_i, \qquad
              \sum_j \|m_i - v_j\|^2 \le \min_l \sum_j \|v_l - v_j\|^2

    with the largest such :math:`\gamma`, in closed form. Shejwalkar and Houmansadr, *Manipulating the Byzantine*,
    NDSS 2021.

    Args:
        perturbation: p is the ``"unit"`` vector of the mean, its ``"sign"``, or the standard deviation ``"std"``.
        scope: look at the benign neighbours of each victim, ``"receiver"``, or at all benign clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[4.0], [6.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.MinSum(scope="global").forge(known).rows  # 1 + 1 + 2 gamma^2 <= 4
    tensor([[4.]])
    """

    def amount(self, crowd: Crowd, rays: Rays) -> Tensor:
        """The root of one quadratic inequality; slopes sum to zero."""
        bound = _bounds(crowd, rays, lambda squares: squares.sum(2).amin(1))
        room = (bound - rays.apart.sum(1)).clamp_min(0) / (crowd.inbox.counts * rays.square)
        return room.sqrt().nan_to_num(nan=0.0, posinf=0.0)


def _bounds(crowd: Crowd, rays: Rays, of: Callable[[Tensor], Tensor]) -> Tensor:
    """(a,) what ``of`` says of the squared distances (r, c, c) between the vectors of each crowd; 0 of an empty one."""
    bounds = torch.zeros_like(rays.square)
    for group, squares in kernels.message_distances(rays.mean, crowd.inbox):
        bounds[group.receivers] = of(squares)
    return bounds


def _rays(crowd: Crowd, mean: Tensor, direction: Tensor) -> Rays:
    inbox = crowd.inbox
    apart = kernels.distances(mean, inbox)[0].square().where(inbox.present, 0)
    return Rays(mean, apart, slopes(direction, mean, inbox), kernels.norms(direction).square(), inbox.present)
