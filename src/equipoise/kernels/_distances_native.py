"""Norms and distances, or scalar products, in one pass over the models, by the native kernels.

Whether a message is finite is not known before the pass, so everything that was sent is measured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import same_rows
from equipoise.kernels._norms import mended_norms
from equipoise.kernels._received import Received


def along_edges(own: Tensor, inbox: Received, *, differ: bool) -> tuple[Tensor, Tensor]:
    """(n, k) squared distances, or scalar products, of own and messages, 0 where there is none, and norms of own (n,).

    The inbox learns the norms of its bank.
    """
    receivers, columns, rows = inbox._sent.edges
    if same_rows(own, inbox.bank):
        (left, right), inverse = inbox._sent.pairs
        measured, squares = native.measure([own], left, right, differ=differ)
        measured, sizes = measured[inverse], _learn_norms(inbox, squares)
    else:
        measured, squares = native.measure(
            [own, inbox.bank], receivers, rows + len(own), differ=differ
        )
        sizes = mended_norms(squares[: len(own)].sqrt(), own)
        # With fewer rows in the bank, halves are summed in other blocks than alone.
        if own.dtype not in native.HALVES or len(own) <= len(inbox.bank):
            _learn_norms(inbox, squares[len(own) :])
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device="cpu")
    return result.index_put_((receivers, columns), measured), sizes


def between_rows(inbox: Received, left: Tensor, right: Tensor) -> Tensor:
    """(p,) squared distances between rows of the bank, whose norms the inbox learns unless it knows them."""
    known = inbox._knows_norms
    squares, sizes = native.measure([inbox.bank], left, right, differ=True, all_rows=not known)
    if not known:
        _learn_norms(inbox, sizes)
    return squares


def _learn_norms(inbox: Received, squares: Tensor) -> Tensor:
    return inbox._learn_norms(mended_norms(squares.sqrt(), inbox.bank))
