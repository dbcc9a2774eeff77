"""Statistics of the vectors that an attack observes, for each victim or for all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise.attacks._client_facts import Scope
from equipoise.attacks._neighborhoods import Neighborhoods
from equipoise.attacks.knowledge import Knowledge, Space
from equipoise.kernels import TILE, column_blocks, gather, new_output
from equipoise.messages import Inbox, Lies

AttackT = TypeVar("AttackT")

# E[x^2] - E[x]^2 loses log2(1 + E[x]^2 / variance) bits. Up to this ratio these are 6 of the 24
# bits of float32; beyond it, the variance is computed again from differences.
CANCELLATION = 64.0


class UncheckedLies(NamedTuple):
    """The fields of `Lies` for some of the parameters, so they cannot be checked yet."""

    rows: Tensor
    senders: Tensor
    receivers: Tensor


@dataclass(frozen=True, eq=False)
class Observed:
    """The vectors of the neighbors of each victim, or of all clients, and their statistics.

    ``vectors`` (m, d) belong to the clients of the neighborhoods. They are models, or updates; a
    lie about an update is added to ``origin`` (a, d). ``center`` (d,), a point among the benign
    vectors, is subtracted from them, so that small differences between large vectors keep their
    digits.
    """

    neighborhoods: Neighborhoods
    vectors: Tensor
    center: Tensor
    origin: Tensor | None

    @classmethod
    def of(
        cls,
        known: Knowledge,
        attack: object,
        scope: Scope,
        space: Space = "model",
        include_malicious: bool = False,
    ) -> Observed:
        """Collect the vectors that an attack observes."""
        neighborhoods = known._neighborhoods(scope, include_malicious)
        vectors = known.models.index_select(0, neighborhoods.clients)  # a copy, modified below
        origin = None
        if space == "update":
            previous = known.require_previous(attack)
            vectors -= previous.index_select(0, neighborhoods.clients)
            if scope == "global":
                # One lie for all victims cannot start from the model of each.
                origin = previous[known.finite_benign].mean(0, keepdim=True)
            else:
                origin = previous.index_select(0, known.victims)
        broken = ~known._facts.finite[neighborhoods.clients]
        if broken.any():
            # These victims observe only themselves. Their NaN, times a weight of 0 in a matrix
            # product, would be NaN in the lies to all other victims.
            vectors[broken] = 0
        center = neighborhoods.central_weights.to(vectors.dtype) @ vectors
        return cls(neighborhoods, vectors.sub_(center), center, origin)

    @cached_property
    def inbox(self) -> Inbox:
        """The vectors as messages to each victim, or to one receiver."""
        them = self.neighborhoods
        return Inbox(self.vectors, them.slots, them.present, them.clients[them.slots])

    def mean(self) -> Tensor:
        """(a, d) mean of each neighborhood, minus the center."""
        return self.neighborhoods.mean(self.vectors)

    def deviation(self, mean: Tensor) -> Tensor:
        """(a, d) population standard deviation of each coordinate; ``mean`` is minus the center."""
        squared_mean = mean * mean
        variance = self.neighborhoods.mean(self.vectors * self.vectors).sub_(squared_mean)
        margin = torch.sub(variance, squared_mean, alpha=1 / CANCELLATION)
        # One reduction; comparing every coordinate takes longer than all of the above. NaN, where a
        # square overflows, fails the comparison too.
        if margin.amin() >= 0:
            return variance.sqrt_()
        cancelled = margin < 0
        overflown = ~variance.isfinite()
        variance[cancelled] = self._exact_variance(mean, cancelled)
        deviation = variance.sqrt_()
        if overflown.any():
            exact = self._exact_variance(mean.double(), overflown)
            deviation[overflown] = exact.sqrt().to(mean.dtype)
        return deviation

    def _exact_variance(self, mean: Tensor, where: Tensor) -> Tensor:
        """Compute the variances of some coordinates (a, d) from differences to the mean."""
        rows, columns = where.nonzero(as_tuple=True)
        centers = mean[rows, columns]
        variance = torch.zeros_like(centers)
        for s in range(self.neighborhoods.slots.shape[1]):
            members = self.vectors[self.neighborhoods.slots[rows, s], columns].to(mean.dtype)
            difference = members.sub_(centers)
            weight = self.neighborhoods.weights[rows, s].to(difference.dtype)
            variance.addcmul_(difference, difference * weight)
        return variance

    def signed_minimum(self, signs: Tensor) -> Tensor:
        """(a, d) minimum over each neighborhood of each coordinate times its sign (a, d)."""
        rows = self.neighborhoods.filled_slots
        minimum = torch.empty_like(signs)
        # Two tiles of gathered members, and at least 256 columns, so that reading stays sequential.
        width = max(256, 2 * TILE // max(1, rows.numel()))
        for part in column_blocks(self.vectors.shape[1], width):
            members = gather(self.vectors, rows, part).mul_(signs[:, None, part])
            torch.amin(members, 1, out=minimum[:, part])
        return minimum.addcmul_(signs, self.center)

    def lies_per_victim(self, rows: Tensor) -> UncheckedLies:
        """Let all malicious clients send each victim its row (a, d); overwrites the rows."""
        receivers = self.neighborhoods.receivers
        if self.origin is not None:
            rows = rows.add_(self.origin)
        # Sender -1: every malicious neighbor of the receiver sends this row.
        return UncheckedLies(rows, torch.full_like(receivers, -1), receivers)

    def lies_per_edge(self, rows: Tensor) -> UncheckedLies:
        """Let each malicious client send each victim its own row (e, d); overwrites the rows."""
        them = self.neighborhoods
        if self.origin is not None:
            rows += self.origin.index_select(0, them.edge_rows)
        return UncheckedLies(rows, them.senders, them.receivers[them.edge_rows])


Forge = Callable[[AttackT, Knowledge], UncheckedLies]
CheckedForge = Callable[[AttackT, Knowledge], Lies | None]


def forge_by_columns(forge: Forge[AttackT]) -> CheckedForge[AttackT]:
    """Forge in blocks of columns that fit into the cache, for coordinate-wise attacks."""

    @wraps(forge)
    @torch.no_grad()
    def forge_blocks(self: AttackT, known: Knowledge) -> Lies | None:
        if not known._is_feasible:
            return None
        n, d = known.models.shape
        # Two thirds of a tile for the models leave room for the intermediate results.
        parts = column_blocks(d, max(2048, 2 * TILE // (3 * n)))
        first = next(parts)
        # Addresses do not depend on the columns, so those of the first block serve all.
        lies = forge(self, known._columns(first))
        rows = new_output(known.models, len(lies.rows), d)
        rows[:, first] = lies.rows
        for part in parts:
            rows[:, part] = forge(self, known._columns(part)).rows
        return Lies(rows, lies.senders, lies.receivers)

    return forge_blocks


def forge_widened(forge: Forge[AttackT]) -> CheckedForge[AttackT]:
    """Forge from whole models, with half precision computed in float32 and rounded once."""

    @wraps(forge)
    @torch.no_grad()
    def forge_in_compute_dtype(self: AttackT, known: Knowledge) -> Lies | None:
        if not known._is_feasible:
            return None
        lies = forge(self, known._widened())
        return Lies(lies.rows.to(known.models.dtype), lies.senders, lies.receivers)

    return forge_in_compute_dtype
