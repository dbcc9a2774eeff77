"""Seeded generators and training examples."""

from __future__ import annotations

import torch
from torch import Tensor


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def examples(count: int = 30, features: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(count, features, generator=seeded(0)), torch.arange(count) % 10
