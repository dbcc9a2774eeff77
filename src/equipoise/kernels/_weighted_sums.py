"""Weighted sums of messages along the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from equipoise.kernels import native
from equipoise.kernels._blocks import (
    TILE,
    block,
    chunks,
    column_blocks,
    compute_dtype,
    new_output,
    same_rows,
)
from equipoise.kernels._norms import all_finite
from equipoise.kernels._received_messages import ReceivedMessages
from equipoise.kernels._weighted_sums_native import combine_natively

# Weights in (1e-25, 1e25) are exact enough in float32, whose normal numbers are from 1.2e-38 to
# 3.4e38, and so are their products with values of usual size. Larger and smaller ones, as of huge
# or tiny models that are normalized, are multiplied in float64. Otherwise a weight would vanish, or
# become infinite, and with it the message of a client that did nothing wrong.
TINY_WEIGHT = 1e-25

# Elements of the bank that are read again and again while they are in cache: 4 MiB of float32.
BANK = 1 << 20

# Products that a matrix product does in the time of one weighted addition along an edge.
PRODUCTS_PER_SUM = 8


def combine(
    own: Tensor,
    own_weights: Tensor,
    inbox: ReceivedMessages,
    weights: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """(n, d) ``own_weights_i * own_i + sum_s weights_is * message_is``.

    Weights are (n,) and (n, k) in float64, 0 where no message is present. The result is written to
    ``out``, if given. A sum of finite terms beyond the range of the dtype becomes its largest
    finite number. Messages of weight 0 are never read, so that they cannot spoil a sum.
    """
    result, finite = _combine(own, own_weights, inbox, weights, out)
    # Float32 sums may not fit half precision.
    if finite is None or result.dtype != compute_dtype(result):
        finite = bool(result.sum(dtype=compute_dtype(result)).isfinite())
    if not finite:
        _mend_overflows(result, own, own_weights, inbox, weights)
    return result


def combine_if_finite(
    own: Tensor,
    own_weights: Tensor,
    inbox: ReceivedMessages,
    weights: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor | None:
    """The same, or None if any of it is not finite."""
    result, finite = _combine(own, own_weights, inbox, weights, out)
    finite = all_finite(result) if finite is None else finite
    return result if finite else None


def _combine(
    own: Tensor, own_weights: Tensor, inbox: ReceivedMessages, weights: Tensor, out: Tensor | None
) -> tuple[Tensor, bool | None]:
    """The combination, and whether it is finite; None if that is unknown."""
    result = new_output(own, *own.shape) if out is None else out
    is_native = native.serves(own, inbox.bank, result)
    if is_native and not inbox.keep_nonfinite:
        edges = _native_edges(own, own_weights, inbox, weights)
        if edges.smallest > TINY_WEIGHT and edges.largest < 1 / TINY_WEIGHT:
            return result, combine_natively(own, inbox.bank, edges, result)
    plain = _may_be_multiplied(inbox, weights)
    rest = own_weights
    if is_native:
        added = own_weights.where(_is_plain(own_weights), 0)
        edges = _native_edges(own, added, inbox, weights.where(plain, 0))
        combine_natively(own, inbox.bank, edges, result)
        rest = own_weights.where(added == 0, 0)
    else:
        _sum_of_rows(inbox.bank, *_weighted_edges(inbox, weights.where(plain, 0)), result)
    _add_rows(result, inbox.bank, *_weighted_edges(inbox, weights.where(~plain, 0)))
    mine = rest.nonzero().flatten()
    if not is_native and len(mine) == len(own) and own.dtype == compute_dtype(own):
        return result.addcmul_(own, own_weights.to(own.dtype)[:, None]), None
    _add_own(result, own, own_weights, mine)
    return result, None


def _may_be_multiplied(inbox: ReceivedMessages, weights: Tensor) -> Tensor:
    """The messages that a matrix product may contain; others are added one by one.

    Rows that are not finite would spoil others in a product, and weights of huge and tiny models do
    not fit a float32.
    """
    plain = _is_plain(weights) | (weights == 0)
    if inbox.keep_nonfinite and len(inbox.bank):
        plain &= inbox.finite[inbox.slots.where(weights != 0, 0)] | (weights == 0)
    return plain


def _add_own(result: Tensor, own: Tensor, own_weights: Tensor, receivers: Tensor) -> None:
    weight = own_weights[receivers, None]
    # At once, not receiver by receiver: each sum has one term.
    for columns in chunks(result.shape[1], len(receivers), TILE // 2):
        terms = own[receivers, columns].double() * weight
        result[receivers, columns] = terms.add_(result[receivers, columns]).to(result.dtype)


def _native_edges(
    own: Tensor, own_weights: Tensor, inbox: ReceivedMessages, weights: Tensor
) -> native.WeightedEdges:
    count = len(inbox.bank)
    own_row = 0 if same_rows(own, inbox.bank) else count
    return native.weighted_edges(inbox.slots, weights, inbox.senders, count, own_weights, own_row)


def _weighted_edges(inbox: ReceivedMessages, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(e,) receiver, row and weight of the edges of weight other than 0, sorted by receiver."""
    chosen = weights != 0
    # If all messages have a weight, the inbox already knows their edges.
    receivers, columns = (
        inbox._sent.edges[:2] if chosen.equal(inbox.mask) else chosen.nonzero(as_tuple=True)
    )
    return receivers, inbox.slots[receivers, columns], weights[receivers, columns]


def _mend_overflows(
    result: Tensor, own: Tensor, own_weights: Tensor, inbox: ReceivedMessages, weights: Tensor
) -> None:
    """Sum the coordinates again that are not finite, and saturate those whose terms are.

    Rounding alone can push the mean of the largest finite numbers beyond them. A quarter of each
    term leaves room for that, also in float64, and scaling by it is exact.
    """
    limit = torch.finfo(result.dtype).max / 4
    # A sum over a row is finite only if all of its terms are. Few receivers are mended.
    lost = ~result.sum(1, dtype=compute_dtype(result)).isfinite()
    for receiver in lost.nonzero().flatten().tolist():
        chosen = weights[receiver].nonzero().flatten()
        rows = inbox.slots[receiver, chosen]
        weight = weights[receiver, chosen, None]
        own_weight = own_weights[receiver]
        for columns in chunks(result.shape[1], len(rows) + 1, TILE // 2):
            total = (inbox.bank[rows, columns].double() / 4 * weight).sum(0)
            if own_weight != 0:
                total += own[receiver, columns].double() / 4 * own_weight
            # A term that is not finite makes the total infinite or NaN, and it stays so.
            total = total.clamp(-limit, limit).where(total.isfinite(), total) * 4
            found = result[receiver, columns]
            result[receiver, columns] = found.where(found.isfinite(), total.to(result.dtype))


def _is_plain(weight: Tensor) -> Tensor:
    return (weight.abs() > TINY_WEIGHT) & (weight.abs() < 1 / TINY_WEIGHT)


def _sum_of_rows(
    bank: Tensor, receivers: Tensor, rows: Tensor, weight: Tensor, result: Tensor
) -> None:
    """``result`` (n, d): sums of weighted rows of the bank, one per edge, sorted by receiver."""
    n = len(result)
    sums = weighted_sums(n, len(bank), receivers, rows, weight, compute_dtype(bank))
    # Fewer columns would not hide the overhead of a call.
    minimum = 2048 if _is_dense(n, len(bank), len(rows)) else 256
    for columns in column_blocks(bank.shape[1], max(minimum, BANK // max(1, len(bank)))):
        result[:, columns] = sums(block(bank, columns))


def weighted_sums(
    n: int, m: int, receivers: Tensor, rows: Tensor, weight: Tensor, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """A function from a block (m, width) to weighted sums (n, width), with one term per edge.

    Edges (receiver, row) are sorted by receiver. Rows without an edge are never read.
    """
    if _is_dense(n, m, len(rows)):
        # Only rows with an edge are multiplied: 0 times NaN is NaN.
        used, place = rows.unique(return_inverse=True)
        matrix = torch.zeros(n, len(used), dtype=torch.float64, device=rows.device)
        matrix = matrix.index_put_((receivers, place), weight, accumulate=True).to(dtype)
        everything = len(used) == m
        return lambda part: matrix @ (part if everything else part[used])
    starts = torch.searchsorted(receivers, torch.arange(n, device=rows.device))
    weight = weight.to(dtype)
    return lambda part: embedding_bag(
        rows, part.contiguous(), starts, mode="sum", per_sample_weights=weight
    )


def _is_dense(n: int, m: int, edges: int) -> bool:
    return n * m <= PRODUCTS_PER_SUM * edges


def _add_rows(
    result: Tensor, source: Tensor, receivers: Tensor, rows: Tensor, weight: Tensor
) -> None:
    """``result[receivers] += weight * source[rows]`` in float64, sorted by receiver."""
    # One receiver at a time, so that its sum is rounded once, whatever the others add.
    for receiver in receivers.unique().tolist():
        theirs = receivers == receiver
        for columns in chunks(result.shape[1], int(theirs.sum()), TILE // 2):
            terms = source[rows[theirs], columns].double() * weight[theirs, None]
            total = terms.sum(0).add_(result[receiver, columns])
            result[receiver, columns] = total.to(result.dtype)
