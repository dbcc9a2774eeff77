"""The protocols of rules: one exchange of messages a round, or several."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, runtime_checkable

from torch import Tensor
from typing_extensions import Unpack

from equipoise.messages import Inbox
from equipoise.types import Aggregated, RoundInputs


# The optional attributes are not declared in the protocols: `isinstance` would then require them,
# and a plain function could not be a rule.
@runtime_checkable
class Aggregator(Protocol):
    """A rule with one exchange a round.

    Two attributes are optional. ``needs`` names the round inputs that the rule reads, as a tuple of
    strings; without it, drivers pass all inputs that they have. ``contains_own`` says whether the
    aggregate already contains own, as in gossip averaging; without it, it does not.
    """

    def __call__(
        self, own: Tensor, received: Tensor | Inbox, **inputs: Unpack[RoundInputs]
    ) -> Aggregated:
        """Aggregate for one client, ``own (d,)``, or for all clients of an inbox, (n, d)."""
        ...


@runtime_checkable
class MultiExchange(Protocol):
    """A rule with several exchanges a round.

    ``exchanges`` is a generator. It yields the messages that the clients send, is sent back the
    messages that they receive, and returns the aggregate. The aggregate is mixed with the last
    value that it yielded. A rule whose first exchanges carry updates may declare them with a method
    ``sends_updates(exchange, t) -> bool``, which attacks on messages ask. ``needs`` and
    ``contains_own`` are optional, as in `Aggregator`.
    """

    def exchanges(
        self, own: Tensor, **inputs: Unpack[RoundInputs]
    ) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield messages, receive inboxes, return the aggregate."""
        ...
