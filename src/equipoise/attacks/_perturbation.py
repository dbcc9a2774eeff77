"""Lies along a ray from the benign mean, ``mean - gamma * direction``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice, check_options
from equipoise.attacks._client_facts import Scope
from equipoise.attacks._statistics import Observed, UncheckedLies, forge_widened
from equipoise.attacks.knowledge import Knowledge, Space
from equipoise.kernels import TILE, column_blocks
from equipoise.messages import Inbox

Perturbation = Literal["unit", "sign", "std"]
PERTURBATIONS = ("unit", "sign", "std")


def perturbation_of(kind: Perturbation, observed: Observed, mean: Tensor) -> Tensor:
    """(a, d) direction in which a lie leaves the mean, which is given minus the center."""
    if kind == "std":
        # Bessel's correction, as in the code of Shejwalkar and Houmansadr; 0 for one member.
        count = observed.neighborhoods.counts.to(mean.dtype)[:, None]
        return observed.deviation(mean) * (count / (count - 1).clamp_min(1)).sqrt()
    whole = mean + observed.center
    if kind == "sign":
        return whole.sign_()
    return unit_rows(whole)


def unit_rows(vectors: Tensor) -> Tensor:
    """(a, d) vectors of length 1; 0 where the vector is 0."""
    length = kernels.norms(vectors).to(vectors.dtype)
    return vectors / length.clamp_min(torch.finfo(vectors.dtype).tiny)[:, None]


def slopes(direction: Tensor, base: Tensor, inbox: Inbox) -> Tensor:
    """(a, k) product of a direction (a, d) with base (a, d) minus each message; 0 if absent."""
    cosines, length = kernels.cosines(direction, inbox)
    products = cosines * length[:, None] * inbox.lengths(inbox.present)
    along = torch.zeros_like(length)
    # In blocks: the float64 product of whole models would double the memory of the attack.
    for part in column_blocks(base.shape[1], max(2048, TILE // len(base))):
        along += (direction[:, part].double() * base[:, part]).sum(1)
    return (along[:, None] - products).where(inbox.present, 0)


class Rays(NamedTuple):
    """Squared distances of mean - gamma * direction to each vector.

    They are ``distance - 2 * gamma * slope + gamma^2 * square``.
    """

    mean: Tensor  # (a, d)
    distance: Tensor  # (a, k) squared, 0 if absent
    slope: Tensor  # (a, k)
    square: Tensor  # (a,) squared length of the direction
    present: Tensor  # (a, k)

    @classmethod
    def of(cls, observed: Observed, mean: Tensor, direction: Tensor) -> Rays:
        """Measure the rays from the mean of each neighborhood to its vectors."""
        inbox = observed.inbox
        distance = kernels.distances(mean, inbox)[0].square().where(inbox.present, 0)
        square = kernels.norms(direction).square()
        return cls(mean, distance, slopes(direction, mean, inbox), square, inbox.present)


@dataclass(frozen=True)
class BoundedPerturbation(ABC):
    """The benign mean, moved along a perturbation by the largest amount that a bound allows."""

    uses_malicious_models: ClassVar[bool] = False

    perturbation: Perturbation = "unit"
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        check_choice("perturbation", self.perturbation, PERTURBATIONS)

    @forge_widened
    def forge(self, known: Knowledge) -> UncheckedLies:
        """Return one row per victim, or one for all."""
        benign = Observed.of(known, self, self.scope, self.space)
        mean = benign.mean()
        direction = perturbation_of(self.perturbation, benign, mean)
        gamma = self._gamma(benign, Rays.of(benign, mean, direction)).to(mean.dtype)
        rows = mean.addcmul_(direction, -gamma[:, None]).add_(benign.center)
        return benign.lies_per_victim(rows)

    @abstractmethod
    def _gamma(self, benign: Observed, rays: Rays) -> Tensor:
        """(a,) the largest amount that the bound allows."""


def distance_bounds(observed: Observed, rays: Rays, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """(a,) reduce the squared distances (r, c, c) within each neighborhood; 0 for an empty one."""
    bounds = torch.zeros_like(rays.square)
    for group, squares in kernels.message_distances(rays.mean, observed.inbox):
        bounds[group.receivers] = reduce(squares)
    return bounds
