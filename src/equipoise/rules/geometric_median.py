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
from equipoise.rules._sample_weights import check_weighting, message_shares
from equipoise.rules.base import Rule, as_diagnostic
from equipoise.topology import Neighbors
from equipoise.types import Aggregated


@dataclass(frozen=True)
class GeometricMedian(Rule):
    r"""The model with the smallest sum of distances to the received models.

    .. math:: \mathrm{AGG}_i = \arg\min_v \sum_{j \in N_i} p_j \, \|w_j - v\|

    Smoothed Weiszfeld steps, starting at the coordinate-wise median:

    .. math:: v \leftarrow \frac{\sum_j a_j w_j}{\sum_j a_j}, \qquad
              a_j = \frac{p_j}{\max(\nu, \|w_j - v\|)}

    where :math:`p_j` are equal, or proportional to the senders' numbers of examples.

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
        weighted: multiply the distance to each message by its sender's number of training examples,
            which is passed at the call as ``samples``, a tensor indexed by client id.
        cap: with ``weighted``, no message counts for more than this multiple of an equal share. A
            sender may claim any number of examples; beyond the cap, a claim gains nothing.
        nu: smoothing, relative to the median distance.
        tolerance: relative change that ends the steps.
        steps: the largest number of steps.

    >>> received = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5]])
    >>> eq.GeometricMedian()(torch.zeros(2), received).model
    tensor([0.5000, 0.5000])
    """

    guarantee: ClassVar[Neighbors] = Neighbors(2, 1)
    isotropic: ClassVar[bool] = False  # the coordinate-wise median depends on the basis
    weighted: bool = False
    cap: float = 2.0
    nu: float = 1e-6
    tolerance: float = 1e-12
    steps: int = 1000

    def __post_init__(self) -> None:
        check_weighting(self.weighted, self.cap)
        check_number("nu", self.nu)
        check_number("tolerance", self.tolerance)
        check_count("steps", self.steps, 1)

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of examples of each client, if messages are weighted by it."""
        return ("samples",) if self.weighted else ()

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        samples: Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Find the weights of the messages, then combine them."""
        samples = samples if self.weighted else None
        shares = message_shares(inbox, inbox.present, samples, self.cap)
        most = inbox.slots.new_full((inbox.n,), inbox.k)
        # The memory of the result holds the start first.
        start = kernels.trimmed_mean(own, inbox, most, out=out)
        weights = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
        for around in kernels.centered_products(own, start, inbox):
            places = (around.group.receivers[:, None], around.group.columns)
            weights[places] = self._weiszfeld(around, shares[places])
        # A client none of whose messages counts keeps its own model.
        own_weights = (kernels.row_sums(weights) == 0).double()
        model = kernels.combine(own, own_weights, inbox, weights, out=start)
        return Aggregated(model, as_diagnostic(weights, own), state)

    def _weiszfeld(self, around: CenteredProducts, parts: Tensor) -> Tensor:
        """(r, c) weights of the messages; receivers whose steps have ended wait for the others."""
        # Message j is start + scales_j * y_j, so that shares of y_j are weights times scales.
        shares = torch.zeros_like(around.scales)
        moving = (kernels.row_sums(parts) > 0).nonzero().flatten()
        some = around.part(moving)
        v = shares[moving]
        for _ in range(self.steps):
            floor = self.nu * some.usual[:, None] / some.scales
            pulls = parts[moving] / some.relative_distances(v).maximum(floor)
            stepped = pulls / kernels.row_sums(pulls / some.scales)[:, None]
            changed = some.length(stepped - v) > self.tolerance * some.usual
            v = stepped
            if changed.all():
                continue
            shares[moving] = v
            moving = moving[changed]
            some = some.part(changed)
            v = v[changed]
            if not len(moving):
                break
        shares[moving] = v
        return shares / around.scales
