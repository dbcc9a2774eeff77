"""Metrics on blocks of examples: against one model on all examples, odd sizes, samples, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.attacks import ONE_PIXEL, targeted
from equipoise.metrics import AttackSuccess, ErrorRate, MeanSquaredError, Metric

CLASSES = 3


class Residual(nn.Module):
    """A block that is no Sequential, with a shortcut and a norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = norm
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x + self.norm(self.conv(x)).relu()).mean((2, 3)))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(100, 9), nn.ReLU(), nn.Dropout(), nn.Linear(9, CLASSES)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: eq.models.logistic_regression(100, CLASSES),
    "perceptron": perceptron,
    "paper": lambda: eq.models.cnn((1, 10, 10), CLASSES),
    "BatchNorm": lambda: Residual(nn.BatchNorm2d(4)),
    "GroupNorm": lambda: Residual(nn.GroupNorm(2, 4)),
}


def metrics_of(model: nn.Module, x: Tensor, y: Tensor, **options: int) -> list[Metric]:
    targets = nn.functional.one_hot(y, CLASSES).float()
    buffers = any(True for _ in model.buffers())  # models with buffers are not batched
    return [
        ErrorRate(model, x, y, buffers=buffers, **options),
        MeanSquaredError(model, x, targets, buffers=buffers, **options),
        AttackSuccess(model, x, y, ONE_PIXEL, 1, buffers=buffers, **options),
    ]


@torch.no_grad()
def references(model: nn.Module, models: Tensor, x: Tensor, y: Tensor) -> list[list[float]]:
    """The values of all metrics, of one module after the other on all examples at once."""
    values = []
    for row in models:
        module = eq.unflatten(row, deepcopy(model), buffers=True).eval()
        outputs = module(x)
        stamped = module(targeted(x, y, ONE_PIXEL, 1))
        targets = nn.functional.one_hot(y, CLASSES)
        values.append(
            [
                (outputs.argmax(1) != y).double().mean().item(),
                (outputs.double() - targets).square().mean().item(),
                (stamped.argmax(1) == 1).double().mean().item(),
            ]
        )
    return [list(column) for column in zip(*values, strict=True)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("n", "count"), [(1, 1), (1, 9), (7, 1), (4, 9), (3, 50)])
def test_all_metrics_of_odd_sizes(
    name: str, n: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few examples and clients, some of them with one only."""
    torch.manual_seed(n)
    model = MODELS[name]()
    like = eq.flatten(model, buffers=True)
    models = like * (1 + 0.3 * torch.randn(n, len(like))).abs()
    x = torch.randn(count, 1, 10, 10)
    y = torch.arange(count) % CLASSES
    expected = references(model, models, x, y)
    for sizes in ({}, {"INPUT_ELEMENTS": 400, "OUTPUT_ELEMENTS": 60, "MODEL_ELEMENTS": 3000}):
        for constant, size in sizes.items():
            monkeypatch.setattr(f"equipoise.metrics.{constant}", size)
        for piece in (1 << 11, 8):  # 9 examples are then a piece of 8 and one of 1
            monkeypatch.setattr("equipoise.metrics.PIECE_EXAMPLES", piece)
            found = [metric(models).tolist() for metric in metrics_of(model, x, y)]
            assert found == [pytest.approx(column, rel=1e-5) for column in expected]


def test_batch_dependent_model() -> None:
    """The batch is a block, and here all examples are one."""
    torch.manual_seed(0)
    model = Residual(nn.BatchNorm2d(4, track_running_stats=False))
    like = eq.flatten(model)
    models = like + 0.3 * torch.randn(3, len(like))
    x = torch.randn(50, 1, 10, 10)
    y = torch.arange(50) % CLASSES
    found = [metric(models).tolist() for metric in metrics_of(model, x, y)]
    expected = references(model, models, x, y)
    assert found == [pytest.approx(column, rel=1e-5) for column in expected]


# Samples


def test_sample_is_a_subset() -> None:
    """The outputs are the inputs, so the error is the mean of the sampled squares."""
    torch.manual_seed(0)
    x = torch.randn(40, 1)
    model = nn.Linear(1, 1, bias=False)
    error = MeanSquaredError(model, x, 0 * x, sample=7)
    rows = torch.isin(x, error._x).flatten()
    assert rows.sum() == 7
    one = torch.ones(2, 1)
    assert error(one).tolist() == pytest.approx([x[rows].square().mean().item()] * 2)
    assert torch.equal(error(one), MeanSquaredError(model, x, 0 * x, sample=7, seed=0)(one))
    assert not torch.equal(error(one), MeanSquaredError(model, x, 0 * x, sample=7, seed=1)(one))


def test_sample_of_all() -> None:
    model = MODELS["logistic"]()
    models = torch.randn(3, len(eq.flatten(model)))
    x = torch.randn(20, 1, 10, 10)
    y = torch.tensor([0, 2]).repeat(10)
    generator = torch.get_rng_state()
    for whole, sampled in zip(
        metrics_of(model, x, y), metrics_of(model, x, y, sample=20), strict=True
    ):
        assert torch.equal(whole(models), sampled(models))
    assert torch.equal(torch.get_rng_state(), generator)


def test_sample_of_triggers() -> None:
    """It is drawn from the examples that count."""
    x = torch.randn(20, 1, 10, 10)
    y = torch.tensor([0, 1]).repeat(10)
    success = AttackSuccess(MODELS["logistic"](), x, y, ONE_PIXEL, 1, sample=10)
    assert success._y.tolist() == [0] * 10
    with pytest.raises(ValueError, match="sample must be an integer from 1 to 10, found 11"):
        AttackSuccess(MODELS["logistic"](), x, y, ONE_PIXEL, 1, sample=11)


# Memory

MEASURED = """
import sys
from pathlib import Path
import torch
from torch import nn
import equipoise as eq

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

torch.set_num_threads(2)
# All outputs take 382 MiB, and the widest layer of one client without fusion 330 MiB.
if sys.argv[1] == "batched":
    model, n, shape = eq.models.logistic_regression(5, 10), 500, (20_000, 5)
else:
    model, n, shape = eq.models.cnn((1, 14, 14)), 2, (20_000, 1, 14, 14)
x = torch.rand(shape)
error = eq.metrics.ErrorRate(model, x, torch.zeros(len(x), dtype=torch.int64))
models = eq.flatten(model).repeat(n, 1)
error._x = error._x[:100]
error._y = error._y[:100]
error(models)  # loads libraries
error = eq.metrics.ErrorRate(model, x, torch.zeros(len(x), dtype=torch.int64))
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
before = peak()
error(models)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("backend", ["batched", "threads"])
def test_memory_of_one_block(backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, backend], capture_output=True, text=True, check=True
    )
    # Measured: 9 to 18 MiB, and 32 to 44 without the C library, whose convolution is fused; with
    # all examples in one block 200 to 1,150. Two threads have a block each.
    assert float(done.stdout) < 80
