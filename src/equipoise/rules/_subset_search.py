"""Search all subsets of messages for the one with the least spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.kernels import NEAR_TIE, Group, chunks
from equipoise.messages import Inbox
from equipoise.rules.base import uniform

# Elements of a temporary: 4 MiB of float64.
BUDGET = 1 << 19

# Spreads that differ by less are equal, but for rounding.
SAME = 1e-12

Spread = Callable[[Tensor, Tensor], Tensor]


def least_spread(
    own: Tensor, inbox: Inbox, excluded: Tensor, spread: Spread, *, most: int, rule: str
) -> Tensor:
    """(n, k) equal weights for the messages in the subset of least spread of each receiver.

    Subsets leave out ``excluded`` (n,) messages. ``spread(squares (r, c, c), subsets (s, size))``
    is (r, s). Of equal spreads, the subset of the lowest senders counts.
    """
    _check_size(inbox, excluded, most, rule)

    def choose(group: Group, squares: Tensor) -> tuple[Tensor, Tensor]:
        left_out = excluded[group.receivers]
        chosen = torch.zeros_like(squares[:, 0], dtype=torch.bool)
        doubtful = torch.zeros_like(left_out, dtype=torch.bool)
        for amount in left_out.unique().tolist():
            some = (left_out == amount).nonzero().flatten()
            chosen[some], doubtful[some] = _search(squares[some], amount, spread, inbox.bank.dtype)
        return chosen, doubtful

    chosen = torch.zeros_like(inbox.mask)
    for group, found in kernels.decide(own, inbox, choose):
        chosen[group.receivers[:, None], group.columns] = found
    return uniform(chosen)


def _check_size(inbox: Inbox, excluded: Tensor, most: int, rule: str) -> None:
    kinds = torch.stack([inbox.counts, excluded], 1).unique(dim=0).tolist()
    for count, amount in kinds:
        subsets = math.comb(count, amount)
        if subsets > most:
            raise ValueError(
                f"{rule} must search at most {most} subsets, found {subsets}: "
                f"{count} messages without {amount}; tolerate fewer, or use another rule"
            )


def _search(
    squares: Tensor, amount: int, spread: Spread, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(r, c) the messages in the best subset, and (r,) where another one may be better."""
    count = squares.shape[1]
    # In the order of senders, the first subsets have the lowest ones.
    subsets = torch.tensor(
        list(combinations(range(count), count - amount)), device=squares.device, dtype=torch.int64
    )
    chosen = torch.zeros_like(squares[:, 0], dtype=torch.bool)
    doubtful = torch.zeros_like(chosen[:, 0])
    for part in chunks(len(squares), len(subsets), BUDGET):
        values = torch.cat(list(_spreads(squares[part], subsets, spread)), 1)
        values = values.nan_to_num(nan=-torch.inf, posinf=torch.inf)
        least = values.amin(1, keepdim=True)
        equal = values <= least * (1 + SAME)
        first = equal.to(torch.uint8).argmax(1)
        chosen[part] = chosen[part].scatter(1, subsets[first], True)
        # Squares of tiny float64 differences vanish.
        floor = 1e-280 if dtype == torch.float64 else 0.0
        near = values <= (least * (1 + NEAR_TIE)).clamp_min(floor)
        exactly = values == least
        doubtful[part] = (near & ~exactly).any(1) | (near.sum(1) > 1) & (least[:, 0] <= floor)
    return chosen, doubtful


def _spreads(squares: Tensor, subsets: Tensor, spread: Spread) -> Iterator[Tensor]:
    size = subsets.shape[1]
    for part in chunks(len(subsets), len(squares) * size * size, BUDGET):
        yield spread(squares, subsets[part])
