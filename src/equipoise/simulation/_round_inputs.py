"""The round inputs that a simulation passes to its rule, besides the messages."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.validation import INPUTS
from equipoise.rules import Aggregator, MultiExchange, PerClient


def expected_malicious(rule: Aggregator | MultiExchange, true: Tensor) -> int | Tensor:
    """The `tolerated` of the rule, or the true number of malicious neighbors if it has none.

    The members of a `PerClient` each have their own, so it gets one number per client.

    >>> from equipoise.simulation._round_inputs import expected_malicious
    >>> expected_malicious(eq.Krum(tolerated=2), true=torch.tensor([4, 5]))
    2
    >>> rule = eq.PerClient([eq.Krum(tolerated=2), eq.Krum()])
    >>> expected_malicious(rule, true=torch.tensor([4, 5]))
    tensor([2, 5])
    """
    if not isinstance(rule, PerClient) or len(rule.rules) != len(true):
        said: int | None = getattr(rule, "tolerated", None)
        # 0 is a promise, too: only None means that the rule makes none.
        return true if said is None else said
    known = [getattr(one, "tolerated", None) for one in rule.rules]
    given = torch.tensor([said is not None for said in known], device=true.device)
    # 0 fills the places that `where` replaces by the true numbers.
    return torch.tensor([said or 0 for said in known], device=true.device).where(given, true)


def wanted_by(rule: Aggregator | MultiExchange) -> tuple[str, ...]:
    """The round inputs that the rule reads, or all of them if it does not declare any.

    >>> from equipoise.simulation._round_inputs import wanted_by
    >>> "update" in wanted_by(eq.LEARN()), "update" in wanted_by(eq.Median())
    (True, False)
    >>> "update" in wanted_by(lambda own, received, **inputs: own)
    True
    """
    needs: tuple[str, ...] | None = getattr(rule, "needs", None)
    # A rule without `needs`, such as a function, may read any input.
    return INPUTS if needs is None else needs
