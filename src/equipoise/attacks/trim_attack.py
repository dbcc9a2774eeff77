"""The attack on trimmed means: just beyond the benign extremes, on the wrong side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.attacks.crowd import Crowd, Scope, by_columns
from equipoise.attacks.knowledge import Knowledge, Space
from equipoise.attacks.options import check_options
from equipoise.lies import Lies


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
    def forge(self, known: Knowledge) -> Lies:
        """One row per message, or, if not random, one per victim or one for all."""
        crowd = Crowd.of(known, self, self.scope, self.space, everybody=self.form == "group")
        near, far = self._ends(known, crowd)
        if not self.random:
            return crowd.lies(far - crowd.centre)
        senders, crowds = crowd.speakers(known)
        share = known.rand(len(crowds), near.shape[1])
        if self.form == "fang":
            rows = torch.lerp(near[crowds], far[crowds], share)
        else:
            r = share.mul_(self.factor - 1).add_(1)
            rows = near[crowds] * torch.where((far.abs() < near.abs())[crowds], 1 / r, r)
        return crowd.lies_of(senders, crowds, rows - crowd.centre)

    def _ends(self, known: Knowledge, crowd: Crowd) -> tuple[Tensor, Tensor]:
        """(a, d) the extreme to go beyond, and the far end; both what to say instead where there is no direction."""
        mean = crowd.mean() + crowd.centre
        low, high = (values.add_(crowd.centre) for values in crowd.extremes())
        if self.form == "group":
            direction, fallback = mean, torch.zeros_like(mean)
        else:
            updates = crowd if self.space == "update" else Crowd.of(known, self, self.scope, "update")
            direction, fallback = updates.mean() + updates.centre, mean
        near = torch.where(direction > 0, low, high)
        far = torch.where((near > 0) == (direction > 0), near / self.factor, near * self.factor)
        return near.where(direction != 0, fallback), far.where(direction != 0, fallback)
