"""Unordered pairs of rows, each counted once."""

from __future__ import annotations

import torch
from torch import Tensor


def unordered(left: Tensor, right: Tensor, m: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The distinct unordered pairs of rows below m, sorted, and the index of each given pair."""
    # One integer per pair, which is the same in both orders. It fits an int64 for m below 3e9.
    keys, inverse = (torch.minimum(left, right) * m + torch.maximum(left, right)).unique(
        return_inverse=True
    )
    return (keys // m, keys % m), inverse


def unordered_within(rows: Tensor, m: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The distinct pairs (p,) within each list of rows (r, c), and their indices (r, pairs).

    Pairs are ordered by the first list that has them, so that C finds the few rows of a list in the
    first-level cache.
    """
    left, right = torch.triu_indices(rows.shape[1], rows.shape[1], offset=1, device="cpu")
    (low, high), inverse = unordered(rows[:, left], rows[:, right], m)
    # The place at which each distinct pair occurs first, in the order of the lists.
    first = torch.full_like(low, inverse.numel()).scatter_reduce_(
        0, inverse.flatten(), torch.arange(inverse.numel(), device="cpu"), "amin"
    )
    order = first.argsort()
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device="cpu"))
    return (low[order], high[order]), place[inverse]
