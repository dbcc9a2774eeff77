"""Unordered pairs of rows, each counted once."""

from __future__ import annotations

import torch
from torch import Tensor


def unordered(left: Tensor, right: Tensor, m: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The different pairs of rows below m, in whatever direction, sorted, and which of them each given pair is."""
    keys, inverse = (torch.minimum(left, right) * m + torch.maximum(left, right)).unique(
        return_inverse=True
    )
    return (keys // m, keys % m), inverse


def unordered_within(rows: Tensor, m: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The different pairs (p,) within each of some lists (r, c) of rows, list by list, and which each (r, pairs) is."""
    left, right = torch.triu_indices(rows.shape[1], rows.shape[1], offset=1, device="cpu")
    (low, high), inverse = unordered(rows[:, left], rows[:, right], m)
    first = torch.full_like(low, inverse.numel()).scatter_reduce_(
        0, inverse.flatten(), torch.arange(inverse.numel(), device="cpu"), "amin"
    )
    order = first.argsort()
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device="cpu"))
    return (low[order], high[order]), place[inverse]
