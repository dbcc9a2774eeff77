"""Modules for tests of parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))


def values(module: nn.Module) -> list[Tensor]:
    return [x.detach().clone() for x in [*module.parameters(), *module.buffers()]]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))
