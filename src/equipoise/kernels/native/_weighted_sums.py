"""Weighted sums in C."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.kernels.native._calls import (
    HALVES,
    addresses,
    array,
    compact,
    counted,
    in_float32,
    is_streamed,
    over_columns,
)
from equipoise.kernels.native._library import function, limits

# Share of the weights that are not 0 from which on they are a matrix. A product with a matrix is
# bound by multiplications, and zeros cost as much as other weights.
DENSE_SHARE = 0.75


def weighted_row_sums(
    matrices: Sequence[Tensor], receivers: Tensor, rows: Tensor, weight: Tensor, out: Tensor
) -> bool:
    """``out`` (n, d): sums of weighted rows, one per edge, sorted by receiver.

    Returns whether all of them are finite.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out)
        return all(
            [weighted_row_sums(part, receivers, rows, weight, sums) for part, sums in blocks]
        )
    used, (rows,) = compact(matrices, rows)
    weight = weight.to(out.dtype).contiguous()
    dense = len(rows) > DENSE_SHARE * len(out) * len(used)
    dense = dense and len(out) >= limits().min_dense_receivers
    if dense and _dense_sums(used, receivers, rows, weight, out):
        return True
    # Edge by edge, also if a dense sum is not finite: 0 times infinity is NaN, so that a row could
    # spoil receivers that did not get it.
    starts = torch.searchsorted(receivers.contiguous(), counted(len(out) + 1))
    call = function("sums", out)
    edges = (starts.data_ptr(), rows.data_ptr(), weight.data_ptr())

    def run(start: int, stop: int, results: Tensor) -> int:
        targets = (len(out), results.data_ptr())
        return call(*array(used), *edges, *targets, start, stop, is_streamed(out))

    return over_columns(run, out, None, len(rows) + len(out))


def _dense_sums(used: Tensor, receivers: Tensor, rows: Tensor, weight: Tensor, out: Tensor) -> bool:
    """The same as a product with a matrix of weights."""
    # Accumulated: a receiver may have the same row in two slots.
    matrix = out.new_zeros(len(out), len(used))
    matrix.index_put_((receivers, rows), weight, accumulate=True)
    call = function("dense_sums", out)

    def run(start: int, stop: int, results: Tensor) -> int:
        targets = results.data_ptr()
        return call(*array(used), *array(matrix), targets, start, stop, is_streamed(out))

    return over_columns(run, out, None, len(rows) + len(out))


def sums_but_one(
    matrices: Sequence[Tensor],
    rows: Tensor,
    left_out: Tensor,
    share: float,
    out: Tensor,
    receivers: Tensor,
) -> bool:
    """``out[receivers]``: ``share`` times the sum of ``rows`` without one of them.

    ``left_out`` are places in ``rows``, -1 for a receiver that gets all of them. Returns whether
    all sums are finite.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out, receivers)
        places = counted(len(receivers))
        found = [sums_but_one(part, rows, left_out, share, sums, places) for part, sums in blocks]
        return all(found)
    used = addresses(matrices)[rows]
    call = function("sums_but_one", out)
    # C goes through the rows from the last to the first, and adds them to a sum of those behind. So
    # receivers come in the descending order of the row that they lack.
    order = left_out.argsort(descending=True)
    left_out = left_out[order]
    receivers = receivers[order]

    def run(start: int, stop: int, results: Tensor) -> int:
        targets = results.data_ptr()
        return call(*array(used), share, *array(left_out), targets, start, stop, is_streamed(out))

    return over_columns(run, out, receivers, 2 * len(rows) + len(receivers))
