"""Invalid arguments are errors that name them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import attacks
from tests.simulation.small_runs import (
    N,
    distance,
    simulator,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"models": torch.ones(N)},
            r"models must be a floating-point tensor of shape \(n, d\), found float32 \(10,\)",
        ),
        (
            {"topology": eq.Topology.ring(4)},
            "topology must be a Topology of 10 clients, as models has, found 4 cl",
        ),
        (
            {"topology": lambda t: "ring"},
            "topology must be a Topology of 10 clients, as models has, found str",
        ),
        ({"rule": "Balance"}, r"rule must be a rule such as Median\(\), found str"),
        (
            {"trainer": lambda models, t: models[:3]},
            r"trainer must return models like float64 \(10, 7\), found .*3, 7",
        ),
        ({"malicious": [10]}, "malicious must be from 0 to 9, found 10"),
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\], found 1.5"),
        ({"total": 0}, "total must be an integer at least 1, found 0"),
        ({"evaluate_every": 0}, "evaluate_every must be an integer at least 1, found 0"),
        ({"evaluate_every": 2.0}, "evaluate_every must be an integer at least 1, found 2.0"),
        ({"evaluate_every": "1"}, "evaluate_every must be an integer at least 1, found '1'"),
        ({"seed": -1}, "seed must be an integer at least 0, found -1"),
        ({"metrics": {"a": 3}}, r"metrics\['a'\] must be a function, found int"),
        ({"metrics": {1: distance}}, "metrics must be functions by name, found 1 for a name"),
        ({"trainer": None}, "trainer must be a function, found NoneType"),
        ({"loss_of": 3}, "loss_of must be a function, found int"),
        (
            {"attack": attacks.LabelFlip({3: 5})},
            "trainer must have a method poisoned.*for LabelFlip.*found function",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulator(**{"rule": eq.FedAvg()} | options).run()


def test_rounds_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="rounds must end by total = 5, found 6 from round 0"):
        simulator(eq.FedAvg()).run(6)
    with pytest.raises(ValueError, match="rounds must be given, here or as total of the Simulator"):
        simulator(eq.FedAvg(), total=None).run()
    assert len(simulator(eq.Balance(), total=None).run(3)) == 3


def test_missing_losses() -> None:
    with pytest.raises(TypeError, match="UBAR needs loss_of"):
        simulator(eq.UBAR(), loss_of=None).run()
