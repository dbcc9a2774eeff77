"""Gradients of linear networks equal those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Stacked
from equipoise.training._linear_networks import LinearNetwork

X = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (3, 5), generator=torch.Generator().manual_seed(1))

NETWORKS = {
    "linear": lambda: nn.Linear(6, 4),
    "without bias": lambda: nn.Linear(6, 4, bias=False),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)),
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 4)),
    "in place": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(inplace=True), nn.Linear(7, 4)),
    "function first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, 4, bias=False)),
    "function last": lambda: nn.Sequential(nn.Linear(6, 4), nn.Sigmoid()),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(6, 7), nn.GELU()), nn.Linear(7, 5), nn.Softplus(), nn.Linear(5, 4)
    ),
}


def stacked(model: nn.Module) -> tuple[Stacked, Tensor]:
    architecture = Stacked(model)
    generator = torch.Generator().manual_seed(2)
    return architecture, torch.randn(3, architecture.d, generator=generator)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_equal_autograd(make: Any, reduction: Any) -> None:
    architecture, models = stacked(make())
    network = LinearNetwork.of(architecture, X[0])
    assert network is not None
    loss = BatchLoss(cross_entropy, reduction)
    parts = architecture.parts(models)
    found = network.gradients(parts, X, Y, loss)
    leaves = [part.detach().requires_grad_() for part in parts]
    losses = loss.of_each(architecture.apply(leaves, X), Y)
    expected = torch.autograd.grad(losses.sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_images_are_flattened() -> None:
    architecture, models = stacked(nn.Sequential(nn.Flatten(), nn.Linear(6, 4)))
    images = X.view(3, 5, 1, 2, 3)
    network = LinearNetwork.of(architecture, images[0])
    assert network is not None
    loss = BatchLoss(cross_entropy, "mean")
    parts = architecture.parts(models)
    for one, other in zip(
        network.gradients(parts, images, Y, loss),
        network.gradients(parts, X, Y, loss),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_regression() -> None:
    architecture, models = stacked(nn.Linear(6, 1))
    network = LinearNetwork.of(architecture, X[0])
    assert network is not None
    parts = architecture.parts(models)
    y = Y[..., None].float()
    weight, bias = network.gradients(parts, X, y, BatchLoss(mse_loss, "mean"))
    # The gradient of the mean of (x w + b - y)^2 is 2 (x w + b - y) x / 5.
    error = torch.baddbmm(parts[1][:, None], X, parts[0].mT) - y
    torch.testing.assert_close(weight, 2 / 5 * error.mT @ X)
    torch.testing.assert_close(bias, 2 / 5 * error.sum(1))


class Shared(nn.Sequential):
    """A subclass may do anything."""


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    model[0].requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 4))
    model[0].register_forward_hook(lambda *_: None)
    return model


OTHERS = {
    "convolution": (lambda: nn.Sequential(nn.Conv1d(1, 1, 3)), X[0, :, None]),
    "softmax": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1)), X[0]),
    "sequences": (lambda: nn.Linear(3, 4), X[0].view(5, 2, 3)),
    "late flattening": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten()), X[0]),
    "other flattening": (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(6, 4)), X[0]),
    "subclass": (lambda: Shared(nn.Linear(6, 4)), X[0]),
    "tied": (tied, X[0]),
    "frozen": (frozen, X[0]),
    "hooked": (hooked, X[0]),
}


@pytest.mark.parametrize(("make", "x"), OTHERS.values(), ids=OTHERS.keys())
def test_other_models_use_autograd(make: Any, x: Tensor) -> None:
    assert LinearNetwork.of(Stacked(make()), x) is None
