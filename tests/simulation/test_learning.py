"""BALANCE learns under attack on real data."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


@pytest.fixture(scope="module")
def digits() -> tuple[eq.data.Dataset, list[tuple[Tensor, Tensor]]]:
    dataset = eq.data.digits()
    return dataset, dataset.split(eq.data.by_group(dataset, 20, p=0.5, seed=0))


def train_digits(
    digits: tuple[eq.data.Dataset, list[tuple[Tensor, Tensor]]],
    rule: Any,
    attack: Any = None,
    rounds: int = 150,
    **options: Any,
) -> eq.History:
    dataset, clients = digits
    malicious = eq.draw_malicious(20, 0.2, seed=0)
    model = eq.models.logistic_regression(64, 10)
    run = eq.Simulator(
        eq.LocalSGD(model, nn.functional.cross_entropy, clients, lr=0.1, batch_size=16),
        eq.Topology.regular(20, 10, seed=0, malicious=malicious),
        rule,
        eq.flatten(model).expand(20, -1),
        attack=attack,
        malicious=malicious,
        metrics={"error": eq.metrics.ErrorRate(model, dataset.test_x, dataset.test_y)},
        evaluate_every=rounds // 6,
        **options,
    )
    return run.run(rounds)


END_TO_END = {
    "Gaussian": attacks.Gaussian(),
    "KrumAttack": attacks.KrumAttack(),
    "TrimAttack": attacks.TrimAttack(),
    "SignFlip": attacks.SignFlip(space="model"),
    "Dissensus": attacks.Dissensus(epsilon=30.0),
}


@pytest.fixture(scope="module")
def undisturbed(digits: Any) -> float:
    return train_digits(digits, eq.FedAvg()).summary()["max_error"]


def test_digits_are_learnt(undisturbed: float) -> None:
    assert undisturbed < 0.2


@pytest.mark.parametrize("attack", END_TO_END)
def test_balance_learns_under_attack(attack: str, digits: Any, undisturbed: float) -> None:
    """FedAvg learns nothing in 60 attacked rounds; without attack its error is below 30 %."""
    safe = train_digits(digits, eq.Balance(), END_TO_END[attack])
    unsafe = train_digits(digits, eq.FedAvg(), END_TO_END[attack], rounds=60)
    assert safe.summary()["max_error"] < undisturbed + 0.06
    assert unsafe.summary()["max_error"] > 0.8
