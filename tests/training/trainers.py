"""Models and trainers, and a slow reference of one optimizer per client."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import LocalSGD
from equipoise._utils.rng import stream
from equipoise.training._ensemble._stacked import Backend
from equipoise.training._examples import draw_positions

BACKENDS: tuple[Backend, ...] = get_args(Backend)


every_way = pytest.mark.parametrize("backend", BACKENDS)


class OneByOne:
    """Every client has its own module and its own torch.optim.SGD, kept from round to round."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        clients: list[tuple[Tensor, Tensor]],
        lr: float,
        momentum: float = 0.0,
        steps: int = 1,
        batch_size: int = 32,
        seed: int = 0,
        buffers: bool = False,
    ) -> None:
        self.loss, self.clients, self.steps, self.buffers = loss, clients, steps, buffers
        self.batch_size, self.seed = batch_size, seed
        self.modules = [deepcopy(model) for _ in clients]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr, momentum) for m in self.modules]

    def __call__(self, models: Tensor, t: int) -> Tensor:
        for module, row in zip(self.modules, models, strict=True):
            eq.unflatten(row, module, buffers=self.buffers)
        for step in range(self.steps):
            counts = torch.tensor([len(y) for _, y in self.clients])
            positions = draw_positions(counts, self.batch_size, stream(self.seed, "batch", t, step))
            for i, (x, y) in enumerate(self.clients):
                chosen = positions[i, : len(y)]
                self.optimizers[i].zero_grad()
                self.loss(self.modules[i](x[chosen]), y[chosen]).backward()
                self.optimizers[i].step()
        return eq.stack_models(self.modules, buffers=self.buffers)


class OwnClass(nn.Module):
    """A linear model as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


class ViewedConvolution(nn.Module):
    """Takes images only with their channels first: ``view`` demands it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 3), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().view(-1, 36))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gru(x)[0][:, -1])


class OftenUsed(nn.Module):
    """One layer twice, one not at all, and a weight that belongs to two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.last = nn.Linear(6, 6), nn.Linear(2, 2), nn.Linear(6, 3)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.tied(self.layer(self.layer(x).tanh())))


class Undecided(nn.Module):
    """What it does depends on the data, which vmap forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else self.fc(-x)


def tied_layers() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 3))


def partly_frozen() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Conv2d(2, 4, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 2, padding=1),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(20, 3)),
    )


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    auto: Backend = "batched"
    batched: bool = True


CASES = {
    "logistic": Case(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (1, 2, 3)),
    "linear layer": Case(lambda: nn.Linear(6, 3)),
    "without bias": Case(lambda: nn.Linear(6, 3, bias=False)),
    "perceptron": Case(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    ),
    "nested": Case(
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(6, 5), nn.GELU()), nn.Softmax(-1), nn.Linear(5, 3)
        )
    ),
    "sequences": Case(
        lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)), (3, 2)
    ),
    "own class": Case(OwnClass, (2, 3)),
    "undecided": Case(Undecided, auto="threads", batched=False),
    "tied": Case(tied_layers),
    "often used": Case(OftenUsed),
    "frozen": Case(partly_frozen),
    "normalised": Case(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), auto="threads"
    ),
    "convolutions": Case(convolutions, (2, 5, 5), auto="threads"),
    "viewed": Case(ViewedConvolution, (2, 5, 5), auto="threads"),
    "recurrent": Case(Recurrent, (3, 2), auto="threads", batched=False),
}


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def examples(
    shape: tuple[int, ...], counts: list[int], classes: int = 3
) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(count, *shape), torch.randint(classes, (count,))) for count in counts]


def start(model: nn.Module, n: int, **options: Any) -> Tensor:
    like = eq.flatten(model, **options)
    return like + 0.1 * torch.randn(n, len(like), dtype=like.dtype)


def logistic(n: int = 4, count: int = 10, **options: Any) -> tuple[LocalSGD, Tensor]:
    """A trainer and models, always of the same examples and numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, clients = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), examples((6,), [count] * n)
        models = start(model, n)
    return LocalSGD(model, cross_entropy, clients, **{"lr": 0.1, "batch_size": 4} | options), models


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3))


def noisy(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return cross_entropy(outputs + 0.5 * torch.randn_like(outputs), targets, reduction=reduction)


X, Y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])


GOOD: dict[str, Any] = {
    "model": nn.Linear(6, 3),
    "loss": cross_entropy,
    "clients": [(X, Y), (X, Y)],
    "lr": 0.1,
}
