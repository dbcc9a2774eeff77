"""Norms and distances, or scalar products, in one pass over the models, by the native kernels.

Whether a message is finite is not known before the pass, so everything that was sent is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels.blocks import same_rows
from equipoise.kernels.size import mended_norms

if TYPE_CHECKING:
    from equipoise.inbox import Inbox


def along_edges(own: Tensor, inbox: Inbox, *, differ: bool) -> tuple[Tensor, Tensor]:
    """(n, k) squared distances, or scalar products, of own and messages, 0 where there is none, and norms of own (n,).

    The inbox learns the norms of its bank.
    """
    receivers, columns, rows = inbox.sent.edges
    if same_rows(own, inbox.bank):
        (left, right), inverse = inbox.sent.pairs
        measured, squares = native.measure([own], left, right, differ=differ)
        measured, sizes = measured[inverse], _learn_norms(inbox, squares)
    else:
        measured, squares = native.measure([own, inbox.bank], receivers, rows + len(own), differ=differ)
        sizes = mended_norms(squares[: len(own)].sqrt(), own)
        if own.dtype not in native.HALVES or len(own) <= len(inbox.bank):  # else summed in other blocks than alone
            _learn_norms(inbox, squares[len(own) :])
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device="cpu")
    return result.index_put_((receivers, columns), measured), sizes


def between_rows(inbox: Inbox, left: Tensor, right: Tensor) -> Tensor:
    """(p,) squared distances between rows of the bank, whose norms the inbox learns unless it knows them."""
    known = inbox.knows_norms
    squares, sizes = native.measure([inbox.bank], left, right, differ=True, all_rows=not known)
    if not known:
        _learn_norms(inbox, sizes)
    return squares


def unordered(left: Tensor, right: Tensor, m: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The different pairs of rows below m, in whatever direction, sorted, and which of them each given pair is."""
    keys, inverse = (torch.minimum(left, right) * m + torch.maximum(left, right)).unique(return_inverse=True)
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


def _learn_norms(inbox: Inbox, squares: Tensor) -> Tensor:
    return inbox.learn_norms(mended_norms(squares.sqrt(), inbox.bank))
