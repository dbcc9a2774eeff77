"""Settings that change from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from equipoise._utils.formatting import as_call
from equipoise._utils.rng import stream

SettingT = TypeVar("SettingT")


@dataclass(frozen=True)
class EachRound(Generic[SettingT]):
    """A setting that is drawn anew in every round: ``draw(t, generator)`` returns it.

    The generator depends on the seed of the simulator, on the round and on the name of the
    setting: ``topology``, ``rule`` or ``alpha``.

    In the BALANCE paper, clients that disconnect are
    ``EachRound(lambda t, generator: graph.drop(0.2, generator))``, Case II is
    ``EachRound(lambda t, generator: torch.rand(n, generator=generator))`` for ``alpha``, and
    Case IV draws a `PerClient` rule.

    >>> alpha = eq.EachRound(lambda t, generator: torch.rand(3, generator=generator))
    >>> alpha.at(0, seed=1, name="alpha").shape
    torch.Size([3])
    """

    draw: Callable[[int, torch.Generator], SettingT]

    __repr__ = as_call

    def at(self, t: int, *, seed: int, name: str) -> SettingT:
        """The setting of that name in round t."""
        # One stream per setting and round: the draws of one setting do not shift those of another,
        # and a run can be resumed in any round.
        return self.draw(t, stream(seed, name, t))
