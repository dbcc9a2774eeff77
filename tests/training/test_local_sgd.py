"""Training equals torch.optim.SGD on every client's own module."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import equipoise as eq
from equipoise import LocalSGD
from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Backend
from tests.training.trainers import (
    BACKENDS,
    CASES,
    OneByOne,
    convolutions,
    every_way,
    examples,
    logistic,
    partly_frozen,
    start,
)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        (name, backend)
        for name, case in CASES.items()
        for backend in BACKENDS
        if backend != "batched" or case.batched
    ],
)
def test_equals_torch_optimizers(name: str, backend: Backend):
    case = CASES[name]
    model, clients = case.model(), examples(case.shape, [9, 3, 20])
    models = start(model, 3)
    trainer = LocalSGD(
        model, cross_entropy, clients, lr=0.1, batch_size=5, steps=2, seed=7, backend=backend
    )
    slow = OneByOne(model, cross_entropy, clients, 0.1, steps=2, batch_size=5, seed=7)
    trained = trainer(models, 3)
    torch.testing.assert_close(trained, slow(models, 3), rtol=1e-4, atol=1e-6)
    assert (trained - models).abs().max() > 1e-3


@every_way
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_and_reduction(backend: Backend, reduction: Any, momentum: float):
    model, clients = partly_frozen(), examples((6,), [9, 3, 20])
    trainer = LocalSGD(
        model,
        cross_entropy,
        clients,
        lr=0.02,
        batch_size=5,
        steps=2,
        reduction=reduction,
        momentum=momentum,
        backend=backend,
    )
    slow = OneByOne(
        model,
        lambda outputs, y: cross_entropy(outputs, y, reduction=reduction),
        clients,
        *(0.02, momentum, 2, 5),
    )
    fast_models = slow_models = start(model, 3)
    for t in range(4):
        fast_models, slow_models = trainer(fast_models, t), slow(slow_models, t)
    torch.testing.assert_close(fast_models, slow_models, rtol=1e-4, atol=1e-5)


def halved(t: int) -> float:
    return 0.1 * 0.5**t


@every_way
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_learning_rate_schedule(backend: Backend, momentum: float):
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3, 20])
    options: Any = {"batch_size": 5, "steps": 2, "momentum": momentum}
    trainer = LocalSGD(model, cross_entropy, clients, lr=halved, backend=backend, **options)
    slow = OneByOne(model, cross_entropy, clients, 0.1, **options)
    fast_models = slow_models = start(model, 3)
    for t in range(4):
        for optimizer in slow.optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 * 0.5**t
        fast_models, slow_models = trainer(fast_models, t), slow(slow_models, t)
    torch.testing.assert_close(fast_models, slow_models, rtol=1e-4, atol=1e-6)


@every_way
def test_constant_schedule(backend: Backend):
    trainer, models = logistic(backend=backend, lr=0.1, momentum=0.5)
    other, _ = logistic(backend=backend, lr=lambda t: np.float64(0.1), momentum=0.5)
    assert torch.equal(other(models, 3), trainer(models, 3))


def test_schedule_called_per_round():
    asked: list[int] = []

    def schedule(t: int) -> float:
        asked.append(t)
        return 0.1

    trainer, models = logistic(steps=3, lr=schedule)
    asked.clear()
    for t in (0, 7):
        trainer(models, t)
    assert asked == [0, 7]
    assert repr(logistic(lr=halved)[0]) == repr(logistic(lr=0.1)[0]).replace("lr=0.1", "lr=halved")


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), None, "fast"])
def test_bad_learning_rate(rate: Any):
    trainer, models = logistic(lr=lambda t: rate if t == 2 else 0.1, momentum=0.9)
    models = trainer(models, 1)
    before = trainer.state_dict()["velocity"]
    message = f"lr must return a finite number >= 0 for every round, found {rate!r} for round 2"
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer(models, 2)
    assert torch.equal(trainer.state_dict()["velocity"], before)


@every_way
def test_one_step_by_hand(backend: Backend):
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [0.0]])
    model = nn.Linear(1, 1, bias=False)
    by_sum = LocalSGD(model, mse_loss, [(x, y)], lr=0.1, reduction="sum", backend=backend)
    by_mean = LocalSGD(model, mse_loss, [(x, y)], lr=0.1, reduction="mean", backend=backend)
    # derivative of (w - 3)^2 + (2 w)^2 at w = 1: -4 + 8
    assert by_sum(torch.ones(1, 1), 0).item() == pytest.approx(1 - 0.1 * 4)
    assert by_mean(torch.ones(1, 1), 0).item() == pytest.approx(1 - 0.1 * 2)


@every_way
@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.HuberLoss(reduction="sum"),
        lambda outputs, targets: (outputs - targets).abs().pow(3).mean(),
    ],
)
def test_a_loss_without_reduction(backend: Backend, loss: Any):
    model, clients = nn.Linear(6, 2), [(torch.randn(9, 6), torch.randn(9, 2)) for _ in range(3)]
    models = start(model, 3)
    trainer = LocalSGD(model, loss, clients, lr=0.1, batch_size=5, reduction=None, backend=backend)
    torch.testing.assert_close(
        trainer(models, 0), OneByOne(model, loss, clients, 0.1, batch_size=5)(models, 0)
    )


@every_way
def test_double_precision_stays(backend: Backend):
    model = convolutions().double()
    clients = [(x.double(), y) for x, y in examples((2, 5, 5), [8, 8])]
    models = start(model, 2)
    trained = LocalSGD(model, cross_entropy, clients, lr=0.1, backend=backend)(models, 0)
    slow = OneByOne(model, cross_entropy, clients, 0.1)(models, 0)
    torch.testing.assert_close(trained, slow, rtol=1e-12, atol=1e-12)


def test_trains_regression():
    model = eq.models.linear_regression(6)
    clients = [(torch.randn(20, 6), torch.randn(20)) for _ in range(3)]
    models = start(model, 3)
    trainer = LocalSGD(model, mse_loss, clients, lr=0.1, batch_size=8)
    assert trainer.backend == "batched"
    slow = OneByOne(model, mse_loss, clients, 0.1, batch_size=8)
    torch.testing.assert_close(trainer(models, 0), slow(models, 0))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_batched_cross_entropy(reduction: Any):
    outputs, classes = torch.randn(4, 5, 3, requires_grad=True), torch.randint(3, (4, 5))
    classes[0, 2] = -100  # torch: no label
    loss = BatchLoss(cross_entropy, reduction)
    expected = torch.stack([loss(o, y) for o, y in zip(outputs, classes, strict=True)])
    found = loss.of_each(outputs, classes)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(losses.sum(), outputs)[0] for losses in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_probabilities_as_targets():
    model, y = nn.Linear(6, 3), torch.randn(9, 3).softmax(-1)
    clients = [(torch.randn(9, 6), y), (torch.randn(9, 6), y)]
    models = start(model, 2)
    slow = OneByOne(model, cross_entropy, clients, 0.1)
    torch.testing.assert_close(
        LocalSGD(model, cross_entropy, clients, lr=0.1)(models, 0), slow(models, 0)
    )
