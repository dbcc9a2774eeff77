"""Losses for UBAR."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import LocalSGD
from equipoise._utils.rng import stream
from equipoise.attacks import (
    LabelFlip,
)
from equipoise.training._ensemble._stacked import Backend
from equipoise.training._examples import draw_positions
from tests.training.trainers import (
    Case,
    convolutions,
    every_way,
    examples,
    logistic,
    start,
)


@every_way
@pytest.mark.parametrize("reduction", ["mean", "sum", None])
def test_losses_on_last_batch(backend: Backend, reduction: Any):
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3, 20])
    options: Any = {
        "lr": 0.1,
        "batch_size": 5,
        "steps": 3,
        "backend": backend,
        "reduction": reduction,
    }
    trainer = LocalSGD(
        model, cross_entropy if reduction else nn.CrossEntropyLoss(), clients, **options
    )
    candidates, owners = start(model, 7), torch.tensor([2, 0, 0, 1, 2, 1, 0])
    kept = candidates.clone()
    losses = trainer.loss_of(4)(candidates, owners)
    positions = draw_positions(torch.tensor([9, 3, 20]), 5, stream(0, "batch", 4, 2))
    for row, owner, loss in zip(candidates, owners.tolist(), losses, strict=True):
        (x, y), module = clients[owner], eq.unflatten(row, nn.Linear(6, 3))
        chosen = positions[owner, : len(y)]
        torch.testing.assert_close(loss, cross_entropy(module(x[chosen]), y[chosen]).detach())
    assert torch.equal(candidates, kept)
    assert not losses.requires_grad
    assert torch.equal(trainer.loss_of(4)(candidates, owners.to(torch.uint8)), losses)


@every_way
@pytest.mark.parametrize("reduction", ["mean", "sum", None])
def test_one_model_many_clients(backend: Backend, reduction: Any):
    """As UBAR asks it, by rows that are the same memory."""
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3, 20, 9, 9, 9, 9])
    options: Any = {"lr": 0.1, "batch_size": 5, "backend": backend, "reduction": reduction}
    trainer = LocalSGD(
        model, cross_entropy if reduction else nn.CrossEntropyLoss(), clients, **options
    )
    judges = torch.tensor([2, 0, 3, 1, 4, 5, 0, 6])
    one = start(model, 1).expand(len(judges), -1)
    torch.testing.assert_close(
        trainer.loss_of(4)(one, judges), trainer.loss_of(4)(one.contiguous(), judges)
    )


def zero_at_first() -> nn.Sequential:
    model = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)
    )
    nn.init.zeros_(model[2].weight)
    return model


STATISTICS_OF_THE_BATCH: dict[str, Case] = {
    "vectors": Case(
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False))
    ),
    "images": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        (2, 5, 5),
    ),
    "zero at first": Case(zero_at_first),
}


@pytest.mark.parametrize(
    "case", STATISTICS_OF_THE_BATCH.values(), ids=STATISTICS_OF_THE_BATCH.keys()
)
@pytest.mark.parametrize("counts", [[9, 3, 20, 9, 9], [2, 2]])
def test_shared_pass_is_separate(case: Case, counts: list[int]):
    model, clients = case.model(), examples(case.shape, counts)
    trainer, judges = (
        LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5, backend="threads"),
        len(counts),
    )
    one, who, loss_of = start(model, 1), torch.arange(judges), trainer.loss_of(0)
    alone = torch.cat([loss_of(one, who[i : i + 1]) for i in range(judges)])
    assert torch.equal(loss_of(one.expand(judges, -1), who), alone)


def test_shared_pass():
    model, seen = convolutions(), []
    trainer = LocalSGD(model, cross_entropy, examples((2, 5, 5), [8] * 4), lr=0.1)
    trainer._evaluated.model.register_forward_hook(
        lambda module, inputs, outputs: seen.append(len(outputs))
    )
    trainer._evaluated._idle.clear()
    trainer.loss_of(0)(start(model, 1).expand(4, -1), torch.arange(4))
    assert seen == [32]


@every_way
def test_losses_of_special_models(
    backend: Backend,
):
    trainer, models = logistic(backend=backend)
    clean = trainer.loss_of(0)(models, torch.arange(4))
    models[2] = torch.nan
    poisoned = trainer.poisoned(LabelFlip({0: 1, 1: 2, 2: 0}), [1]).loss_of(0)(
        models, torch.arange(4)
    )
    assert poisoned[2].isnan()
    assert torch.equal(poisoned[[0, 3]], clean[[0, 3]])
    assert poisoned[1] != clean[1]


@pytest.mark.parametrize("empty", ["best", "own"])
def test_ubar_judges_by_them(empty: Any):
    trainer, models = logistic(n=4)
    inbox = eq.Topology.complete(4).deliver(models)
    out = eq.UBAR(tolerated=0, empty=empty)(models, inbox, loss_of=trainer.loss_of(0))
    losses = trainer.loss_of(0)(models.repeat(4, 1), torch.arange(4).repeat_interleave(4)).view(
        4, 4
    )
    assert out.weights is not None
    for i in range(4):
        better = {j for j in range(4) if losses[i, j] < losses[i, i]}
        accepted = {
            j
            for j, w in zip(inbox.senders[i].tolist(), out.weights[i].tolist(), strict=True)
            if w > 0
        }
        assert accepted == better or (not better and len(accepted) == (empty == "best"))


def test_losses_of_unequal_counts():
    trainer, models = logistic()
    with pytest.raises(ValueError, match=r"models must be float32 \(3, 21\)"):
        trainer.loss_of(0)(models, torch.arange(3))


@every_way
@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (torch.tensor([0, 1, 2, 4]), "clients must be from 0 to 3, found 0 to 4"),
        (torch.tensor([0, 1, 2, -1]), "clients must be from 0 to 3, found -1 to 2"),
        ([0, 1, 2, 3], "clients must be ids, an integer tensor of shape (c,), found list"),
        (3, "clients must be ids, an integer tensor of shape (c,), found int"),
        (torch.tensor(3), "clients must be ids, an integer tensor of shape (c,), found int64 ()"),
        (
            torch.arange(4.0),
            "clients must be ids, an integer tensor of shape (c,), found float32 (4,)",
        ),
        (
            torch.arange(4)[:, None],
            "clients must be ids, an integer tensor of shape (c,), found int64 (4, 1)",
        ),
    ],
)
def test_losses_of_bad_clients(backend: Backend, clients: Any, message: str):
    trainer, models = logistic(backend=backend)
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer.loss_of(0)(models, clients)


def test_losses_of_bad_rounds():
    with pytest.raises(ValueError, match="t must be an integer at least 0, found None"):
        logistic()[0].loss_of(None)  # type: ignore[arg-type]
