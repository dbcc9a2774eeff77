"""Models of the BALANCE paper, with the initial weights that its threshold was tuned for.

They are float32, like the data, and on the CPU, independent of torch's default dtype and device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_choice, check_count, describe
from equipoise.parameters import flatten
from equipoise.training import FusedSequential

Init: TypeAlias = Literal["xavier", "torch"]


def cnn(
    shape: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
    *,
    init: Init = "xavier",
    seed: int = 0,
) -> nn.Sequential:
    r"""The paper's convolutional network (Fang et al., CCS 2024, Table 4).

    It has 139,960 parameters for MNIST.

    ======================  ==============================
    convolution, ReLU       3 x 3, 30 channels, no padding
    max pooling             2 x 2
    convolution, ReLU       3 x 3, 50 channels, no padding
    max pooling             2 x 2
    fully connected, ReLU   100
    fully connected         ``classes``
    ======================  ==============================

    With ``init="xavier"``, weights are drawn as in the code of the paper's authors, by MXNet's
    Xavier with magnitude 2.24:

    .. math:: w \sim U(-b, b), \quad
        b = \sqrt{\frac{2.24}{(\mathrm{fan_{in}} + \mathrm{fan_{out}}) / 2}},
        \qquad \mathrm{bias} = 0

    The norm of such a model is 13.5. With torch's own initial weights, ``init="torch"``, it is 8.1.
    This matters to BALANCE, which accepts messages within a fraction of the receiver's norm. The
    last two rows and columns of an image of 28 x 28 pixels have no effect: the second pooling
    turns 11 x 11 into 5 x 5.

    On a CPU with native kernels, a convolution with its pooling and ReLU is one operation: training
    takes 0.4 to 0.6 of the time.

    Args:
        shape: channels, height and width of an input; height and width are at least 10.
        classes: number of outputs.
        init: ``"xavier"``, or ``"torch"`` for the defaults of torch's layers.
        seed: determines the initial weights. Torch's global generator is neither used nor changed.

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
    # 5 x 5 pixels are left of 28 x 28, hence 1,250 features for MNIST.
    features = 50 * _pooled(_pooled(height)) * _pooled(_pooled(width))

    def build() -> nn.Sequential:
        return FusedSequential(
            # Explicit dtypes, here and below: torch's default must not change the models.
            # ReLU is monotone, so it commutes with max pooling. After it, it sees a quarter.
            nn.Conv2d(channels, 30, 3, dtype=torch.float32),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(30, 50, 3, dtype=torch.float32),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(features, 100, dtype=torch.float32),
            nn.ReLU(),
            nn.Linear(100, classes, dtype=torch.float32),
        )

    return _initialized(build, init, seed, magnitude=2.24)


def linear_regression(
    features: int, *, bias: bool = True, init: Init = "xavier", seed: int = 0
) -> nn.Sequential:
    """One number per input, ``w . x + b``: inputs ``(N, features)``, outputs ``(N,)``.

    Args:
        features: the length of an input.
        bias: whether there is a ``b``. The BALANCE paper's data have none, and an attack that
            shifts all labels hardly misleads its clients, so its model has none either.
        init: ``"xavier"``, MXNet's Xavier with magnitude 1 and a zero bias, or ``"torch"``.
        seed: determines the initial weights. Torch's global generator is neither used nor changed.

    >>> from equipoise.models import linear_regression
    >>> linear_regression(100)(torch.rand(5, 100)).shape
    torch.Size([5])
    """
    check_count("features", features, 1)

    def build() -> nn.Sequential:
        # Without _Squeeze, outputs (N, 1) minus targets (N,) would broadcast to (N, N).
        return nn.Sequential(nn.Linear(features, 1, bias, dtype=torch.float32), _Squeeze())

    return _initialized(build, init, seed, magnitude=1.0)


def logistic_regression(
    features: int, classes: int, *, init: Init = "xavier", seed: int = 0
) -> nn.Sequential:
    """One score per class, ``W x + b``, to train with the cross-entropy.

    Inputs of any shape are flattened.

    Args:
        features: numbers per input: 561 for HAR, 64 for the 1 x 8 x 8 images of digits.
        classes: number of scores.
        init: ``"xavier"``, MXNet's Xavier with magnitude 1 and zero biases, or ``"torch"``.
        seed: determines the initial weights. Torch's global generator is neither used nor changed.

    >>> from equipoise.models import logistic_regression
    >>> logistic_regression(64, 10)(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    check_count("features", features, 1)
    check_count("classes", classes, 1)

    def build() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(features, classes, dtype=torch.float32))

    return _initialized(build, init, seed, magnitude=1.0)


def initial_models(
    make: Callable[[int], nn.Module], n: int, *, same: bool = True, seed: int = 0
) -> Tensor:
    """The initial models of n clients, as rows of one ``(n, d)`` tensor.

    Args:
        make: returns a module for a seed. It may draw from torch's global CPU generator, which is
            set from the seed for the call and restored afterwards.
        n: number of clients.
        same: whether all clients start from ``make(seed)``, as the paper's clients do by default,
            or each one from other weights.
        seed: determines all models.

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
        # Copies, because every client trains its own row.
        return _make_model(make, seed).repeat(n, 1)
    generator = stream(seed, "initial models")
    # Below 2^63: torch reads a seed as a signed number.
    seeds = torch.randint(2**62, (n,), generator=generator, device="cpu").tolist()
    first = _make_model(make, seeds[0])
    # Filled row by row: stacking a list would hold all models twice.
    models = first.new_empty(n, len(first))
    models[0] = first
    for i in range(1, n):
        model = _make_model(make, seeds[i])
        if model.shape != first.shape or model.dtype != first.dtype:
            expected = "modules of one shape for all seeds"
            found = f"{describe(first)} and {describe(model)}"
            raise ValueError(f"make must return {expected}, found {found}")
        models[i] = model
    return models


class _Squeeze(nn.Module):
    """From ``(..., 1)`` to ``(...)``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)


def _pooled(pixels: int) -> int:
    """The side of an image after a 3 x 3 convolution without padding and a 2 x 2 pooling."""
    return (pixels - 2) // 2


def _check_shape(shape: tuple[int, int, int]) -> None:
    if not isinstance(shape, tuple | list) or len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), found {shape!r}")
    for name, size in zip(("channels", "height", "width"), shape, strict=True):
        check_count(f"{name} in shape", size, 1)
    # Sides of 10 become 4, then 1; sides of 9 become 3, then 0.
    if _pooled(_pooled(min(shape[1:]))) < 1:
        raise ValueError(
            f"shape must have a height and a width of at least 10, found {tuple(shape)}: "
            "two rounds of a 3 x 3 convolution without padding and a 2 x 2 pooling leave "
            "nothing of fewer pixels; enlarge the images, or use logistic_regression"
        )


def _initialized(
    build: Callable[[], nn.Sequential], init: Init, seed: int, magnitude: float
) -> nn.Sequential:
    check_choice("init", init, get_args(Init))
    # Layers draw their own weights on construction; Xavier's replace them.
    with _torch_draws_from(stream(seed, "torch's initial weights")), torch.device("cpu"):
        module = build()
    # A stream for each: the bits of torch's initialization must not change those of Xavier's.
    if init == "xavier":
        _xavier(module, magnitude, stream(seed, "xavier's initial weights"))
    return module


@contextmanager
def _torch_draws_from(generator: torch.Generator) -> Iterator[None]:
    """Give torch's global generator this state for a while: layers draw from no other."""
    # Restored even after an error. No devices: modules are made on the CPU.
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield


def _xavier(module: nn.Sequential, magnitude: float, generator: torch.Generator) -> None:
    # Torch's bound is gain * sqrt(6 / (fan_in + fan_out)), MXNet's is
    # sqrt(2 * magnitude / (fan_in + fan_out)).
    gain = math.sqrt(magnitude / 3)
    for parameter in module.parameters():
        if parameter.dim() > 1:  # weights; biases have one dimension
            nn.init.xavier_uniform_(parameter, gain, generator)
        else:
            nn.init.zeros_(parameter)


def _make_model(make: Callable[[int], nn.Module], seed: int) -> Tensor:
    if not callable(make):
        expected = "a function from a seed to a torch.nn.Module"
        raise ValueError(f"make must be {expected}, found {describe(make)}")
    # A function that ignores its seed draws from torch, whose state the seed determines.
    with _torch_draws_from(stream(seed, "make")):
        module = make(seed)
    if not isinstance(module, nn.Module):
        raise ValueError(f"make must return a torch.nn.Module, found {describe(module)}")
    return flatten(module)
