"""Clients do not affect each other, nor do inputs change."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise import LocalSGD
from equipoise.training._ensemble._stacked import Backend
from tests.training.trainers import (
    Case,
    convolutions,
    every_case,
    every_way,
    examples,
    logistic,
    partly_frozen,
    start,
)


@every_way
def test_inputs_are_unchanged(backend: Backend):
    model, clients = partly_frozen(), examples((6,), [9, 3])
    before = deepcopy(model.state_dict())
    models = start(model, 2)
    kept = models.clone()
    trained = LocalSGD(
        model, cross_entropy, clients, lr=0.1, steps=3, momentum=0.9, backend=backend
    )(models, 0)
    assert torch.equal(models, kept)
    assert trained.data_ptr() != models.data_ptr()
    assert not trained.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@every_way
def test_frozen_parameters(backend: Backend):
    model = partly_frozen()
    models = start(model, 2)
    trained = LocalSGD(
        model, cross_entropy, examples((6,), [9, 3]), lr=0.1, momentum=0.9, backend=backend
    )(models, 0)
    frozen = torch.cat([torch.full((p.numel(),), not p.requires_grad) for p in model.parameters()])
    assert torch.equal(trained[:, frozen], models[:, frozen])
    assert (trained[:, ~frozen] != models[:, ~frozen]).float().mean() > 0.9


@every_way
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("asks", [False, True])
def test_gradient_modes(backend: Backend, mode: Any, asks: bool):
    trainer, models = logistic(backend=backend)
    expected = trainer(models, 0)
    with mode():
        assert torch.equal(trainer(models.clone().requires_grad_(asks), 0), expected)


@every_way
def test_transposed_models(backend: Backend):
    trainer, models = logistic(backend=backend)
    assert torch.equal(trainer(models.T.contiguous().T, 0), trainer(models, 0))


@every_way
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_broken_model_is_isolated(backend: Backend, value: float):
    trainer, models = logistic(backend=backend, steps=2, momentum=0.5)
    fine = trainer(models, 0)
    broken = models.clone()
    broken[1] = value
    trainer.load_state_dict({})
    trained = trainer(broken, 0)
    others = torch.tensor([0, 2, 3])
    assert torch.equal(trained[others], fine[others])
    assert not trained[1].isfinite().all() or value == 3e38


@every_case
def test_kinds_of_broken_models(case: Case):
    model = case.model()
    models = start(model, 3)
    trainer = LocalSGD(model, cross_entropy, examples(case.shape, [4, 4, 4]), lr=0.1)
    fine = trainer(models, 0)
    models[1] = torch.nan
    trained = trainer(models, 0)
    assert torch.equal(trained[[0, 2]], fine[[0, 2]])
    assert trained[1].isnan().any()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("backend", ["threads", "batched"])
@pytest.mark.parametrize("n", [1, 7])
def test_thread_count_is_irrelevant(backend: Backend, n: int):
    model, clients = convolutions(), examples((2, 5, 5), [8] * n)
    models = start(model, n)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, steps=2, backend=backend)
    two = trainer(models, 0)
    torch.set_num_threads(1)
    assert torch.equal(trainer(models, 0), two)


@pytest.mark.usefixtures("two_threads")
def test_one_thread_per_client():
    """Torch shares sums of this size between threads, which would change last digits."""
    model, used = (
        nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)),
        set(),
    )

    def loss(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        used.add(torch.get_num_threads())
        return cross_entropy(outputs, targets, reduction=reduction)

    trainer = LocalSGD(
        model, loss, examples((1, 28, 28), [32], classes=10), lr=0.1, steps=3, backend="threads"
    )
    models = start(model, 1)
    used.clear()
    two = trainer(models, 0)
    trainer.loss_of(0)(models, torch.tensor([0]))
    assert used == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(trainer(models, 0), two)


@pytest.mark.usefixtures("two_threads")
def test_several_blocks(monkeypatch: pytest.MonkeyPatch):
    trainer, models = logistic(n=50)
    whole = trainer(models, 0)
    monkeypatch.setattr("equipoise.training._batching.BLOCK_ELEMENTS", 200)
    trainer, _ = logistic(n=50)
    torch.testing.assert_close(trainer(models, 0), whole)


@every_way
def test_gaps_between_trained_clients(backend: Backend):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    models = start(model, 6)
    data = examples((6,), [4] * 6)
    clients = torch.tensor([0, 2, 3, 5])
    trained = []
    for some in (None, clients):
        trainer = LocalSGD(
            model, cross_entropy, data, lr=0.1, steps=2, momentum=0.5, backend=backend
        )
        out = models.clone()
        for t in range(2):
            trainer.train_into(out, out.clone(), t, clients=some)
        trained.append((out, trainer.state_dict()["velocity"]))
    for whole, part in zip(*trained, strict=True):
        assert torch.equal(part[clients], whole[clients])
        assert not torch.equal(part[1], whole[1])


def test_seed_determines_weights():
    trainer, models = logistic(seed=1)
    again, _ = logistic(seed=1)
    other, _ = logistic(seed=2)
    assert torch.equal(trainer(models, 5), again(models, 5))
    assert not torch.equal(trainer(models, 5), trainer(models, 6))
    assert not torch.equal(trainer(models, 5), other(models, 5))


def test_generator_is_untouched():
    trainer, models = logistic()
    expected = trainer(models, 0)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert torch.equal(trainer(models, 0), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_samples():
    trainer = LocalSGD(nn.Linear(6, 3), cross_entropy, examples((6,), [9, 3, 20]), lr=0.1)
    assert trainer.samples.tolist() == [9, 3, 20]
