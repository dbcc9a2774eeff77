"""Driving rules that talk once or several times a round by one interface."""

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
    """A plain rule as one that talks several times, once."""

    rule: Aggregator

    def exchanges(self, own: Tensor, **inputs: Unpack[RoundInputs]) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield own, return the rule's aggregate of what came back."""
        return self.rule(own, (yield own), **inputs)


def as_multi_exchange(rule: Aggregator | MultiExchange) -> MultiExchange:
    """The rule itself if it talks several times a round, otherwise the rule lifted to that interface.

    >>> talk = eq.as_multi_exchange(eq.Median()).exchanges(torch.zeros(1))
    >>> next(talk)
    tensor([0.])
    """
    return rule if isinstance(rule, MultiExchange) else OneExchange(rule)


def converse(
    rule: Aggregator | MultiExchange,
    own: Tensor,
    exchange: Callable[[Tensor], Tensor | Inbox],
    **inputs: Unpack[RoundInputs],
) -> tuple[Tensor, Aggregated]:
    """Run all exchanges of one round: returns the model to mix with, and the aggregate.

    ``exchange`` sends what it is given, the messages of one client (d,) or of all (n, d), and returns what came back.

    >>> exchange = lambda sent: torch.tensor([[2.0], [4.0]])
    >>> own, out = eq.converse(eq.FedAvg(), torch.zeros(1), exchange)
    >>> eq.mix(own, out.model, alpha=0.5)
    tensor([1.5000])
    """
    check_inputs(_name(rule), inputs)
    talk = as_multi_exchange(rule).exchanges(own, **inputs)
    if not isinstance(talk, Generator):
        raise ValueError(f"{_name(rule)}.exchanges must be a generator, which yields, found {describe(talk)}")
    try:
        sent = next(talk)
    except StopIteration:
        raise ValueError(f"{_name(rule)}.exchanges must yield what is sent, found nothing") from None
    while True:
        received = exchange(sent)
        try:
            sent = talk.send(received)
        except StopIteration as stop:
            return sent, _checked(rule, stop.value)


def _checked(rule: object, out: object) -> Aggregated:
    """What a rule returned, if it is what rules return."""
    if not isinstance(out, Aggregated):
        raise ValueError(f"{_name(rule)} must return an Aggregated, found {describe(out)}; Aggregated(model) makes one")
    if out.weights is not None and not isinstance(out.weights, Tensor):
        raise ValueError(f"weights of {_name(rule)} must be a tensor or None, found {describe(out.weights)}")
    return out


def _name(rule: object) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
