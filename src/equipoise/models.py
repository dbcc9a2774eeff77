"""Models of the BALANCE paper, with the initial weights that its threshold was chosen for.

They are float32 like the data, and on the CPU, whatever torch's default dtype and device are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_count, describe
from equipoise.parameters import flatten
from equipoise.training import FusedSequential

Init: TypeAlias = Literal["xavier", "torch"]


def cnn(
    shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, *, init: Init = "xavier", seed: int = 0
) -> nn.Sequential:
    r"""The paper's convolutional network (Fang et al., CCS 2024, Table 4): 139,960 parameters for MNIST.

    ======================  ==============================
    convolution, ReLU       3 x 3, 30 channels, no padding
    max pooling             2 x 2
    convolution, ReLU       3 x 3, 50 channels, no padding
    max pooling             2 x 2
    fully connected, ReLU   100
    fully connected         ``classes``
    ======================  ==============================

    With ``init="xavier"`` weights are drawn as in the code of the paper's authors, MXNet's Xavier with magnitude 2.24:

    .. math:: w \sim U(-b, b), \quad b = \sqrt{\frac{2.24}{(\mathrm{fan_{in}} + \mathrm{fan_{out}}) / 2}},
        \qquad \mathrm{bias} = 0

    The norm of such a model is 13.5, and with torch's own initial weights, ``init="torch"``, it is 8.1. This matters to
    BALANCE, which accepts messages within a fraction of the receiver's norm. Of an image of 28 x 28 pixels the last two
    rows and columns do not matter: the second pooling makes 5 x 5 of 11 x 11.

    On a CPU with native kernels, a convolution with its pooling and ReLU is one step, and training takes half the time.

    Args:
        shape: channels, height and width of an input; both height and width at least 10.
        classes: how many numbers the model returns for an input.
        init: ``"xavier"``, or ``"torch"`` for what torch's layers do by themselves.
        seed: decides the initial weights. Torch's global generator is neither used nor changed.

    >>> from equipoise.models import cnn
    >>> model = cnn()
    >>> eq.flatten(model).shape
    torch.Size([139960])
    >>> model(torch.rand(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """
    _check_shape(shape)
    check_count("classes", classes, 1)
    channels, height, width = shape

    def build() -> nn.Sequential:
        return FusedSequential(
            # ReLU after pooling: the same, and faster
            *(nn.Conv2d(channels, 30, 3, dtype=torch.float32), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(30, 50, 3, dtype=torch.float32), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(50 * _left(_left(height)) * _left(_left(width)), 100, dtype=torch.float32)),
            *(nn.ReLU(), nn.Linear(100, classes, dtype=torch.float32)),
        )

    return _initialized(build, init, seed, magnitude=2.24)


def linear_regression(features: int, *, bias: bool = True, init: Init = "xavier", seed: int = 0) -> nn.Sequential:
    """One number per input, ``w . x + b``: inputs ``(N, features)``, outputs ``(N,)``.

    Args:
        features: the length of an input.
        bias: whether there is a ``b``. The BALANCE paper's data have none, and its clients are hardly misled by an
            offset of all labels, so its model has none either.
        init: ``"xavier"``, MXNet's Xavier with magnitude 1 and a zero bias, or ``"torch"``.
        seed: decides the initial weights. Torch's global generator is neither used nor changed.

    >>> from equipoise.models import linear_regression
    >>> linear_regression(100)(torch.rand(5, 100)).shape
    torch.Size([5])
    """
    check_count("features", features, 1)

    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(features, 1, bias, dtype=torch.float32), _OneOutput())

    return _initialized(build, init, seed, magnitude=1.0)


def logistic_regression(features: int, classes: int, *, init: Init = "xavier", seed: int = 0) -> nn.Sequential:
    """One score per class, ``W x + b``, to train with the cross-entropy; inputs of any shape are flattened.

    Args:
        features: how many numbers an input has: 561 for HAR, 64 for the 1 x 8 x 8 images of digits.
        classes: how many scores the model returns for an input.
        init: ``"xavier"``, MXNet's Xavier with magnitude 1 and zero biases, or ``"torch"``.
        seed: decides the initial weights. Torch's global generator is neither used nor changed.

    >>> from equipoise.models import logistic_regression
    >>> logistic_regression(64, 10)(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    check_count("features", features, 1)
    check_count("classes", classes, 1)

    def build() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(features, classes, dtype=torch.float32))

    return _initialized(build, init, seed, magnitude=1.0)


def initial_models(make: Callable[[int], nn.Module], n: int, *, same: bool = True, seed: int = 0) -> Tensor:
    """The models that n clients start from, as rows of one ``(n, d)`` tensor.

    Args:
        make: returns a module whose weights depend on the seed that it is given. If it ignores the seed and draws from
            torch's global CPU generator instead, it is still this seed that decides; that generator is put back.
        n: how many clients.
        same: every client starts from ``make(seed)``, as the paper's clients do by default; otherwise each one starts
            from weights of its own.
        seed: decides all of them.

    >>> from equipoise.models import initial_models, linear_regression
    >>> models = initial_models(lambda seed: linear_regression(3, seed=seed), 5)
    >>> models.shape, len(models.unique(dim=0))
    (torch.Size([5, 4]), 1)
    >>> models = initial_models(lambda seed: linear_regression(3, seed=seed), 5, same=False)
    >>> len(models.unique(dim=0))
    5
    """
    check_count("n", n, 1)
    if same:
        return _made(make, seed).repeat(n, 1)
    seeds = torch.randint(2**62, (n,), generator=stream(seed, "initial models"), device="cpu").tolist()
    first = _made(make, seeds[0])
    models = first.new_empty(n, len(first))
    models[0] = first
    for i in range(1, n):
        models[i] = _alike(_made(make, seeds[i]), first)
    return models


class _OneOutput(nn.Module):
    """From ``(..., 1)`` to ``(...)``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)


def _left(pixels: int) -> int:
    """What a 3 x 3 convolution without padding and a 2 x 2 pooling leave of a side."""
    return (pixels - 2) // 2


def _check_shape(shape: tuple[int, int, int]) -> None:
    if not isinstance(shape, tuple | list) or len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), found {shape!r}")
    for name, size in zip(("channels", "height", "width"), shape, strict=True):
        check_count(f"{name} in shape", size, 1)
    if _left(_left(min(shape[1:]))) < 1:
        raise ValueError(
            f"shape must have a height and a width of at least 10, found {tuple(shape)}: two rounds of a 3 x 3"
            " convolution without padding and a 2 x 2 pooling leave nothing of fewer pixels; enlarge the images, or"
            " use logistic_regression"
        )


def _initialized(build: Callable[[], nn.Sequential], init: Init, seed: int, magnitude: float) -> nn.Sequential:
    if init not in ("xavier", "torch"):
        raise ValueError(f"init must be 'xavier' or 'torch', found {init!r}")
    with _torch_draws_from(stream(seed, "torch's initial weights")), torch.device("cpu"):
        module = build()
    if init == "xavier":
        _xavier(module, magnitude, stream(seed, "xavier's initial weights"))
    return module


@contextmanager
def _torch_draws_from(generator: torch.Generator) -> Iterator[None]:
    """Layers draw their weights from torch's global generator and take no other: lend it the state of this one."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield


def _xavier(module: nn.Sequential, magnitude: float, generator: torch.Generator) -> None:
    # Torch's bound is gain * sqrt(6 / (fan_in + fan_out)), MXNet's is sqrt(2 * magnitude / (fan_in + fan_out)).
    gain = math.sqrt(magnitude / 3)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, gain, generator)
        else:
            nn.init.zeros_(parameter)


def _made(make: Callable[[int], nn.Module], seed: int) -> Tensor:
    if not callable(make):
        raise ValueError(f"make must be a function from a seed to a torch.nn.Module, found {describe(make)}")
    with _torch_draws_from(stream(seed, "make")):
        module = make(seed)
    if not isinstance(module, nn.Module):
        raise ValueError(f"make must return a torch.nn.Module, found {describe(module)}")
    return flatten(module)


def _alike(model: Tensor, first: Tensor) -> Tensor:
    if model.shape != first.shape or model.dtype != first.dtype:
        raise ValueError(
            f"make must return modules of one shape whatever the seed, found {describe(first)} and {describe(model)}"
        )
    return model
