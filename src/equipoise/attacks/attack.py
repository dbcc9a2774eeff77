"""The protocols of attacks: on training data, and on messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from equipoise.messages import Lies

if TYPE_CHECKING:
    from equipoise.attacks.knowledge import Knowledge


@runtime_checkable
class DataAttack(Protocol):
    """An attack on what a malicious client trains on; it then trains and sends like everybody else."""

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Poisoned copies of a malicious client's examples and labels; the given tensors stay as they are."""
        ...


@runtime_checkable
class MessageAttack(Protocol):
    """An attack on what malicious clients send.

    The adversary is rushing and knows everything: see `equipoise.attacks.Knowledge`. It returns lies per sender, per
    receiver or per edge, or None to tell the truth. Whatever it returns, only malicious clients' messages change:
    that is decided where messages are delivered.
    """

    def forge(self, known: Knowledge) -> Lies | None:
        """What malicious clients say this round instead of their models."""
        ...


Attack: TypeAlias = DataAttack | MessageAttack
"""An attack on data, on messages, or, if it has both methods, on both."""
