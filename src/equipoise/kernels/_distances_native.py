"""Norms and distances, or scalar products, in one pass over the models, by the C kernels.

Which messages are finite is not known before the pass, so all messages are measured.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import are_first_rows
from equipoise.kernels._norms import mended_norms
from equipoise.kernels._received_messages import ReceivedMessages


def along_edges(own: Tensor, inbox: ReceivedMessages, *, differ: bool) -> tuple[Tensor, Tensor]:
    """(e,) squared distances, or scalar products, of own and messages, and norms of own (n,).

    The edges are those of all messages that are present. The norms of the bank are cached in the
    inbox.
    """
    receivers, columns, rows = inbox._sent.edges
    # If own are rows of the bank, an edge and its reverse have the same measure, which is computed
    # once.
    if are_first_rows(own, inbox.bank):
        (left, right), inverse = inbox._sent.pairs
        measured, squares = native.measure([inbox.bank], left, right, differ=differ)
        measured = measured[inverse]
        sizes = _learn_norms(inbox, squares)[: len(own)]
    else:
        matrices = [own, inbox.bank]
        measured, squares = native.measure(matrices, receivers, rows + len(own), differ=differ)
        sizes = mended_norms(squares[: len(own)].sqrt(), own)
        # Half precision is summed in blocks that depend on the longest matrix. Norms from other
        # blocks than those of the bank alone would make results depend on the order of calls.
        if own.dtype not in native.HALVES or len(own) <= len(inbox.bank):
            _learn_norms(inbox, squares[len(own) :])
    if inbox._arrived is not inbox._sent:
        measured = measured[inbox.present[receivers, columns]]
    return measured, sizes


def between_rows(inbox: ReceivedMessages, left: Tensor, right: Tensor) -> Tensor:
    """(p,) squared distances between rows of the bank, whose norms are cached in the inbox."""
    known = inbox._knows_norms
    squares, sizes = native.measure([inbox.bank], left, right, differ=True, all_rows=not known)
    if not known:
        _learn_norms(inbox, sizes)
    return squares


def _learn_norms(inbox: ReceivedMessages, squares: Tensor) -> Tensor:
    return inbox._learn_norms(mended_norms(squares.sqrt(), inbox.bank))
