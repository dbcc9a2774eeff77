"""Workloads for whole simulated rounds: a model, examples, a graph and malicious clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

import equipoise as eq

LR = 0.01
TOTAL = 100_000  # rounds that BALANCE is told: its limit hardly changes during a race


@dataclass(frozen=True)
class Task:
    """The model of every client and the graph; a fifth of the clients send Gaussian noise."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    n: int
    degree: int
    rounds: int  # of one turn: the turns of all tasks take similar times
    buffers: bool = False
    examples: int = 100
    batch: int = 32
    std: float = eq.attacks.Gaussian().std  # of the noise that malicious clients send

    @property
    def benign(self) -> int:
        """The number of benign clients. They come first, so that their models are one slice."""
        return self.n - self.n // 5

    @property
    def has_images(self) -> bool:
        return len(self.shape) == 3


@dataclass(eq=False)
class Setting:
    """A task with its model, examples and graph; pixels and labels are random."""

    task: Task
    model: nn.Module = field(init=False)
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    topology: eq.Topology = field(init=False)

    def __post_init__(self) -> None:
        task = self.task
        torch.manual_seed(0)  # the initial weights of torch's layers
        self.model = task.build()
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(task.n, task.examples, *task.shape, generator=generator)
        self.y = torch.randint(task.classes, (task.n, task.examples), generator=generator)
        self.topology = eq.Topology.regular(
            task.n, task.degree, seed=0, malicious=self.malicious, connected=task.degree > 2
        )

    @property
    def malicious(self) -> range:
        return range(self.task.benign, self.task.n)

    @property
    def initial(self) -> Tensor:
        """(d,) the model that all clients start from."""
        return eq.flatten(self.model, buffers=self.task.buffers)

    @property
    def senders(self) -> Tensor:
        """(n, k) the neighbors of each client."""
        return self.topology.senders

    @property
    def tolerated(self) -> Tensor:
        """(n,) the true number of malicious neighbors, which the simulator tells rules."""
        return (self.senders >= self.task.benign).sum(1)


class Residual(nn.Module):
    """Two convolutions and a shortcut, as in a ResNet for small images."""

    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet8(norm: Callable[[int], nn.Module], widths: tuple[int, ...] = (16, 32, 64)) -> nn.Module:
    """A ResNet-8 for images of 3 x 32 x 32 pixels: one block in each of three stages."""
    first = widths[0]
    return nn.Sequential(
        nn.Conv2d(3, first, 3, padding=1, bias=False),
        norm(first),
        nn.ReLU(),
        *(Residual(i, o, norm) for i, o in zip((first, *widths), widths, strict=False)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], 10),
    )


def mlp(features: int = 784, hidden: int = 200, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


LOGISTIC_B = partial(eq.models.logistic_regression, 561, 6)
LOGISTIC_C = partial(eq.models.logistic_regression, 64, 10)
RESNET_BN = partial(resnet8, nn.BatchNorm2d)
RESNET_GN = partial(resnet8, group_norm)
CIFAR = (3, 32, 32)

TASKS = {
    task.name: task
    for task in (
        Task("A", "the paper's CNN", eq.models.cnn, (1, 28, 28), 10, 20, 10, 3, examples=300),
        Task("B", "logistic 561 to 6", LOGISTIC_B, (561,), 6, 30, 15, 30),
        Task("C", "logistic 64 to 10", LOGISTIC_C, (64,), 10, 1000, 10, 5),
        Task("D", "MLP 784-200-10", mlp, (784,), 10, 100, 10, 2),
        Task("E-BN", "ResNet-8, BatchNorm", RESNET_BN, CIFAR, 10, 10, 4, 1, buffers=True),
        Task("E-GN", "ResNet-8, GroupNorm", RESNET_GN, CIFAR, 10, 10, 4, 1),
    )
}
