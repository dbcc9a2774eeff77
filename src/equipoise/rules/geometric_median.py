"""Geometric median: the model with the smallest sum of distances to the received ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_count, check_number
from equipoise.kernels import CenteredProducts
from equipoise.messages import Inbox
from equipoise.rules.base import Rule, as_diagnostic
from equipoise.types import Aggregated


@dataclass(frozen=True)
class GeometricMedian(Rule):
    r"""The model with the smallest sum of distances to the received models.

    .. math:: \mathrm{AGG}_i = \arg\min_v \sum_{j \in N_i} \|w_j - v\|

    Smoothed Weiszfeld steps, starting at the coordinate-wise median:

    .. math:: v \leftarrow \frac{\sum_j a_j w_j}{\sum_j a_j}, \qquad
              a_j = \frac{1}{\max(\nu, \|w_j - v\|)}

    Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, 2022, whose
    :math:`\nu` is a length; here it is relative to the median distance of the messages to the
    coordinate-wise median, so that the rule does not depend on the unit of the models. Steps end
    when :math:`v` changes by less than ``tolerance``, relative to the same distance. They take
    place on the weights of the messages, and do not pass over the parameters. The package byzfl
    stops after 3 steps that start at 0, and its result depends on where 0 is.

    Own is not among the models. The aggregate stays near the benign models as long as more than
    half of the messages are benign, by any distance that the malicious ones have. But each of them
    pulls with the same force as a benign one, also if it lies far away.

    Args:
        nu: smoothing, relative to the median distance.
        tolerance: relative change that ends the steps.
        steps: the largest number of steps.

    >>> received = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5]])
    >>> eq.GeometricMedian()(torch.zeros(2), received).model
    tensor([0.5000, 0.5000])
    """

    isotropic: ClassVar[bool] = False  # the coordinate-wise median depends on the basis
    needs: ClassVar[tuple[str, ...]] = ()

    nu: float = 1e-6
    tolerance: float = 1e-12
    steps: int = 1000

    def __post_init__(self) -> None:
        check_number("nu", self.nu)
        check_number("tolerance", self.tolerance)
        check_count("steps", self.steps, 1)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Find the weights of the messages, then combine them."""
        most = inbox.slots.new_full((inbox.n,), inbox.k)
        # The memory of the result holds the start first.
        start = kernels.trimmed_mean(own, inbox, most, out=out)
        weights = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
        for around in kernels.centered_products(own, start, inbox):
            columns = around.group.columns
            weights[around.group.receivers[:, None], columns] = self._weiszfeld(around)
        own_weights = (inbox.counts == 0).double()
        model = kernels.combine(own, own_weights, inbox, weights, out=start)
        return Aggregated(model, as_diagnostic(weights, own), state)

    def _weiszfeld(self, around: CenteredProducts) -> Tensor:
        """(r, c) weights of the messages; receivers whose steps have ended wait for the others."""
        # Message j is start + scales_j * y_j, so that shares of y_j are weights times scales.
        shares = torch.zeros_like(around.scales)
        moving = torch.arange(len(shares), device=shares.device)
        for _ in range(self.steps):
            some = around.part(moving)
            floor = self.nu * some.usual[:, None] / some.scales
            pulls = 1 / some.relative_distances(shares[moving]).maximum(floor)
            stepped = pulls / kernels.row_sums(pulls / some.scales)[:, None]
            changed = some.length(stepped - shares[moving]) > self.tolerance * some.usual
            shares[moving] = stepped
            moving = moving[changed]
            if not len(moving):
                break
        return shares / around.scales
