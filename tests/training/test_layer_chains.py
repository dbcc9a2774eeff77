"""Steps of chains of layers equal those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.kernels import native
from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Stacked
from equipoise.training._examples import Batch
from equipoise.training._layer_chains import LayerChain
from equipoise.training._sgd_step import SGDStep

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


def descended(
    make: Any, x: Tensor, y: Tensor, loss: BatchLoss, momentum: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Models and velocities after a step at rate 0.1 from velocities of ones."""
    architecture, models = stacked(make())
    chain = LayerChain.of(architecture, x[0])
    assert chain is not None
    step = SGDStep(
        architecture,
        chain,
        RecycledMemory(),
        loss,
        lr=0.1,
        momentum=momentum,
        before=[models, torch.ones_like(models)],
        after=[models.clone(), torch.ones_like(models)],
    )
    step.train_together(Batch(slice(0, len(x)), x, y))
    return step.after[0], step.after[1]


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_step_equals_autograd(make: Any, reduction: Any, momentum: float) -> None:
    loss = BatchLoss(cross_entropy, reduction)
    torch.manual_seed(0)
    models, velocity = descended(make, X, Y, loss, momentum)
    architecture, before = stacked(make())
    leaf = before.clone().requires_grad_()
    losses = loss.of_each(architecture.apply(architecture.parts(leaf), X), Y)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    step = momentum + gradient if momentum else gradient
    torch.testing.assert_close(models, before - 0.1 * step)
    if momentum:
        torch.testing.assert_close(velocity, step)


def test_images_are_flattened() -> None:
    loss = BatchLoss(cross_entropy, "mean")
    images = X.view(3, 5, 1, 2, 3)
    flattened = descended(NETWORKS["flattened"], images, Y, loss)[0]
    assert torch.equal(flattened, descended(NETWORKS["flattened"], X, Y, loss)[0])


IMAGES = torch.rand(3, 5, 1, 11, 12, generator=torch.Generator().manual_seed(3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 4)
    )


def deep() -> nn.Module:
    """Two convolutions, and functions before and between them."""
    return nn.Sequential(
        nn.Tanh(),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU()),
        nn.SiLU(),
        *(nn.Conv2d(3, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 4)),
    )


@pytest.mark.skipif(not native.available(), reason="convolutions are fused in C only")
@pytest.mark.parametrize("make", [convolutional, deep])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_convolutions_equal_autograd(make: Any, momentum: float) -> None:
    loss = BatchLoss(cross_entropy, "mean")
    torch.manual_seed(0)
    models, _ = descended(make, IMAGES, Y, loss, momentum)
    architecture, before = stacked(make())
    for row, x, y, after in zip(before, IMAGES, Y, models, strict=True):
        with architecture.replica() as replica:
            replica.vector.copy_(row)
            gradients = torch.autograd.grad(loss(replica.module(x), y), replica.trained)
        gradient = torch.cat([part.flatten() for part in gradients])
        torch.testing.assert_close(after, row - 0.1 * (momentum + gradient))


def test_regression() -> None:
    y = Y[..., None].float()
    after = descended(lambda: nn.Linear(6, 1), X, y, BatchLoss(mse_loss, "mean"))[0]
    architecture, before = stacked(nn.Linear(6, 1))
    weight, bias = architecture.parts(before)
    # The gradient of the mean of (x w + b - y)^2 is 2 (x w + b - y) x / 5.
    error = torch.baddbmm(bias[:, None], X, weight.mT) - y
    new_weight, new_bias = architecture.parts(after)
    torch.testing.assert_close(new_weight, weight - 0.1 * 2 / 5 * error.mT @ X)
    torch.testing.assert_close(new_bias, bias - 0.1 * 2 / 5 * error.sum(1))


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
    assert LayerChain.of(Stacked(make()), x) is None
