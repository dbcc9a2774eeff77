"""The models that an attack looks at, for each victim or for all of them at once, and their statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.attacks._neighborhoods import Roster
from equipoise.attacks.knowledge import Knowledge, Scope, Space
from equipoise.kernels import TILE, column_blocks, gather, new_output
from equipoise.messages import Inbox, Lies

Perturbation = Literal["unit", "sign", "std"]
AttackT = TypeVar("AttackT")

DOUBTFUL = 64.0  # where the square of the mean is this much of the variance, their difference has lost its digits


@dataclass(frozen=True, eq=False)
class Crowd:
    """What the benign neighbours of each victim say (scope "receiver"), or all benign clients (scope "global").

    ``vectors`` (m, d) are those of the roster's clients: models, or updates, and then ``origin`` (a, d) is what a lie
    starts from. They are less ``centre`` (d,), which is in the midst of the benign ones, so that what they differ in
    keeps its digits.
    """

    roster: Roster
    vectors: Tensor
    centre: Tensor
    origin: Tensor | None

    @classmethod
    def of(
        cls, known: Knowledge, attack: object, scope: Scope, space: Space = "model", everybody: bool = False
    ) -> Crowd:
        """The crowd that an attack looks at; with ``everybody``, malicious clients' models before the attack too."""
        roster = known.roster(scope, everybody)
        vectors, origin = known.models.index_select(0, roster.clients), None
        if space == "update":
            before = known.before(attack)
            vectors -= before.index_select(0, roster.clients)
            benign = before[known.sane] if scope == "global" else None
            origin = before.index_select(0, known.victims) if benign is None else benign.mean(0, keepdim=True)
        spoilt = ~known.finite[roster.clients]
        if spoilt.any():  # victims that are their own crowd; 0 times NaN would spoil the lies to all others
            vectors[spoilt] = 0
        centre = roster.central.to(vectors.dtype) @ vectors
        return cls(roster, vectors.sub_(centre), centre, origin)

    @cached_property
    def inbox(self) -> Inbox:
        """The vectors as messages to each victim, or to one receiver."""
        roster = self.roster
        return Inbox(self.vectors, roster.slots, roster.present, roster.clients[roster.slots])

    def mean(self) -> Tensor:
        """(a, d) mean of each crowd, less the centre."""
        return self.roster.average(self.vectors)

    def deviation(self, mean: Tensor) -> Tensor:
        """(a, d) standard deviation of every coordinate within each crowd, of the population."""
        squared_mean = mean * mean
        variance = self.roster.average(self.vectors * self.vectors).sub_(squared_mean)
        trust = torch.sub(variance, squared_mean, alpha=1 / DOUBTFUL)
        if trust.amin() >= 0:  # comparing each is slower than all of the above
            return variance.sqrt_()
        doubtful, overflown = trust < 0, ~variance.isfinite()
        variance[doubtful] = self._exact_variance(mean, doubtful)
        deviation = variance.sqrt_()
        if overflown.any():
            deviation[overflown] = self._exact_variance(mean.double(), overflown).sqrt().to(mean.dtype)
        return deviation

    def _exact_variance(self, mean: Tensor, where: Tensor) -> Tensor:
        """Variances of some coordinates (a, d) from differences to the mean."""
        crowds, columns = where.nonzero(as_tuple=True)
        variance = torch.zeros_like(mean[crowds, columns])
        for s in range(self.roster.slots.shape[1]):
            apart = self.vectors[self.roster.slots[crowds, s], columns].to(mean.dtype).sub_(mean[crowds, columns])
            variance.addcmul_(apart, apart * self.roster.weights[crowds, s].to(apart.dtype))
        return variance

    def least(self, signs: Tensor) -> Tensor:
        """(a, d) smallest value of every coordinate times its sign (a, d) within each crowd."""
        rows, d = self.roster.filled, self.vectors.shape[1]
        least = torch.empty_like(signs)
        for part in column_blocks(d, max(256, 2 * TILE // max(1, rows.numel()))):
            members = gather(self.vectors, rows, part).mul_(signs[:, None, part])
            torch.amin(members, 1, out=least[:, part])
        return least.addcmul_(signs, self.centre)

    def lies(self, rows: Tensor) -> Told:
        """Every malicious client tells each victim its row (a, d), a model, or an update; rows are overwritten."""
        return Told(rows if self.origin is None else rows.add_(self.origin), *self.roster.to_crowds)

    def lies_one_by_one(self, rows: Tensor) -> Told:
        """Each speaker tells a victim its own row (e, d), a model, or an update; rows are overwritten."""
        if self.origin is not None:
            rows += self.origin.index_select(0, self.roster.crowds)
        return Told(rows, self.roster.senders, self.roster.receivers[self.roster.crowds])


class Told(NamedTuple):
    """Lies that are not checked, because they may be about some of the parameters only."""

    rows: Tensor
    senders: Tensor
    receivers: Tensor


def perturbation(kind: Perturbation, crowd: Crowd, mean: Tensor) -> Tensor:
    """(a, d) the direction in which a lie leaves the mean (given less the centre) of a crowd."""
    if kind == "std":  # of a sample, as in the code of Shejwalkar and Houmansadr
        count = crowd.roster.counts.to(mean.dtype)[:, None]
        return crowd.deviation(mean) * (count / (count - 1).clamp_min(1)).sqrt()
    whole = mean + crowd.centre
    if kind == "sign":
        return whole.sign_()
    return whole / kernels.norms(whole).to(whole.dtype).clamp_min(torch.finfo(whole.dtype).tiny)[:, None]


def slopes(direction: Tensor, base: Tensor, inbox: Inbox) -> Tensor:
    """(a, k) product of a direction (a, d) with base (a, d) less each message; 0 where there is none."""
    cosines, size = kernels.cosines(direction, inbox)
    products = cosines * size[:, None] * inbox.lengths(inbox.present)
    along = torch.zeros_like(size)
    for part in column_blocks(base.shape[1], max(2048, TILE // len(base))):
        along += (direction[:, part].double() * base[:, part]).sum(1)
    return (along[:, None] - products).where(inbox.present, 0)


def by_columns(forge: Callable[[AttackT, Knowledge], Told]) -> Callable[[AttackT, Knowledge], Lies | None]:
    """Forge block by block of columns, in cache, what an attack computes for every coordinate on its own."""

    @wraps(forge)
    @torch.no_grad()
    def forge_in_blocks(self: AttackT, known: Knowledge) -> Lies | None:
        if known.is_hopeless:
            return None
        n, d = known.models.shape
        parts = column_blocks(d, max(2048, 2 * TILE // (3 * n)))
        first = next(parts)
        told = forge(self, known.columns(first))
        rows = new_output(known.models, len(told.rows), d)
        rows[:, first] = told.rows
        for part in parts:
            rows[:, part] = forge(self, known.columns(part)).rows
        return Lies(rows, told.senders, told.receivers)

    return forge_in_blocks


def in_full(forge: Callable[[AttackT, Knowledge], Told]) -> Callable[[AttackT, Knowledge], Lies | None]:
    """Forge at once what an attack computes from whole models, those in half precision as float32."""

    @wraps(forge)
    @torch.no_grad()
    def forge_widened(self: AttackT, known: Knowledge) -> Lies | None:
        if known.is_hopeless:
            return None
        told = forge(self, known.widened())
        return Lies(told.rows.to(known.models.dtype), told.senders, told.receivers)

    return forge_widened
