"""Weighted sums of messages along the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from equipoise.kernels.blocks import TILE, block, chunks, column_blocks, compute_dtype
from equipoise.kernels.size import is_tame

if TYPE_CHECKING:
    from equipoise.inbox import Inbox

WIDTH = 8192
DENSE = 8  # a matrix product does this many products in the time of one weighted addition


def combine(own: Tensor, own_weights: Tensor, inbox: Inbox, weights: Tensor) -> Tensor:
    """(n, d) ``own_weights_i * own_i + sum_s weights_is * message_is``; what has weight 0 is never touched.

    Weights are (n,) and (n, k) in float64, 0 where no message is present.
    """
    receivers, columns = (weights != 0).nonzero(as_tuple=True)
    rows, weight = inbox.slots[receivers, columns], weights[receivers, columns]
    # Huge, tiny and non-finite models are added one by one: in a product they would spoil others or lose their digits.
    tame = is_tame(inbox.bank_norms, inbox.bank)[rows]
    result = _sum_of_rows(inbox.bank, len(own), receivers[tame], rows[tame], weight[tame])
    _add_rows(result, receivers[~tame], inbox.bank, rows[~tame], weight[~tame])
    if own_weights.all() and own.dtype == compute_dtype(own):
        return result.addcmul_(own, own_weights.to(own.dtype)[:, None])
    mine = own_weights.nonzero().flatten()
    _add_rows(result, mine, own, mine, own_weights[mine])
    return result


def _sum_of_rows(bank: Tensor, n: int, receivers: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """(n, d) sums of weighted rows of the bank, one per edge (receiver, row); edges are sorted by receiver."""
    dtype = compute_dtype(bank)
    if n * len(bank) <= DENSE * len(rows):
        used, place = rows.unique(return_inverse=True)
        matrix = torch.zeros(n, len(used), dtype=torch.float64, device=bank.device)
        matrix = matrix.index_put_((receivers, place), weight, accumulate=True).to(dtype)
        everything = len(used) == len(bank)
        return _by_blocks(bank, n, lambda part: matrix @ (part if everything else part[used]))
    starts = torch.searchsorted(receivers, torch.arange(n, device=bank.device))
    weight = weight.to(dtype)
    if bank.dtype == dtype and bank.is_contiguous():
        return embedding_bag(rows, bank, starts, mode="sum", per_sample_weights=weight)
    return _by_blocks(
        bank, n, lambda part: embedding_bag(rows, part.contiguous(), starts, mode="sum", per_sample_weights=weight)
    )


def _by_blocks(bank: Tensor, n: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    result = bank.new_empty(n, bank.shape[1])
    for columns in column_blocks(bank.shape[1], WIDTH):
        result[:, columns] = compute(block(bank, columns))
    return result


def _add_rows(result: Tensor, receivers: Tensor, source: Tensor, rows: Tensor, weight: Tensor) -> None:
    """``result[receivers] += weight * source[rows]`` in float64; a receiver may occur several times."""
    width = min(WIDTH, max(result.shape[1], 1))
    for part in chunks(len(receivers), width, TILE // 2):
        targets, place = receivers[part].unique(return_inverse=True)
        for columns in column_blocks(result.shape[1], width):
            terms = source[rows[part], columns].double() * weight[part, None]
            sums = result[targets, columns].double().index_add_(0, place, terms)
            result[targets, columns] = sums.to(result.dtype)
