"""Momentum, and copies of trainers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import LocalSGD
from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Backend
from tests.training.trainers import (
    CASES,
    GOOD,
    X,
    Y,
    every_way,
    examples,
    logistic,
    start,
)


@every_way
def test_momentum_resumes(backend: Backend):
    trainer, models = logistic(backend=backend, momentum=0.9)
    assert trainer.state_dict() == {}
    middle = trainer(models, 0)
    state = trainer.state_dict()
    end = trainer(middle, 1)
    assert not torch.equal(trainer.state_dict()["velocity"], state["velocity"])
    other, _ = logistic(backend=backend, momentum=0.9)
    other.load_state_dict(state)
    assert torch.equal(other(middle, 1), end)
    other.load_state_dict({})
    assert torch.equal(other(models, 0), middle)


def test_no_state_without_momentum():
    trainer, models = logistic()
    trainer(models, 0)
    assert trainer.state_dict() == {}
    trainer.load_state_dict({})


def test_interrupted_round():
    trainer, models = logistic(momentum=0.9, backend="loop", steps=3)
    trainer(models, 0)
    before = trainer.state_dict()["velocity"]
    calls = 0

    def interrupted(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return cross_entropy(outputs, targets, reduction=reduction)

    trainer.loss = BatchLoss(interrupted, "mean")
    with pytest.raises(KeyboardInterrupt):
        trainer(models, 1)
    assert torch.equal(trainer.state_dict()["velocity"], before)


@pytest.mark.parametrize(
    ("momentum", "state", "message"),
    [
        (
            0.0,
            {"velocity": torch.zeros(4, 21)},
            r"state must have no keys but \[\], found \['velocity'\]",
        ),
        (0.9, {"speed": 1, 2: 3}, r"no keys but \['velocity'\], found \[2, 'speed'\]"),
        (0.9, None, "state must be what state_dict returned, found NoneType"),
        (0.0, ["velocity"], "state must be what state_dict returned, found list"),
        (0.9, {"speed": torch.zeros(4, 21)}, r"no keys but \['velocity'\], found \['speed'\]"),
        (0.9, {"velocity": torch.zeros(4, 20)}, r"velocity in state must be float32 \(4, 21\)"),
        (0.9, {"velocity": torch.zeros(3, 21)}, r"velocity in state must be float32 \(4, 21\)"),
    ],
)
def test_state_that_does_not_fit(momentum: float, state: Any, message: str):
    with pytest.raises(ValueError, match=message):
        logistic(momentum=momentum)[0].load_state_dict(state)


@pytest.mark.parametrize(
    "copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copied", "pickled"]
)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_copies_behave_alike(copied: Callable[[Any], Any], used: bool):
    """Convolutions keep modules between calls, with parameters that are views."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(30, 1, 4, 4), torch.randint(0, 3, (30,))
    models = torch.randn(2, eq.flatten(model).numel())
    trainer, metric = (
        LocalSGD(model, cross_entropy, [(x, y)] * 2, lr=0.1),
        eq.metrics.ErrorRate(model, x, y),
    )
    clients = torch.arange(2)
    if used:
        trainer(models, 0), metric(models)
    other, measure = copied(trainer), copied(metric)
    assert torch.equal(other(models, 1), trainer(models, 1))
    assert torch.equal(other.loss_of(1)(models, clients), trainer.loss_of(1)(models, clients))
    assert torch.equal(measure(models), metric(models))


def test_made_in_inference_mode():
    model, models = GOOD["model"], torch.randn(2, 21)
    with torch.inference_mode():
        trainer, metric = LocalSGD(**GOOD), eq.metrics.ErrorRate(model, X, Y)
    assert torch.equal(trainer(models, 0), LocalSGD(**GOOD)(models, 0))
    assert torch.equal(metric(models), eq.metrics.ErrorRate(model, X, Y)(models))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("given", [Tensor.detach, Tensor.clone], ids=["normal", "inference"])
@pytest.mark.parametrize("name", ["logistic", "convolutions"])
def test_inference_mode(name: str, given: Callable[[Tensor], Tensor]):
    """Inference mode is a thread's own: another one may not write what was made in it."""
    case = CASES[name]
    model, clients = case.model(), examples(case.shape, [9, 9, 5])
    models, judges = start(model, 3), torch.arange(3)
    trainer, metric = (
        LocalSGD(model, cross_entropy, clients, lr=0.1),
        eq.metrics.ErrorRate(model, *clients[0]),
    )
    expected = trainer.loss_of(0)(models, judges), metric(models)
    with torch.inference_mode():
        inside = given(models)
        found = trainer.loss_of(0)(inside, judges.clone()), metric(inside)
        one = trainer.loss_of(0)(inside[:1].expand(3, -1), judges)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    torch.testing.assert_close(one, trainer.loss_of(0)(models[:1].expand(3, -1), judges))
