"""Helpers for the tests of partitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.data.dataset import Dataset
from equipoise.data.partitions import Parts, by_classes, by_client, by_group, dirichlet, iid

Partition = Callable[..., Parts]


PARTITIONS: dict[str, Partition] = {
    "iid": iid,
    "by_group": by_group,
    "by_classes": by_classes,
    "dirichlet": dirichlet,
    "by_client": by_client,
}


LABEL_BASED = ["by_group", "by_classes", "dirichlet"]


every_partition = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS.keys())


def dataset(y: Tensor, classes: int | None, owners: Tensor | None = None) -> Dataset:
    return Dataset(torch.zeros(len(y), 1), y, torch.zeros(1, 1), y[:1], classes, owners, "made-up")


def table(labels: Tensor, parts: Parts, classes: int) -> Tensor:
    """Examples of class y at client k, (classes, n)."""
    return torch.stack([labels[part].bincount(minlength=classes) for part in parts], dim=1)


def sizes(parts: Parts) -> list[int]:
    return [len(part) for part in parts]


def clients(parts: Parts) -> Tensor:
    """The client of every example."""
    owner = torch.full((sum(sizes(parts)),), -1)
    for k, part in enumerate(parts):
        owner[part] = k
    return owner


def same(a: Parts, b: Parts) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def surprise(found: Tensor, expected: Tensor, freedom: int) -> float:
    """Pearson's chi-squared, in standard deviations from its mean."""
    chi_squared = ((found - expected).square() / expected).sum()
    return (float(chi_squared) - freedom) / math.sqrt(2 * freedom)
