"""Mistakes with numbers: the error names argument, expected and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import equipoise as eq
from tests.error_messages.mistakes import (
    BALANCE,
    MEDIAN,
    MODELS,
    OWN,
    RECEIVED,
    RING,
    Mistake,
    check_error,
    construct,
)

MISTAKES: dict[str, Mistake] = {
    "no round": (
        lambda: BALANCE(OWN, RECEIVED),
        "Balance needs t and total: pass t=..., total=... when calling it (in a Simulator: its "
        "argument total, or "
        "run(rounds))",
    ),
    "a misspelt total": (
        lambda: BALANCE(OWN, RECEIVED, t=0, totl=10),  # type: ignore[call-arg]
        "Balance got an unknown input 'totl': did you mean total?",
    ),
    "a misspelt number to tolerate": (
        lambda: eq.Krum(tolerated=1)(OWN, RECEIVED, tolerate=3),  # type: ignore[call-arg]
        "Krum got an unknown input 'tolerate': did you mean tolerated?",
    ),
    "an input of no rule": (
        lambda: MEDIAN(OWN, RECEIVED, colour=3),  # type: ignore[call-arg]
        "Median got an unknown input 'colour': rules know t, total, tolerated, samples, gossip, "
        "loss_of, update, generator, state, out",
    ),
    "a misspelt input of LEARN": (
        lambda: eq.LEARN(tolerated=0).exchanges(OWN, t=0, udpate=OWN).send(None),  # type: ignore[call-arg]
        "LEARN got an unknown input 'udpate': did you mean update?",
    ),
    "a misspelt input of run_exchanges": (
        lambda: eq.run_exchanges(MEDIAN, OWN, lambda sent: RECEIVED, totl=3),  # type: ignore[call-arg]
        "Median got an unknown input 'totl': did you mean total?",
    ),
    "a misspelt input of PerClient": (
        lambda: eq.PerClient([MEDIAN] * 4)(MODELS, RING.deliver(MODELS), tolerate=1),  # type: ignore[call-arg]
        "PerClient got an unknown input 'tolerate': did you mean tolerated?",
    ),
    "a round as text": (
        lambda: BALANCE(OWN, RECEIVED, t="a", total=10),  # type: ignore[arg-type]
        "t must be an integer at least 0, found 'a'",
    ),
    "a round for a rule without need of it": (
        lambda: MEDIAN(OWN, RECEIVED, t=1.5),  # type: ignore[arg-type]
        "t must be an integer at least 0, found 1.5",
    ),
    "a total as text": (
        lambda: BALANCE(OWN, RECEIVED, t=0, total="10"),  # type: ignore[arg-type]
        "total must be an integer at least 1, found '10'",
    ),
    "a simulator's total as text": (
        lambda: construct(total="10"),
        "total must be an integer at least 1, found '10'",
    ),
    "a round as text for LEARN": (
        lambda: eq.LEARN(tolerated=0).exchanges(OWN, t="a", update=OWN).send(None),  # type: ignore[arg-type]
        "t must be an integer at least 0, found 'a'",
    ),
    "a share as text": (
        lambda: eq.draw_malicious(20, "0.2"),  # type: ignore[arg-type]
        "share must be a number from 0 to 1, found '0.2'",
    ),
    "a number of clients as text": (
        lambda: eq.draw_malicious("20", 0.2),  # type: ignore[arg-type]
        "n must be an integer at least 1, found '20'",
    ),
    "True as a share": (
        lambda: eq.draw_malicious(20, True),
        "share must be a number from 0 to 1, found True",
    ),
    "a round after the last": (
        lambda: BALANCE(OWN, RECEIVED, t=10, total=10),
        "t must be a round from 0 to total - 1 = 9, found 10",
    ),
    "a negative gamma": (
        lambda: eq.Balance(gamma=-0.3),
        "gamma must be a finite number >= 0, found -0.3",
    ),
    "gamma as text": (
        lambda: eq.BalanceMedian(gamma="0.3"),  # type: ignore[arg-type]
        "gamma must be a finite number >= 0, found '0.3'",
    ),
    "no number to tolerate": (
        lambda: eq.Krum()(OWN, RECEIVED),
        "Krum needs tolerated: pass tolerated=... when calling it",
    ),
    "a share to tolerate": (
        lambda: eq.Krum()(OWN, RECEIVED, tolerated=0.2),  # type: ignore[arg-type]
        "tolerated must be whole numbers >= 0, found 0.2",
    ),
    "a simulator's share to tolerate": (
        lambda: construct(tolerated=0.2),
        "tolerated must be whole numbers >= 0, found 0.2",
    ),
    "a simulator's alpha": (lambda: construct(alpha=1.5), "alpha must be in [0, 1], found 1.5"),
    "a simulator's alpha as text": (
        lambda: construct(alpha="0.5"),
        "alpha must be a number or a floating-point tensor, found str",
    ),
    "a simulator's flag": (
        lambda: construct(keep_nonfinite="no"),
        "keep_nonfinite must be True or False, found 'no'",
    ),
    "too many to trim": (
        lambda: eq.TrimmedMean(tolerated=5, strict=True)(OWN, torch.ones(5, 3)),
        "tolerated must be at most 2 for client 0 with 5 neighbors, found 5; strict=False warns "
        "instead",
    ),
    "too many for Krum": (
        lambda: eq.Krum(tolerated=2, strict=True)(OWN, torch.ones(4, 3)),
        "tolerated must be at most 0 for client 0 with 4 neighbors, found 2; strict=False warns "
        "instead",
    ),
    "too few neighbours for Krum": (
        lambda: eq.Krum(tolerated=0, strict=True)(MODELS, RING.deliver(MODELS)),
        "client 0 must have more neighbors for strict=True, found 2 with tolerated=0",
    ),
    "too large an alpha": (
        lambda: eq.mix(OWN, OWN, alpha=1.5),
        "alpha must be in [0, 1], found 1.5",
    ),
    "no rounds to run": (
        lambda: eq.Simulator(lambda models, t: models, RING, MEDIAN, MODELS).run(),
        "rounds must be given, here or as total of the Simulator, found neither",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_error_message(make: Callable[[], Any], message: str) -> None:
    check_error(make, message)
