"""The models that an attack looks at, for each victim or for all of them at once, and their statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Literal, TypeVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.attacks.knowledge import Knowledge, Space
from equipoise.inbox import Inbox
from equipoise.kernels.blocks import TILE, chunks, column_blocks, gather
from equipoise.lies import Lies
from equipoise.rules.base import uniform

Scope = Literal["receiver", "global"]
Perturbation = Literal["unit", "sign", "std"]
AttackT = TypeVar("AttackT")


@dataclass(frozen=True, eq=False)
class Crowd:
    """What the benign neighbours of each victim say (scope "receiver"), or all benign clients (scope "global").

    ``inbox`` has one receiver per victim, or one for all; its bank are vectors less ``centre (d,)``, which is in the
    midst of the benign ones, so that what they differ in keeps its digits. A victim without benign neighbours has
    itself for a crowd. Vectors are models, or updates, and then ``origin`` (a, d) is what a lie starts from.
    """

    inbox: Inbox
    receivers: Tensor  # (a,) ids of the victims, or -1
    tolls: Tensor  # (a,) how many malicious clients speak to them
    centre: Tensor
    origin: Tensor | None

    @property
    def alone(self) -> Tensor:
        """(a,) which victims have no benign neighbour, and so themselves for a crowd."""
        return (self.inbox.counts == 1) & (self.inbox.slots[:, 0] == self.receivers) & self.inbox.present[:, 0]

    @classmethod
    def of(
        cls, known: Knowledge, attack: object, scope: Scope, space: Space = "model", everybody: bool = False
    ) -> Crowd:
        """The crowd that an attack looks at; with ``everybody``, malicious clients' models before the attack too."""
        before = known.before(attack) if space == "update" else None
        vectors = known.models if before is None else known.models - before
        centre = known.central[known.sane] @ vectors[known.sane]
        members = known.sane | known.liars if everybody else known.sane
        if scope == "global":
            origin = None if before is None else before[known.sane].mean(0, keepdim=True)
            everyone = torch.full_like(known.victims[:1], -1)
            return cls(Inbox(vectors - centre, members.nonzero().T), everyone, known.liars.sum()[None], centre, origin)
        origin = None if before is None else before[known.victims]
        inbox = Inbox(vectors - centre, *_neighbours(known, members))
        return cls(inbox, known.victims, known.tolls[known.victims], centre, origin)

    def mean(self) -> Tensor:
        """(a, d) mean of each crowd, less the centre."""
        return combine(self.inbox, uniform(self.inbox.present))

    def deviation(self, mean: Tensor) -> Tensor:
        """(a, d) standard deviation of every coordinate within each crowd, of the population."""
        inbox, variance = self.inbox, torch.zeros_like(mean)
        weights = uniform(inbox.present).to(mean.dtype)
        for columns in chunks(inbox.d, len(mean)):
            for s in range(inbox.k):
                apart = gather(inbox.bank, self._members[:, s], columns).sub_(mean[:, columns])
                variance[:, columns].addcmul_(apart, apart * weights[:, s, None])
        return variance.sqrt_()

    def extremes(self) -> tuple[Tensor, Tensor]:
        """(a, d) smallest and largest value of every coordinate within each crowd, less the centre."""
        inbox, rows = self.inbox, self._members
        low, high = (inbox.bank.new_empty(len(rows), inbox.d) for _ in range(2))
        for columns in chunks(inbox.d, len(rows)):
            lowest = highest = gather(inbox.bank, rows[:, 0], columns)
            for s in range(1, inbox.k):
                values = gather(inbox.bank, rows[:, s], columns)
                lowest, highest = torch.minimum(lowest, values), torch.maximum(highest, values)
            low[:, columns], high[:, columns] = lowest, highest
        return low, high

    @cached_property
    def _members(self) -> Tensor:
        """(a, k) rows of the members of each crowd, the first of them again where a slot is empty."""
        first = self.inbox.slots.gather(1, self.inbox.present.to(torch.int8).argmax(1, keepdim=True))
        return self.inbox.slots.where(self.inbox.present, first)

    def lies(self, rows: Tensor) -> Lies:
        """Every malicious client tells each victim its row (a, d), given less the centre."""
        everybody = torch.full_like(self.receivers, -1)
        return self.lies_of(everybody, torch.arange(len(rows), device=rows.device), rows)

    def lies_of(self, senders: Tensor, crowds: Tensor, rows: Tensor) -> Lies:
        """``senders[j]`` tells the victim of ``crowds[j]`` row j, given less the centre."""
        rows = rows + self.centre
        if self.origin is not None:
            rows += self.origin[crowds]
        return Lies(rows, senders, self.receivers[crowds])

    def speakers(self, known: Knowledge) -> tuple[Tensor, Tensor]:
        """Who lies to which crowd's victim, one by one: (e,) senders and (e,) crowds."""
        if self.receivers[0] < 0:
            senders = known.liars.nonzero().flatten()
            return senders, torch.zeros_like(senders)
        senders, mask = known.heard
        crowds, slots = (mask & known.liars[senders]).nonzero(as_tuple=True)
        return senders[crowds, slots], crowds


def combine(inbox: Inbox, weights: Tensor) -> Tensor:
    """(a, d) weighted sums of the messages of an inbox."""
    nothing = inbox.bank.new_zeros(1, 1).expand(inbox.n, inbox.d)
    return kernels.combine(nothing, weights.new_zeros(inbox.n), inbox, weights)


def perturbation(kind: Perturbation, crowd: Crowd, mean: Tensor) -> Tensor:
    """(a, d) the direction in which a lie leaves the mean (given less the centre) of a crowd."""
    if kind == "std":  # of a sample, as in the code of Shejwalkar and Houmansadr
        count = crowd.inbox.counts.to(mean.dtype)[:, None]
        return crowd.deviation(mean) * (count / (count - 1).clamp_min(1)).sqrt()
    whole = mean + crowd.centre
    if kind == "sign":
        return whole.sign_()
    return whole / kernels.norms(whole).to(whole.dtype).clamp_min(torch.finfo(whole.dtype).tiny)[:, None]


def slopes(direction: Tensor, base: Tensor, inbox: Inbox) -> Tensor:
    """(a, k) product of a direction (a, d) with base (a, d) less each message; 0 where there is none."""
    size = kernels.norms(direction)
    lengths = inbox.bank_norms[inbox.slots.where(inbox.present, 0)]
    products = kernels.cosines(direction, inbox, size) * size[:, None] * lengths
    return ((direction.double() * base.double()).sum(1)[:, None] - products).where(inbox.present, 0)


def _neighbours(known: Knowledge, members: Tensor) -> tuple[Tensor, Tensor]:
    """(v, k) slots and mask of the victims' neighbours that are members; of the victim itself if there are none."""
    slots, mask = known.heard
    mask = mask & members[slots]
    alone = ~mask.any(1)
    if alone.any():
        slots = slots.clone()
        slots[alone, 0], mask[alone, 0] = known.victims[alone], True
    return slots, mask


def by_columns(forge: Callable[[AttackT, Knowledge], Lies]) -> Callable[[AttackT, Knowledge], Lies | None]:
    """Forge block by block of columns, in cache, what an attack computes for every coordinate on its own."""

    @wraps(forge)
    @torch.no_grad()
    def forge_in_blocks(self: AttackT, known: Knowledge) -> Lies | None:
        if not len(known.victims):
            return None
        n, d = known.models.shape
        rows, lies = known.models.new_empty(0, d), None
        for part in column_blocks(d, max(2048, TILE // n)):
            lies = forge(self, known.columns(part))
            if not len(rows):
                rows = rows.new_empty(len(lies.rows), d)
            rows[:, part] = lies.rows
        return None if lies is None else replace(lies, rows=rows)

    return forge_in_blocks
