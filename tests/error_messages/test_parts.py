"""Mistakes with rules, attacks and metrics: the error names argument, expected and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

import equipoise as eq
from tests.error_messages.mistakes import (
    LAYER,
    OWN,
    PAIR,
    RECEIVED,
    Mistake,
    check_error,
    construct,
    simulate,
)

MISTAKES: dict[str, Mistake] = {
    "a class for a rule": (
        lambda: simulate(rule=eq.Median),
        "rule must be a rule, found the class Median; Median() makes one",
    ),
    "a name for a rule": (
        lambda: simulate(rule="median"),
        "rule must be a rule such as Median(), found str",
    ),
    "a class for an attack": (
        lambda: simulate(attack=eq.attacks.Gaussian, malicious=[0]),
        "attack must be an attack, found the class Gaussian; Gaussian() makes one",
    ),
    "a name for an attack": (
        lambda: simulate(attack="gaussian", malicious=[0]),
        "attack must have a method forge or a method poison, found str",
    ),
    "metrics without names": (
        lambda: simulate(metrics=[lambda models: models.norm(dim=1)]),
        "metrics must be functions by name, a dict, found list",
    ),
    "a metric of all clients": (
        lambda: simulate(metrics={"size": lambda models: float(models.norm())}),
        "metrics['size'] must return a tensor (4,) of one value per client, found float",
    ),
    "a trainer of other clients": (
        lambda: construct(trainer=eq.LocalSGD(LAYER, mse_loss, [PAIR] * 3, lr=0.1)),
        "models must be float32 (3, 3) like flatten(model), found float32 (4, 3)",
    ),
    "a trainer of another architecture": (
        lambda: construct(
            trainer=eq.LocalSGD(LAYER, mse_loss, [PAIR] * 4, lr=0.1), models=torch.ones(4, 2)
        ),
        "models must be float32 (4, 3) like flatten(model), found float32 (4, 2)",
    ),
    "no loss for UBAR": (
        lambda: eq.UBAR(tolerated=0)(OWN, RECEIVED),
        "UBAR needs loss_of: pass loss_of=... when calling it (in a Simulator: its argument "
        "loss_of, a function of the "
        "round, or a trainer that has one, such as LocalSGD)",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_error_message(make: Callable[[], Any], message: str) -> None:
    check_error(make, message)
