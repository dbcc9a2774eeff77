"""The laws of rules by name, and the check of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.messages import Inbox
from equipoise.rules import Aggregator, MultiExchange, run_exchanges, without_warnings
from equipoise.testing import _laws as functions
from equipoise.testing._rounds import Round, rounds
from equipoise.testing._search import Law, chosen, try_to_break
from equipoise.types import Aggregated

EVERY_DTYPE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _law(function: Callable[..., None], cases: SearchStrategy[Round] | None = None) -> Law[Round]:
    def check(rule: object, case: Round) -> None:
        function(rule, case.own, case.inbox, **case.inputs)

    return Law(check, rounds() if cases is None else cases, function)


LAWS: Mapping[str, Law[Round]] = {
    "batch": _law(functions.batch),
    "tensor": _law(functions.tensor),
    "padding": _law(functions.padding),
    "slot_order": _law(functions.slot_order),
    "starvation": _law(functions.starvation),
    "nonfinite": _law(functions.nonfinite, rounds(hostile=False)),
    "consensus": _law(functions.consensus),
    "agreement": _law(functions.agreement, rounds(whole=False)),
    "purity": _law(functions.purity),
    "kept": _law(functions.kept, rounds(EVERY_DTYPE, hostile=False)),
    "hostile": _law(functions.kept),
    "weights_explain": _law(functions.weights_explain),
}
"""What holds for any rule, by name."""

_OF_ONE_EXCHANGE = ("tensor", "consensus", "agreement", "weights_explain")

MULTI_EXCHANGE_LAWS: Mapping[str, Law[Round]] = {name: LAWS[name] for name in LAWS if name not in _OF_ONE_EXCHANGE}
"""What holds for any rule that talks several times a round, if it hears the same whatever it says."""


class Answered:
    """A rule that talks several times as one that talks once: whatever it says, it hears the same."""

    def __init__(self, rule: MultiExchange) -> None:
        self.rule = rule

    def __call__(self, own: Tensor, received: Tensor | Inbox, **inputs: Any) -> Aggregated:
        """All exchanges of a round."""
        return run_exchanges(self.rule, own, lambda sent: received, **inputs)[1]

    def __repr__(self) -> str:
        return repr(self.rule)


def check_rule(
    rule: Aggregator | MultiExchange,
    *,
    laws: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    examples: int = 50,
) -> None:
    """Try to break the laws that hold for any rule; raise an AssertionError that names a law and shows how.

    Args:
        rule: called as ``rule(own (n, d), inbox, **inputs)`` with all of `equipoise.RoundInputs` but ``generator``,
            ``state`` and ``out``, and for one client. One that talks several times a round hears the same whatever it
            says.
        laws: names from `LAWS`, or from `MULTI_EXCHANGE_LAWS` for a rule that talks several times; all if not given.
        skip: names of laws that the rule does not promise. A rule that may reject or shorten messages near own does not
            promise ``agreement``; one that changes messages before it averages them, ``weights_explain``.
        examples: how many random rounds to try for each law.

    >>> from equipoise import testing
    >>> testing.check_rule(eq.Median(), examples=5)
    >>> testing.check_rule(eq.SCClip(tau=0.01), skip=["agreement"], examples=5)
    >>> def forgetful(own, received, **inputs):
    ...     return eq.Aggregated(torch.zeros_like(own))
    >>> testing.check_rule(forgetful)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    AssertionError: the rule <function forgetful> breaks the law 'starvation'.
    The law: Without messages, or with unreadable ones only, the aggregate is own.
    """
    if not isinstance(rule, Aggregator | MultiExchange):
        raise ValueError(f"rule must be callable or have a method exchanges, found {describe(rule)}")
    with without_warnings():  # the laws hold whatever is tolerated, and rounds go beyond every guarantee
        if isinstance(rule, MultiExchange):
            try_to_break(chosen(MULTI_EXCHANGE_LAWS, laws, skip), Answered(rule), examples, "the rule")
        else:
            try_to_break(chosen(LAWS, laws, skip), rule, examples, "the rule")
