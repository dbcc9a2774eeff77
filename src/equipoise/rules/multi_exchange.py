"""Run rules with one or several exchanges a round through one interface."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import Unpack

from equipoise._utils.validation import check_inputs, describe
from equipoise.messages import Inbox
from equipoise.rules.aggregator import Aggregator, MultiExchange
from equipoise.types import Aggregated, RoundInputs


@dataclass(frozen=True)
class OneExchange:
    """An aggregator as a multi-exchange rule with one exchange."""

    rule: Aggregator

    def exchanges(
        self, own: Tensor, **inputs: Unpack[RoundInputs]
    ) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield own; return the aggregate of the received messages."""
        return self.rule(own, (yield own), **inputs)


def as_multi_exchange(rule: Aggregator | MultiExchange) -> MultiExchange:
    """The rule itself if it is a `MultiExchange`, otherwise the rule with that interface.

    >>> exchanges = eq.as_multi_exchange(eq.Median()).exchanges(torch.zeros(1))
    >>> next(exchanges)
    tensor([0.])
    """
    return rule if isinstance(rule, MultiExchange) else OneExchange(rule)


def run_exchanges(
    rule: Aggregator | MultiExchange,
    own: Tensor,
    exchange: Callable[[Tensor], Tensor | Inbox],
    **inputs: Unpack[RoundInputs],
) -> tuple[Tensor, Aggregated]:
    """Run all exchanges of one round; return the model to mix with, and the aggregate.

    ``exchange`` sends its argument, the messages of one client (d,) or of all clients (n, d), and
    returns the messages that were received.

    >>> exchange = lambda sent: torch.tensor([[2.0], [4.0]])
    >>> own, out = eq.run_exchanges(eq.FedAvg(), torch.zeros(1), exchange)
    >>> eq.mix(own, out.model, alpha=0.5)
    tensor([1.5000])
    """
    # A rule may be a plain function, whose type says nothing.
    name = getattr(rule, "__name__", type(rule).__name__)
    check_inputs(name, inputs)
    exchanges = as_multi_exchange(rule).exchanges(own, **inputs)
    # A method without yield runs at once and returns no generator, which is easy to miss.
    if not isinstance(exchanges, Generator):
        raise ValueError(
            f"{name}.exchanges must return a generator, found {describe(exchanges)}; use yield"
        )
    try:
        sent = next(exchanges)
    except StopIteration:
        raise ValueError(
            f"{name}.exchanges must yield the messages to send, found nothing"
        ) from None
    # The last value that was sent is the one to mix with: LEARN sends updates before models.
    while True:
        received = exchange(sent)
        try:
            sent = exchanges.send(received)
        except StopIteration as stop:
            return sent, _checked_result(name, stop.value)


def _checked_result(rule: str, out: object) -> Aggregated:
    """The result of a rule; raise unless it is an `Aggregated`."""
    if not isinstance(out, Aggregated):
        hint = "Aggregated(model) makes one"
        raise ValueError(f"{rule} must return an Aggregated, found {describe(out)}; {hint}")
    # Any object with the right method is a rule, so that results are checked here, where the rule
    # can be named, and not where they are used.
    if out.weights is not None and not isinstance(out.weights, Tensor):
        found = describe(out.weights)
        raise ValueError(f"weights of {rule} must be a tensor or None, found {found}")
    return out
