"""The attack on trimmed means: just beyond the benign extremes, on the wrong side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.attacks.crowd import Crowd, Told, by_columns
from equipoise.attacks.knowledge import Knowledge, Scope, Space
from equipoise.attacks.options import check_options
from equipoise.attacks.roster import Roster


@dataclass(frozen=True)
class TrimAttack:
    r"""Every coordinate lies beyond the extreme value on the side that benign training comes from.

    Fang et al., *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX Security 2020, in two
    forms. With :math:`x` the smallest value of a coordinate where its direction :math:`s` is positive, and the
    largest where it is negative, and :math:`r` between 1 and ``factor``, the lie is

    .. math:: x / r \text{ if } s x > 0, \qquad x r \text{ if } s x < 0

    ``form="group"`` is the code of the BALANCE paper's group: :math:`s` is the sign of the sum of all neighbours'
    vectors, those of malicious clients before the attack included, and so are the extremes. Applied to models, as
    that paper's
    results suggest, it shrinks their weights. Where :math:`s = 0` the lie is 0. ``form="fang"`` is the original:
    :math:`s` is the sign of the benign clients' mean update, and extremes are over benign clients; where :math:`s =
    0` the lie is their mean.

    Args:
        form: ``"group"`` or ``"fang"``.
        factor: the largest :math:`r`.
        random: draw :math:`r` (or, for ``"fang"``, the place between x and its far end) uniformly, anew for every
            coordinate of every message; otherwise all malicious clients send the far end.
        scope: look at the neighbours of each victim, ``"receiver"``, or at all clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[1.0], [3.0], [2.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.TrimAttack(random=False, scope="global").forge(known).rows
    tensor([[0.5000]])
    """

    form: Literal["group", "fang"] = "group"
    factor: float = 2.0
    random: bool = True
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        if not self.factor >= 1:
            raise ValueError(f"factor must be a number >= 1, found {self.factor}")

    @by_columns
    def forge(self, known: Knowledge) -> Told:
        """One row per message, or, if not random, one per victim or one for all."""
        crowd = Crowd.of(known, self, self.scope, self.space, everybody=self.form == "group")
        direction, near, fallback = self._aim(known, crowd)
        if self.form == "fang":
            rows = self._between(known, crowd.roster, direction, near)
        else:
            rows = self._beyond(known, crowd.roster, direction, near)
        if fallback is not None:
            instead = fallback.addcmul(fallback, direction.abs(), value=-1)
            rows += instead.index_select(0, crowd.roster.crowds) if self.random else instead
        return crowd.lies_one_by_one(rows) if self.random else crowd.lies(rows)

    def _aim(self, known: Knowledge, crowd: Crowd) -> tuple[Tensor, Tensor, Tensor | None]:
        """(a, d) direction, the extreme on its wrong side, 0 where it is 0, and what to say there instead, if not 0."""
        mean = crowd.mean().add_(crowd.centre)
        if self.form == "group":
            direction, fallback = mean.sign_(), None
        else:
            updates = crowd if self.space == "update" else Crowd.of(known, self, self.scope, "update")
            direction, fallback = (updates.mean() + updates.centre).sign_(), mean
        low, high = (values.add_(crowd.centre).mul_(direction) for values in crowd.extremes())
        near = torch.minimum(low, high, out=low).mul_(direction)
        return direction, near, fallback if direction.abs().amin() == 0 else None

    def _beyond(self, known: Knowledge, roster: Roster, direction: Tensor, near: Tensor) -> Tensor:
        """``near * r`` where that is farther, ``near / r`` where this is; without a branch, which would be slow."""
        farther = (near.sign() * direction).mul_(-0.5).add_(0.5)  # 1 where x and s have different signs, else 0
        multiplied = near * farther
        divided = near.sub_(multiplied)
        if not self.random:
            return multiplied.mul_(self.factor).add_(divided, alpha=1 / self.factor)
        r = known.rand(len(roster.crowds), near.shape[1]).mul_(self.factor - 1).add_(1)
        rows = multiplied.index_select(0, roster.crowds).mul_(r)
        return rows.addcdiv_(divided.index_select(0, roster.crowds), r)

    def _between(self, known: Knowledge, roster: Roster, direction: Tensor, near: Tensor) -> Tensor:
        """A place between near and the far end."""
        far = torch.minimum(near * direction / self.factor, near * direction * self.factor).mul_(direction)
        if not self.random:
            return far
        share = known.rand(len(roster.crowds), near.shape[1])
        way = far.sub_(near).index_select(0, roster.crowds)
        return way.mul_(share).add_(near.index_select(0, roster.crowds))
