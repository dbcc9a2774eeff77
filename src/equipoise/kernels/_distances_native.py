"""Norms and distances, or scalar products, in one pass over the models, by the C kernels.

Which messages are finite is not known before the pass, so all messages are measured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import are_first_rows
from equipoise.kernels._norms import are_tame, is_tame, mended_norms
from equipoise.kernels._received_messages import ReceivedMessages


def along_edges(own: Tensor, inbox: ReceivedMessages, *, differ: bool) -> tuple[Tensor, Tensor]:
    """(e,) squared distances, or scalar products, of own and messages, and norms of own (n,).

    The edges are those of all messages, finite or not. The norms of the bank are cached in the
    inbox.
    """
    receivers, _, rows = inbox._sent.edges
    are_rows = are_first_rows(own, inbox.bank)
    known = inbox._squares if differ and are_rows else None
    if known is not None:
        measured = known[receivers, rows]
        sizes = inbox.bank_norms[: len(own)]
    elif are_rows:
        # An edge and its reverse have the same measure, which is computed once.
        (left, right), inverse = inbox._sent.pairs
        measured, squares = native.measure([inbox.bank], left, right, differ=differ)
        measured = measured[inverse]
        sizes = _norms_of_both(own, inbox, squares)
    else:
        matrices = [own, inbox.bank]
        measured, squares = native.measure(matrices, receivers, rows + len(own), differ=differ)
        sizes = _norms_of_both(own, inbox, squares)
    return measured, sizes


def pivot_distances(
    own: Tensor, inbox: ReceivedMessages, pivots: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances (pivots, n) to own models and (pivots, m) to messages, and norms of own (n,).

    Pivots are some of the own models. Distances that the kernel cannot guarantee are NaN. The norms
    of the bank are cached in the inbox.
    """
    are_rows = are_first_rows(own, inbox.bank)
    matrices = [inbox.bank] if are_rows else [own, inbox.bank]
    count = sum(map(len, matrices))
    chosen = torch.linspace(0, len(own) - 1, pivots, dtype=torch.int64, device="cpu")
    right = torch.arange(count, device="cpu").repeat(pivots)
    measured, squares = native.measure(
        matrices, chosen.repeat_interleave(count), right, differ=True
    )
    sizes = _norms_of_both(own, inbox, squares)
    apart = measured.sqrt_().view(pivots, count)
    tame = is_tame(inbox.bank_norms, own)
    if not are_rows:
        tame = torch.cat([is_tame(sizes, own), tame])
    apart = apart.where(is_tame(apart, own) & tame & tame[chosen, None], torch.nan)
    # That of a finite pivot to itself is 0.
    apart[torch.arange(pivots, device="cpu"), chosen] = sizes.new_zeros(pivots).where(
        tame[chosen], torch.nan
    )
    return apart[:, : len(own)], apart[:, count - len(inbox.bank) :], sizes


def _norms_of_both(own: Tensor, inbox: ReceivedMessages, squares: Tensor) -> Tensor:
    """(n,) norms of own; those of the bank, of which own may be rows, are cached."""
    if are_first_rows(own, inbox.bank):
        return _learn_norms(inbox, squares)[: len(own)]
    roots = squares.sqrt()
    sizes = roots[: len(own)]
    lengths = roots[len(own) :]
    if not are_tame(roots, own):
        sizes = mended_norms(sizes, own)
        lengths = mended_norms(lengths, inbox.bank)
    # Half precision is summed in blocks that depend on the longest matrix. Norms from other blocks
    # than those of the bank alone would make results depend on the order of calls.
    if own.dtype not in native.HALVES or len(own) <= len(inbox.bank):
        inbox._learn_norms(lengths)
    return sizes


def between_rows(inbox: ReceivedMessages, left: Tensor, right: Tensor) -> Tensor:
    """(p,) squared distances between rows of the bank, whose norms are cached in the inbox."""
    known = inbox._knows_norms
    squares, sizes = native.measure([inbox.bank], left, right, differ=True, all_rows=not known)
    if not known:
        _learn_norms(inbox, sizes)
    return squares


def _learn_norms(inbox: ReceivedMessages, squares: Tensor) -> Tensor:
    return inbox._learn_norms(mended_norms(squares.sqrt(), inbox.bank))
