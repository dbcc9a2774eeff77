"""Models with buffers or random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import equipoise as eq
from equipoise import LocalSGD
from tests.training.trainers import (
    OneByOne,
    examples,
    noisy,
    normalised,
    start,
    with_dropout,
)


@pytest.mark.parametrize("backend", ["auto", "loop", "threads"])
def test_batch_norm_per_client(backend: Any):
    model, clients = normalised(), examples((6,), [9, 3, 20])
    models = start(model, 3, buffers=True).abs()
    trainer = LocalSGD(
        model, cross_entropy, clients, lr=0.1, batch_size=5, steps=2, buffers=True, backend=backend
    )
    slow = OneByOne(model, cross_entropy, clients, 0.1, steps=2, batch_size=5, buffers=True)
    torch.testing.assert_close(trainer(models, 0), slow(models, 0), rtol=1e-4, atol=1e-5)
    loss_of = trainer.loss_of(0)
    kept = models.clone()
    assert loss_of(models, torch.arange(3)).shape == (3,)
    assert torch.equal(models, kept)


def test_batch_norm_without_buffers():
    with pytest.raises(
        ValueError, match=r"found that '1.running_mean' changes in training; with buffers=True"
    ):
        LocalSGD(normalised(), cross_entropy, examples((6,), [9]), lr=0.1)


def test_batch_norm_in_evaluation():
    model, clients = normalised(), examples((6,), [9, 3])
    model[1].eval()
    models = start(model, 2)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1)
    torch.testing.assert_close(
        trainer(models, 0), OneByOne(model, cross_entropy, clients, 0.1)(models, 0)
    )


def test_dropout_per_client():
    x, y = examples((6,), [9])[0]
    model = with_dropout()
    models = eq.flatten(model).repeat(3, 1)
    trainer = LocalSGD(model, cross_entropy, [(x, y)] * 3, lr=0.1, batch_size=9)
    assert trainer.backend == "loop"
    first = trainer(models, 0)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert torch.equal(trainer(models, 0), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(trainer(models, 1), first)
    assert trainer.measure(models, repeats=1).keys() == {"loop"}


def test_losses_without_dropout():
    trainer = LocalSGD(with_dropout(), cross_entropy, examples((6,), [9]), lr=0.1)
    models = start(with_dropout(), 1)
    assert torch.equal(*(trainer.loss_of(0)(models, torch.tensor([0])) for _ in range(2)))


class AlwaysDropping(nn.Module):
    """Drops inputs in evaluation mode too, as in Monte Carlo dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(dropout(x, 0.5, training=True))


class DroppingWhenJudged(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(dropout(x, 0.5, training=not self.training))


RANDOM: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "loss": (lambda: nn.Linear(6, 3), noisy),
    "dropout": (with_dropout, cross_entropy),
    "dropout in both modes": (AlwaysDropping, cross_entropy),
    "dropout when judged": (lambda: DroppingWhenJudged(6, 3), cross_entropy),
    "loss and dropout": (with_dropout, noisy),
}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("make", "loss"), RANDOM.values(), ids=RANDOM.keys())
def test_random_numbers_follow_seed(make: Callable[[], nn.Module], loss: Any):
    model, clients = make(), examples((6,), [9, 9, 5])
    models, judges = start(model, 3), torch.arange(3)

    def results(seed: int = 0) -> list[Tensor]:
        trainer = LocalSGD(model, loss, clients, lr=0.1, batch_size=4, seed=seed)
        one, together = models[:1].expand(3, -1), trainer.loss_of(2)(models, judges)
        return [trainer(models, 2), together, trainer.loss_of(2)(one, judges)]

    expected = results()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(results(), expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(torch.equal(a, b) for a, b in zip(results(seed=1), expected, strict=True))


def test_random_model_losses():
    model, clients = AlwaysDropping(), examples((6,), [9, 9, 9])
    loss_of = LocalSGD(model, cross_entropy, clients, lr=0.1).loss_of(0)
    models, judges = start(model, 4), torch.tensor([2, 0, 0, 1])
    losses = loss_of(models, judges)
    for i in range(4):
        assert torch.equal(loss_of(models[i : i + 1], judges[i : i + 1]), losses[i : i + 1])
    assert torch.equal(loss_of(models[:1].expand(2, -1), torch.tensor([0, 2]))[1], losses[0])


def test_dropout_only_in_training():
    trainer = LocalSGD(with_dropout(), cross_entropy, examples((6,), [9, 9]), lr=0.1)
    assert trainer._random
    assert not any(trainer._traits)
