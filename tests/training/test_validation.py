"""Invalid arguments are errors that name them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from equipoise import LocalSGD
from tests.training.trainers import (
    GOOD,
    Undecided,
    X,
    Y,
    examples,
    normalised,
    start,
    with_dropout,
)


class Stepping(nn.Module):
    """Counts its steps in a buffer of whole numbers, which no client has for itself."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        outputs: Tensor = self.linear(x) / self.steps
        return outputs


class Echo(nn.Module):
    """Returns something else than a module should."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.make = nn.Linear(6, 3), make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


def half_double() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3).double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": cross_entropy}, "module must be a torch.nn.Module, found function"),
        (
            {"model": half_double()},
            "model must have parameters of one dtype, expected torch.float64, found parameter",
        ),
        (
            {"model": nn.Linear(5, 3)},
            "model must take inputs like x, float32 (2, 6), found RuntimeError: mat1 and mat2",
        ),
        ({"model": Echo(lambda x: x.relu_())}, "model must not modify its inputs"),
        ({"model": Echo(lambda x: [x])}, "model must return one output per input, 2, found list"),
        (
            {"model": Echo(lambda x: x.sum())},
            "model must return one output per input, 2, found float32 ()",
        ),
        ({"model": Echo(lambda x: x)}, "loss must depend on a parameter that requires a gradient"),
        (
            {"model": nn.Linear(6, 3).requires_grad_(False)},
            "loss must depend on a parameter that requires a gradient",
        ),
        (
            {"model": normalised(), "buffers": True, "backend": "batched"},
            "backend must be 'loop' or 'threads' for this model",
        ),
        (
            {
                "model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None)),
                "buffers": True,
            },
            "no client has a count of its own; give '1' a momentum",
        ),
        (
            {"model": with_dropout(), "backend": "threads"},
            "backend must be 'loop' for a model or a loss that draws random",
        ),
        (
            {"model": Undecided(), "backend": "batched"},
            "backend must be 'loop' or 'threads' for this model, found 'batched': vmap",
        ),
        ({"loss": nn.CrossEntropyLoss()}, "reduction=None is for a loss without reduction"),
        ({"loss": mse_loss}, "loss must take outputs float32 (2, 3) and targets int64 (2,), found"),
        (
            {"loss": l1_loss, "reduction": None, "clients": [(X, X[:, :2])]},
            "loss must take outputs float32 (2, 3)",
        ),
        (
            {"loss": lambda o, y, reduction: o},
            "loss must return one number for a batch, found float32 (2, 3)",
        ),
        (
            {"loss": lambda o, y, reduction: 1.0},
            "loss must return one number for a batch, found float",
        ),
        (
            {"clients": []},
            "clients must hold the examples (x, y) of at least one client, found none",
        ),
        (
            {"clients": [(X, Y), (X[:0], Y[:0])]},
            "clients[1] must hold at least one example, found none",
        ),
        (
            {"clients": [(X, Y), (X, Y[:3])]},
            "clients[1] must have one y for every x, found 4 x and 3 y",
        ),
        (
            {"clients": [(X, Y), X]},
            "clients[1] must be a pair of tensors (x, y), found float32 (4, 6)",
        ),
        (
            {"clients": [(X, Y), (X, [0, 1, 2, 0])]},
            "clients[1] must be a pair of tensors (x, y), found (float32 (4, 6), list)",
        ),
        (
            {"clients": [(X, Y), (X[:, :5], Y)]},
            "clients[1] must look like those of client 0, x float32 (4, 6), found",
        ),
        (
            {"clients": [(X, Y), (X, Y.float())]},
            "clients[1] must look like those of client 0, y int64 (4,), found",
        ),
        ({"clients": [(X, Y), (X[0, 0], Y)]}, "clients[1] must look like those of client 0"),
        ({"lr": -0.1}, "lr must be a finite number >= 0, or a function of the round, found -0.1"),
        (
            {"lr": float("nan")},
            "lr must be a finite number >= 0, or a function of the round, found nan",
        ),
        (
            {"lr": "fast"},
            "lr must be a finite number >= 0, or a function of the round, found 'fast'",
        ),
        (
            {"lr": lambda t: None},
            "lr must return a finite number >= 0 for every round, found None for round 0",
        ),
        ({"momentum": None}, "momentum must be a finite number >= 0, found None"),
        (
            {"model": Stepping()},
            "model must not change buffers that are not part of a client's model, "
            "found that 'steps'",
        ),
        ({"momentum": -1.0}, "momentum must be a finite number >= 0, found -1.0"),
        ({"batch_size": 0}, "batch_size must be an integer at least 1, found 0"),
        ({"steps": 0}, "steps must be an integer at least 1, found 0"),
        ({"reduction": "none"}, "reduction must be 'mean', 'sum' or None, found 'none'"),
        (
            {"backend": "fast"},
            "backend must be 'auto', 'loop', 'threads' or 'batched', found 'fast'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_bad_arguments(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalSGD(**GOOD | changes)


@pytest.mark.parametrize(
    ("models", "t", "message"),
    [
        (
            torch.zeros(3, 21),
            0,
            "models must be float32 (2, 21) like flatten(model), found float32 (3, 21)",
        ),
        (
            torch.zeros(2, 20),
            0,
            "models must be float32 (2, 21) like flatten(model), found float32 (2, 20)",
        ),
        (
            torch.zeros(2, 21).double(),
            0,
            "models must be float32 (2, 21) like flatten(model), found float64 (2, 21)",
        ),
        (
            torch.zeros(21),
            0,
            "models must be float32 (2, 21) like flatten(model), found float32 (21,)",
        ),
        (
            torch.tensor(0.0),
            0,
            "models must be float32 (2, 21) like flatten(model), found float32 ()",
        ),
        ([[0.0] * 21] * 2, 0, "models must be float32 (2, 21) like flatten(model), found list"),
        (
            torch.zeros(2, 21, device="meta"),
            0,
            "models must be on the device of the model, cpu, found meta",
        ),
        (torch.zeros(2, 21), -1, "t must be an integer at least 0, found -1"),
    ],
)
def test_models_that_do_not_fit(models: Any, t: int, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalSGD(**GOOD)(models, t)


def test_batching_of_one_client():
    """vmap takes images with channels last into GroupNorm for two clients, not for one."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )
    clients = examples((2, 5, 5), [5, 4])
    with pytest.raises(
        ValueError, match="backend must be 'loop' or 'threads' for this model, found 'batched'"
    ):
        LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5, backend="batched")
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5)
    assert trainer.measure(start(model, 2), repeats=1).keys() == {"loop", "threads"}
