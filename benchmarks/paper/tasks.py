"""The data sets of the BALANCE paper, with their models and hyper-parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from equipoise import attacks, data, models
from equipoise.data import Dataset

Metric = Literal["TER", "MSE"]


@dataclass(frozen=True)
class Task:
    """A data set as in section 6.1 and appendix D of the paper (Fang et al., CCS 2024).

    ``step`` multiplies the paper's learning rate. It is the only number that is not the paper's:
    see `Setting`.
    """

    title: str
    load: Callable[
        [Path, int, bool], Dataset
    ]  # of the folder, the seed, and whether to download what is missing
    model: Callable[[int], nn.Module]
    rounds: int
    lr: float
    step: float
    graph: str
    partition: str
    flip: attacks.LabelFlip
    metric: Metric = "TER"
    trigger: attacks.Trigger | None = None
    target: int = 0

    @property
    def loss(self) -> Callable[..., Tensor]:
        """The loss function."""
        return mse_loss if self.metric == "MSE" else cross_entropy


def _folder(root: Path, name: str) -> Path:
    """Return the folder with the name of the data set if it exists, otherwise the root."""
    return root / name if (root / name).is_dir() else root


def _har(root: Path, seed: int, download: bool) -> Dataset:
    folder = _folder(root, "har")
    archives = [path for path in sorted(folder.glob("*.zip")) if "har" in path.name.lower()]
    return data.har(archives[0] if len(archives) == 1 else folder, seed=seed, download=download)


TASKS: Mapping[str, Task] = {
    "synthetic": Task(
        "synthetic regression",
        lambda root, seed, download: data.synthetic_regression(seed=seed),
        lambda seed: models.linear_regression(100, bias=False, seed=seed),
        rounds=300,
        lr=6e-4,
        step=1.0,
        graph="regular(20,10)",
        partition="iid",
        flip=attacks.LabelFlip(offset=5.0),
        metric="MSE",
    ),
    "mnist": Task(
        "MNIST",
        lambda root, seed, download: data.mnist(_folder(root, "mnist"), download=download),
        lambda seed: models.cnn(seed=seed),
        rounds=2000,
        lr=3e-4,
        step=4.0,
        graph="regular(20,10)",
        partition="by_group(0.8)",
        flip=attacks.LabelFlip({3: 5}),
        trigger=attacks.PixelPattern(),
    ),
    "fashion-mnist": Task(
        "Fashion-MNIST",
        lambda root, seed, download: data.fashion_mnist(
            _folder(root, "fashion-mnist"), download=download
        ),
        lambda seed: models.cnn(seed=seed),
        rounds=2000,
        lr=6e-3,
        step=1.0,
        graph="regular(20,10)",
        partition="by_group(0.8)",
        flip=attacks.LabelFlip({3: 5}),
        trigger=attacks.PixelPattern(),
    ),
    "har": Task(
        "HAR",
        _har,
        lambda seed: models.logistic_regression(561, 6, seed=seed),
        rounds=1000,
        lr=3e-3,
        step=0.25,
        graph="regular(30,15)",
        partition="by_client",
        flip=attacks.LabelFlip({3: 5}),
        trigger=attacks.EveryNth(),
        target=1,
    ),
    "celeba": Task(
        "CelebA",
        lambda root, seed, download: data.celeba(
            _folder(root, "celeba"), seed=seed, download=download
        ),
        lambda seed: models.cnn((3, 84, 84), 2, seed=seed),
        rounds=1500,
        lr=5e-5,
        step=1.0,
        graph="regular(20,10)",
        partition="by_client",
        flip=attacks.LabelFlip({0: 1, 1: 0}),
        trigger=attacks.ONE_PIXEL,
        target=1,
    ),
}


@lru_cache(maxsize=2)
def load(name: str, root: str | os.PathLike[str], seed: int) -> Dataset:
    """Load a data set; the last two are cached, because many runs in a row use the same."""
    return TASKS[name].load(Path(root), seed, False)


def fetch(name: str, root: str | os.PathLike[str]) -> None:
    """Download a data set if it is missing."""
    TASKS[name].load(Path(root), 0, True)
