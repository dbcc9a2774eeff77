"""Metrics: against one model at a time, and on models that are broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.attacks import ONE_PIXEL, EveryNth, attack_success_rate
from equipoise.metrics import (
    AttackSuccess,
    ErrorRate,
    MeanSquaredError,
    Metric,
)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class OwnClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 3, 2), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).view(-1, 12))


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(12, 4)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 4)),
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 7), nn.Tanh(), nn.Linear(7, 4)),
    "own class": OwnClass,
    "convolutions": convolutions,
    "viewed": Viewed,
}

every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def data(count: int = 50) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 2, 3, 3), torch.randint(4, (count,))


def stacked(model: nn.Module, n: int = 5, **options: Any) -> Tensor:
    like = eq.flatten(model, **options)
    return like + 0.5 * torch.randn(n, len(like))


@torch.no_grad()
def one_by_one(
    model: nn.Module, models: Tensor, measure: Callable[[Tensor], Any], x: Tensor
) -> list[Any]:
    """The values of one module after the other, in evaluation mode, on all examples together."""
    return [measure(eq.unflatten(row, deepcopy(model)).eval()(x)) for row in models]


# Every metric


@every_model
@pytest.mark.usefixtures("threads")
def test_error_rate_per_model(make: Callable[[], nn.Module]):
    model, (x, y) = make(), data()
    models = stacked(model)
    values = ErrorRate(model, x, y)(models)
    assert values.dtype == torch.float64
    assert values.tolist() == one_by_one(
        model, models, lambda out: (out.argmax(1) != y).double().mean().item(), x
    )
    assert 0 < values.min() < values.max() < 1


@every_model
@pytest.mark.usefixtures("threads")
def test_squared_error_per_model(make: Callable[[], nn.Module]):
    model, (x, _) = make(), data()
    models, y = stacked(model), torch.randn(50, 4)
    expected = one_by_one(model, models, lambda out: (out.double() - y).square().mean().item(), x)
    assert MeanSquaredError(model, x, y)(models).tolist() == pytest.approx(expected, rel=1e-5)


@every_model
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("target", [0, 3])
def test_attack_success_per_model(make: Callable[[], nn.Module], target: int):
    model, (x, y) = make(), data()
    models = stacked(model)
    expected = [
        attack_success_rate(
            lambda stamped, row=row: eq.unflatten(row, deepcopy(model)).eval()(stamped).argmax(1),
            x,
            y,
            ONE_PIXEL,
            target,
        )
        for row in models
    ]
    assert AttackSuccess(model, x, y, ONE_PIXEL, target)(models).tolist() == pytest.approx(expected)


@every_model
@pytest.mark.parametrize("sizes", [(1, 1, 1), (40, 30, 7), (1 << 20, 1 << 20, 50)])
@pytest.mark.parametrize("n", [1, 5])
def test_block_sizes_do_not_matter(
    make: Callable[[], nn.Module], sizes: tuple[int, ...], n: int, monkeypatch: pytest.MonkeyPatch
):
    model, (x, y) = make(), data()
    models, error = stacked(model, n), ErrorRate(model, x, y)
    whole = error(models)
    for name, size in zip(
        ("INPUT_ELEMENTS", "OUTPUT_ELEMENTS", "PIECE_EXAMPLES"), sizes, strict=True
    ):
        monkeypatch.setattr(f"equipoise.metrics.{name}", size)
    assert torch.equal(error(models), whole)


@every_model
def test_given_things_stay(make: Callable[[], nn.Module]):
    model, (x, y) = make(), data()
    models = stacked(model)
    kept = [part.clone() for part in (x, y, models, eq.flatten(model))]
    generator = torch.get_rng_state()
    AttackSuccess(model, x, y, ONE_PIXEL, 1)(models)
    ErrorRate(model, x, y)(models)
    MeanSquaredError(model, x, torch.zeros(50, 4))(models)
    assert all(
        torch.equal(a, b) for a, b in zip((x, y, models, eq.flatten(model)), kept, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(part.training for part in model.modules())


@every_model
def test_layouts_and_gradients(make: Callable[[], nn.Module]):
    model, (x, y) = make(), data()
    models, error = stacked(model), ErrorRate(model, x.requires_grad_(), y)
    values = error(models.clone().requires_grad_())
    assert not values.requires_grad
    assert torch.equal(error(models.T.contiguous().T), values)
    with torch.inference_mode():
        assert error(models).tolist() == values.tolist()


class AlwaysDropping(nn.Module):
    """Drops inputs in evaluation mode too, as in Monte Carlo dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


@pytest.mark.parametrize(
    "layers",
    [[nn.Flatten(), nn.Linear(18, 4)], [nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4)]],
)
@pytest.mark.usefixtures("threads")
def test_random_model(layers: list[nn.Module], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("equipoise.metrics.PIECE_EXAMPLES", 20)
    model, (x, _) = nn.Sequential(AlwaysDropping(), *layers), data()
    models = stacked(model)
    values = MeanSquaredError(model, x, torch.zeros(50, 4))(models)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = MeanSquaredError(model, x, torch.zeros(50, 4))
    assert torch.equal(again(models), values)
    assert torch.equal(again(models[3:4]), values[3:4])
    assert torch.equal(torch.get_rng_state(), before)
    plain = MeanSquaredError(nn.Sequential(nn.Identity(), *layers), x, torch.zeros(50, 4))
    assert not torch.isclose(plain(models), values).any()


def test_no_models_no_values():
    model, (x, y) = OwnClass(), data()
    assert ErrorRate(model, x, y)(torch.zeros(0, 76)).shape == (0,)


def test_statistics_per_model():
    model, x, y = (
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        torch.randn(9, 3),
        torch.randn(9, 2),
    )
    models = stacked(model, 3, buffers=True).abs()
    expected = []
    for row in models:
        module = eq.unflatten(row, deepcopy(model), buffers=True).eval()
        expected.append((module(x) - y).square().mean().item())
    kept = models.clone()
    assert MeanSquaredError(model, x, y, buffers=True)(models).tolist() == pytest.approx(
        expected, rel=1e-5
    )
    assert torch.equal(models, kept)


def test_regression_model():
    model = eq.models.linear_regression(3)
    x, y = torch.randn(9, 3), torch.randn(9)
    models = stacked(model, 3)
    expected = one_by_one(model, models, lambda out: (out - y).square().mean().item(), x)
    assert MeanSquaredError(model, x, y)(models).tolist() == pytest.approx(expected, rel=1e-5)


# Models that are broken


@every_model
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_models_are_wrong(make: Callable[[], nn.Module], value: float):
    model, (x, _) = make(), data()
    y = torch.zeros(50, dtype=torch.int64)  # what argmax makes of NaN
    models = stacked(model)
    metrics: list[tuple[Metric, float]] = [
        (ErrorRate(model, x, y), 1.0),
        (AttackSuccess(model, x, y + 1, ONE_PIXEL, 0), 0.0),
        (MeanSquaredError(model, x, torch.zeros(50, 4)), math.inf),
    ]
    for metric, expected in metrics:
        fine = metric(models)
        broken = models.clone()
        broken[3] = value
        values = metric(broken)
        assert values[3].item() == expected
        others = torch.tensor([0, 1, 2, 4])
        assert torch.equal(values[others], fine[others])


@pytest.mark.parametrize("scale", [1e30, 3e38])
def test_huge_finite_outputs(scale: float):
    model = nn.Linear(1, 3, bias=False)
    x, y = torch.ones(4, 1), torch.tensor([2, 2, 0, 2])
    models = torch.tensor([[0.9, 0.9, 1.0]]) * scale
    assert ErrorRate(model, x, y)(models).item() == 0.25
    assert AttackSuccess(model, x, y, EveryNth(1, value=1.0), 2)(models).item() == 1.0
    squares = (models.double().square().sum() / 3).item()
    assert MeanSquaredError(model, x, torch.zeros(4, 3))(models).item() == pytest.approx(squares)


def test_broken_output_is_an_error():
    model = nn.Linear(1, 2, bias=False)
    x = torch.tensor([[1.0], [torch.inf], [1.0], [torch.nan]])
    error = ErrorRate(model, x, torch.zeros(4, dtype=torch.int64))
    assert error(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).tolist() == [0.5, 1.0]


def test_ties_are_the_first_class():
    x, y = torch.ones(4, 2), torch.tensor([0, 1, 1, 1])
    assert ErrorRate(nn.Linear(2, 2), x, y)(torch.zeros(1, 6)).item() == 0.75


def test_attack_success_examples():
    model = nn.Linear(2, 2, bias=False)
    x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
    backdoored, honest = [[1.0, 0.0, 0.0, 9.0]], [[1.0, 0.0, -1.0, 0.0]]
    success = AttackSuccess(model, x, y, EveryNth(2, value=1.0), target=1)
    assert success(torch.tensor([backdoored[0], honest[0]])).tolist() == [1.0, 0.0]
