"""Modules for tests of parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def values(module: nn.Module) -> list[Tensor]:
    return [x.detach().clone() for x in [*module.parameters(), *module.buffers()]]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))
