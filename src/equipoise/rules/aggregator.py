"""The protocols of rules: one exchange of messages in a round, or several."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, runtime_checkable

from torch import Tensor
from typing_extensions import Unpack

from equipoise.messages import Inbox
from equipoise.types import Aggregated, RoundInputs


@runtime_checkable
class Aggregator(Protocol):
    """A rule that talks once a round."""

    def __call__(self, own: Tensor, received: Tensor | Inbox, **inputs: Unpack[RoundInputs]) -> Aggregated:
        """Aggregate for one client (``own (d,)``) or for all clients of an inbox (``own (n, d)``)."""
        ...


@runtime_checkable
class MultiExchange(Protocol):
    """A rule that talks several times a round.

    ``exchanges`` is a generator: it yields what every client sends, is sent back what they received, and returns the
    aggregate. The model to mix the aggregate with is the last one that it yielded. A rule that first exchanges updates
    may say so, to attackers of its messages, in a method ``sends_updates(exchange, t) -> bool``.
    """

    def exchanges(self, own: Tensor, **inputs: Unpack[RoundInputs]) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield messages, receive inboxes, return the aggregate."""
        ...
