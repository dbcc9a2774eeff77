"""The attack on Krum: the farthest lie along a direction that Krum would still choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_options
from equipoise.attacks._neighborhoods import Roster
from equipoise.attacks._statistics import Crowd, Told, in_full, slopes
from equipoise.attacks.knowledge import Knowledge, Scope, Space
from equipoise.rules import Krum, without_warnings

SMALLEST = 1e-5
FEW = 2  # messages that are as far from each other: Krum has no choice
TESTED = 1 << 17  # squared distances that are compared at once


@dataclass(frozen=True)
class KrumAttack:
    r"""All malicious clients send :math:`b - \lambda s`, with :math:`\lambda` halved until Krum chooses it.

    Fang et al., *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX Security 2020, in two
    forms.

    ``form="group"`` is the code of the BALANCE paper's group: :math:`b = 0`, :math:`s` is the sign of what Krum chooses
    before the attack, and :math:`\lambda` starts at 1. Applied to models, as that paper's results suggest, Krum hardly
    ever chooses it, :math:`\lambda` ends at :math:`2^{-17}`, and the message is almost the zero model. Of two messages,
    as in a ring, none is closer to the rest than the other: to a victim that hears no more, each malicious client
    sends minus what it would say, without noise.
    ``form="fang"`` is the original: :math:`b` is the victim's model before this round, :math:`s` the sign of the
    change that Krum would make to it, and :math:`\lambda` starts at

    .. math:: \min_i \frac{\sum_{l \in \text{nearest}_q(i)} \|w_l - w_i\|}{(m - 2f - 1) \sqrt d} +
              \max_l \frac{\|w_l - b\|}{\sqrt d}, \qquad q = m - f - 2

    over the benign among :math:`m` neighbours, f of them malicious; :math:`m - 2f - 1` and :math:`q` are at least 1
    here.

    Args:
        form: ``"group"`` or ``"fang"``.
        noise: all but the malicious client of the lowest id add noise up to this norm, 0.01 in both sources, so that
            their messages differ; the search for :math:`\lambda` takes them for equal.
        scope: look at the neighbours of each victim, ``"receiver"``, or at all clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[1.0], [2.0], [2.1], [2.2]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(4), malicious=[3])
    >>> eq.attacks.KrumAttack(scope="global").forge(known).rows < 0
    tensor([[True]])
    """

    form: Literal["group", "fang"] = "group"
    noise: float = 0.01
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be a finite number >= 0, found {self.noise}")

    @in_full
    def forge(self, known: Knowledge) -> Told:
        """One row per victim, or one for all; with noise, one per message."""
        everybody = Crowd.of(known, self, self.scope, self.space, everybody=True)
        crowd = Crowd.of(known, self, self.scope, self.space)
        base = self._base(known, crowd)
        with without_warnings():
            chosen = Krum()(everybody.mean(), everybody.inbox, tolerated=everybody.roster.tolls).model
        if self.form == "fang":
            direction = chosen.sub_(base).add_(everybody.centre - crowd.centre).sign_()
        else:
            direction = chosen.add_(everybody.centre).sign_()
        strength = self._strength(crowd, base, direction, _first_speakers(crowd.roster, len(known.models)))
        rows = torch.addcmul(base, direction, -strength.to(base.dtype)[:, None]).add_(crowd.centre)
        told = crowd.lies(rows) if self.noise == 0 else self._with_noise(known, crowd, rows)
        return told if self.form == "fang" else self._with_reversals(known, crowd, told)

    def _base(self, known: Knowledge, crowd: Crowd) -> Tensor:
        """(a, d) where the lie starts from, less the centre."""
        if self.form == "group" or self.space == "update":
            return -crowd.centre.expand(crowd.inbox.n, -1)
        before = known.before(self)
        rows = before[known.victims] if self.scope == "receiver" else before[known.sane].mean(0, keepdim=True)
        return rows - crowd.centre

    def _strength(self, crowd: Crowd, base: Tensor, direction: Tensor, first_liars: Tensor) -> Tensor:
        """(a,) the largest halving of the first strength that Krum chooses, or the first one that is too small."""
        inbox = crowd.inbox
        apart = kernels.distances(base, inbox)[0]
        step, along = kernels.norms(direction).square(), slopes(direction, base, inbox)
        result = torch.ones(inbox.n, dtype=torch.float64, device=base.device)
        for group, squares in kernels.message_distances(base, inbox):
            victims, places = group.receivers, (group.receivers[:, None], group.columns)
            contest = Contest(
                squares,
                apart[places].square(),
                along[places],
                step[victims],
                crowd.roster.tolls[victims],
                first_liars[victims, None] < inbox.senders[places],
                crowd.roster.alone[victims],
            )
            first = contest.bound(base.shape[1]) if self.form == "fang" else result[victims]
            result[victims] = contest.strength(first)
        return result

    def _with_noise(self, known: Knowledge, crowd: Crowd, rows: Tensor) -> Told:
        crowds = crowd.roster.crowds
        noise = known.rand(len(crowds), rows.shape[1]).sub_(0.5)
        size = self.noise * known.rand(len(crowds)) / kernels.norms(noise).to(rows.dtype)
        size[1:] *= crowds[1:] == crowds[:-1]  # speakers are in the order of crowds
        size[:1] = 0
        return crowd.lies_one_by_one(noise.mul_(size[:, None]).add_(rows[crowds]))

    def _with_reversals(self, known: Knowledge, crowd: Crowd, told: Told) -> Told:
        """What is told, but the reverse of their own vectors by those whose victim hears at most two messages."""
        roster = crowd.roster
        heard = roster.counts.masked_fill(roster.alone, 0) + roster.tolls
        reversing = (heard <= FEW)[roster.crowds] & known.finite[roster.senders]
        if not reversing.any():
            return told
        senders, crowds = roster.senders[reversing], roster.crowds[reversing]
        rows = -known.models[senders]
        if crowd.origin is not None:
            rows += known.before(self)[senders] + crowd.origin[crowds]
        others = ~reversing  # what is told is one row per speaker, or, without noise, one per victim
        kept = others if self.noise else torch.zeros_like(roster.alone).index_fill(0, roster.crowds[others], True)
        reversals = Told(rows, senders, roster.receivers[crowds])
        return Told(*(torch.cat([old[kept], new]) for old, new in zip(told, reversals, strict=True)))


class Contest(NamedTuple):
    """Which of c benign messages, or of some equal lies, Krum chooses for each of r victims."""

    squares: Tensor  # (r, c, c) squared distances of the benign messages
    from_base: Tensor  # (r, c) squared distances to where the lie starts
    slope: Tensor  # (r, c) how these shrink along its direction
    step: Tensor  # (r,) squared length of the direction
    tolls: Tensor  # (r,) number of lies
    lies_win_ties: Tensor  # (r, c) whether a benign message has a higher id than the lie
    alone: Tensor  # (r,) whether there is no benign neighbour

    def bound(self, d: int) -> Tensor:
        """(r,) the bound of Fang et al. on the strength that Krum can choose."""
        count = self.squares.shape[1]
        ordered = self.squares.sqrt().sort(dim=2).values.cumsum(2)  # the first is the distance to itself, 0
        nearest = min(max(count - 2, 1), count - 1) if count > 1 else 0
        smallest = ordered[:, :, nearest].amin(1)
        others = (count - self.tolls - 1).clamp_min(1)
        return (smallest / others + self.from_base.amax(1).sqrt()) / math.sqrt(d)

    def strength(self, first: Tensor) -> Tensor:
        """(r,) the largest halving of the first strength that Krum chooses, or the first one that is too small."""
        strength, open_ = first, torch.ones_like(first, dtype=torch.bool)
        several = min(max(TESTED // self.squares.numel(), 1), 18)
        halvings = 0.5 ** torch.arange(several + 1, dtype=first.dtype, device=first.device)
        for _ in range(200):
            tested = strength[:, None] * halvings
            stops = (self.wins(tested[:, :-1]) | (tested[:, :-1] <= SMALLEST)).to(torch.int8)
            place = torch.where(stops.any(1), stops.argmax(1), several)
            strength = torch.where(open_, tested.gather(1, place[:, None])[:, 0], strength)
            open_ = open_ & ~stops.any(1)
            if not open_.any():
                break
        return strength

    def wins(self, strengths: Tensor) -> Tensor:
        """(r, h) whether Krum chooses lies of h strengths."""
        r, h = strengths.shape
        squares, tolls, ties = (x.repeat_interleave(h, 0) for x in (self.squares, self.tolls, self.lies_win_ties))
        moved = strengths[:, :, None]
        lied = self.from_base[:, None] - 2 * moved * self.slope[:, None] + moved.square() * self.step[:, None, None]
        return _is_chosen(squares, lied.flatten(0, 1).clamp_min(0), tolls, ties).view(r, h) | self.alone[:, None]


def _first_speakers(roster: Roster, n: int) -> Tensor:
    """(a,) the lowest id of those who lie to each victim: it wins ties against higher ones."""
    lowest = torch.full_like(roster.receivers, n)
    return lowest.scatter_reduce(0, roster.crowds, roster.senders, "amin")


def _is_chosen(squares: Tensor, lied: Tensor, tolls: Tensor, lies_win_ties: Tensor) -> Tensor:
    """(r,) whether Krum chooses one of ``tolls`` equal lies among benign messages.

    ``squares`` (r, c, c) are the squared distances of benign messages, ``lied`` (r, c) those of the lie to them, and
    ``lies_win_ties`` (r, c) says which of them have a higher id than the lie.
    """
    r, count = lied.shape
    copies = torch.arange(int(tolls.max()), device=tolls.device)
    nearest = (torch.full_like(tolls, count - 2).clamp_min(1).minimum(count + tolls - 1) - 1)[:, None]
    itself = torch.eye(count, dtype=torch.bool, device=tolls.device)
    to_lies = lied[:, :, None].expand(-1, -1, len(copies)).where(copies < tolls[:, None, None], torch.inf)
    benign = torch.cat([squares.masked_fill(itself, torch.inf), to_lies], 2).sort(dim=2).values.cumsum(2)
    scores = benign.gather(2, nearest[:, :, None].expand(-1, count, 1))[:, :, 0]
    between = torch.zeros_like(copies, dtype=torch.float64).expand(r, -1).where(copies < tolls[:, None] - 1, torch.inf)
    lie = torch.cat([lied, between], 1).sort(dim=1).values.cumsum(1).gather(1, nearest)
    return ((lie < scores) | ((lie == scores) & lies_win_ties)).all(1)
