"""The laws of rules by name, and `check_rule`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from hypothesis.strategies import SearchStrategy
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.messages import Inbox
from equipoise.rules import Aggregator, MultiExchange, run_exchanges, without_warnings
from equipoise.testing import _laws
from equipoise.testing._attacked_rounds import ALL_DTYPES
from equipoise.testing._counterexamples import Law, require_laws, select_laws
from equipoise.testing._rounds import RuleRound, rounds
from equipoise.types import Aggregated


def _law(
    function: Callable[..., None], cases: SearchStrategy[RuleRound] | None = None
) -> Law[RuleRound]:
    def check(rule: object, case: RuleRound) -> None:
        # A law takes the parts of a round, so that tests can call it without hypothesis.
        function(rule, case.own, case.inbox, **case.inputs)

    return Law(check, rounds() if cases is None else cases, function)


LAWS: Mapping[str, Law[RuleRound]] = {
    "batch": _law(_laws.batch),
    "tensor": _law(_laws.tensor),
    "padding": _law(_laws.padding),
    "slot_order": _law(_laws.slot_order),
    "starvation": _law(_laws.starvation),
    "nonfinite": _law(_laws.nonfinite, rounds(hostile=False)),
    "consensus": _law(_laws.consensus),
    "agreement": _law(_laws.agreement, rounds(whole=False)),
    "purity": _law(_laws.purity),
    # Hostile values, such as 1e30, are infinite in half precision: they have a law of their own.
    "kept": _law(_laws.kept, rounds(ALL_DTYPES, hostile=False)),
    "hostile": _law(_laws.kept),
    "weights_explain": _law(_laws.weights_explain),
}
"""The laws of rules, by name."""

_SINGLE_EXCHANGE_ONLY = ("tensor", "consensus", "agreement", "weights_explain")

MULTI_EXCHANGE_LAWS: Mapping[str, Law[RuleRound]] = {
    name: law for name, law in LAWS.items() if name not in _SINGLE_EXCHANGE_ONLY
}
"""The laws of rules with several exchanges per round, if each exchange delivers the same inbox."""


class AsSingleExchange:
    """A multi-exchange rule as a rule of one exchange: every exchange delivers the same inbox.

    If the rule says what clients with some models send in an exchange, they send that.
    """

    def __init__(self, rule: MultiExchange) -> None:
        self.rule = rule

    def __call__(self, own: Tensor, received: Tensor | Inbox, **inputs: Any) -> Aggregated:
        """Run all exchanges of a round."""
        numbers = count()

        def exchange(sent: Tensor) -> Tensor | Inbox:
            # `sent` is not used: the inbox is fixed.
            as_sent = getattr(self.rule, "as_sent", None)
            if as_sent is None:
                return received
            bank: Tensor = received if isinstance(received, Tensor) else received.bank
            messages: Tensor = as_sent(next(numbers), bank)
            return messages if isinstance(received, Tensor) else received.with_bank(messages)

        # The models to mix with, [0], obey no law.
        return run_exchanges(self.rule, own, exchange, **inputs)[1]

    def __repr__(self) -> str:
        return repr(self.rule)


def check_rule(
    rule: Aggregator | MultiExchange,
    *,
    laws: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    examples: int = 50,
) -> None:
    """Check the laws of rules; raise an AssertionError with a broken law and a small case.

    Args:
        rule: called as ``rule(own (n, d), inbox, **inputs)``, and for one client, with all of
            `equipoise.RoundInputs` except ``generator``, ``state`` and ``out``. All exchanges of a
            multi-exchange rule deliver the same inbox.
        laws: names from `LAWS`, or from `MULTI_EXCHANGE_LAWS` for a multi-exchange rule; all by
            default.
        skip: names of laws that the rule does not promise to obey. A rule that may reject or
            shorten messages near the own model does not promise ``agreement``; a rule that changes
            messages before it averages them does not promise ``weights_explain``.
        examples: number of random rounds for each law.

    >>> from equipoise import testing
    >>> testing.check_rule(eq.Median(), examples=5)
    >>> testing.check_rule(eq.SCClip(tau=0.01), skip=["agreement"], examples=5)
    >>> def forgetful(own, received, **inputs):
    ...     return eq.Aggregated(torch.zeros_like(own))
    >>> testing.check_rule(forgetful)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    AssertionError: the rule <function forgetful> breaks the law 'starvation'.
    The law: Without messages, or with only non-finite ones, the aggregate is the own model.
    """
    if not isinstance(rule, Aggregator | MultiExchange):
        raise ValueError(
            f"rule must be callable or have a method exchanges, found {describe(rule)}"
        )
    # The laws hold for any number of malicious neighbors, so rounds exceed every guarantee.
    with without_warnings():
        # A rule with both interfaces is run by its exchanges, as in the simulator.
        if isinstance(rule, MultiExchange):
            selected = select_laws(MULTI_EXCHANGE_LAWS, laws, skip)
            require_laws(selected, AsSingleExchange(rule), examples, "the rule")
        else:
            require_laws(select_laws(LAWS, laws, skip), rule, examples, "the rule")
