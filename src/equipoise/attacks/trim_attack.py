"""The attack on trimmed means: just beyond the benign extremes, on the wrong side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise._utils.validation import check_options
from equipoise.attacks._neighborhoods import Roster
from equipoise.attacks._statistics import Crowd, Told, by_columns
from equipoise.attacks.knowledge import Knowledge, Scope, Space


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
        random: every malicious client draws its own :math:`r` (or, for ``"fang"``, place between x and its far end)
            for every coordinate, uniformly, each round; otherwise all of them send the far end.
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
        direction, extreme, mean = self._aim(known, crowd)
        rows = (self._between if self.form == "fang" else self._beyond)(known, crowd.roster, direction, extreme, mean)
        return crowd.lies_one_by_one(rows) if self.random else crowd.lies(rows)

    def _aim(self, known: Knowledge, crowd: Crowd) -> tuple[Tensor, Tensor, Tensor]:
        """(a, d) direction s, s times the extreme on its wrong side, and the mean."""
        mean = crowd.mean().add_(crowd.centre)
        if self.form == "group":
            direction = mean.sign()
        else:
            direction = (mean.clone() if self.space == "update" else self._mean_update(known)).sign_()
        return direction, crowd.least(direction), mean

    def _mean_update(self, known: Knowledge) -> Tensor:
        """(a, d) mean of the benign updates; only its sign counts, so they need not be centred."""
        roster = known.roster(self.scope)
        updates = known.models.index_select(0, roster.clients)
        return roster.average(updates.sub_(known.before(self).index_select(0, roster.clients)))

    def _beyond(self, known: Knowledge, roster: Roster, direction: Tensor, extreme: Tensor, mean: Tensor) -> Tensor:
        """The extreme times r where it has the other sign than s, over r elsewhere; a branch would be slow."""
        other = extreme.sign().mul_(-0.5).add_(0.5)
        extreme.mul_(direction)
        multiplied = other.mul_(extreme)
        divided = extreme.sub_(multiplied)
        if not self.random:
            return multiplied.mul_(self.factor).add_(divided, alpha=1 / self.factor)
        r = known.rand(known.malicious_count, extreme.shape[1], low=1.0, high=self.factor)
        told, speakers = roster.crowds, roster.speakers
        rows = multiplied.index_select(0, told).mul_(r.index_select(0, speakers))
        return rows.addcmul_(divided.index_select(0, told), r.reciprocal_().index_select(0, speakers))

    def _between(self, known: Knowledge, roster: Roster, direction: Tensor, extreme: Tensor, mean: Tensor) -> Tensor:
        """From the extreme to its far end, or a share of the way; the mean where s is 0, as the extreme is there."""
        way = torch.minimum(extreme / self.factor, extreme * self.factor).sub_(extreme).mul_(direction)
        near = torch.lerp(mean, extreme.mul_(direction), direction.abs_())
        if not self.random:
            return near.add_(way)
        share = known.rand(known.malicious_count, extreme.shape[1]).index_select(0, roster.speakers)
        return near.index_select(0, roster.crowds).addcmul_(way.index_select(0, roster.crowds), share)
