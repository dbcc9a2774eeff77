"""Weighted sums in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.kernels.native._calls import (
    HALVES,
    Floats,
    Integers,
    addresses,
    array,
    in_float32,
    is_streamed,
    over_columns,
    pointer,
    row_addresses,
)
from equipoise.kernels.native._library import function, list_edges

NUMPY_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


OWN_SENDER = np.iinfo(np.int64).max  # as in csrc/edges.h


class WeightedEdges(NamedTuple):
    """The rows of receiver i are ``rows[starts[i]:starts[i + 1]]``: by sender, and own at the end.

    This order is that of a client with an inbox of its own. The sender of own is `OWN_SENDER`.
    """

    starts: Integers
    rows: Integers
    weights: Floats
    senders: Integers
    smallest: float  # absolute weight; 1 without edges
    largest: float


class SumLists(NamedTuple):
    """Lists of weighted rows to add, one after the other.

    List j has ``rows[starts[j]:starts[j + 1]]``, which are added ``runs[j]`` at a time, and then
    the sums of these runs; all at once if that is 0. The sum of list j is the result of receiver
    ``targets[j]``. If that is negative, it is inner row ``-1 - targets[j]``: later lists can add it
    as row ``count + inner row``, for matrices of ``count`` rows in total. Without inner rows, there
    is one list for each receiver, in their order.
    """

    starts: Integers
    rows: Integers
    weights: Floats
    runs: Integers
    targets: Integers
    inner_rows: int = 0


def weighted_edges(
    slots: Tensor,
    weights: Tensor,
    senders: Tensor,
    bank_rows: int,
    own_weights: Tensor,
    own_row: int,
) -> WeightedEdges:
    """The rows of weight other than 0 of each receiver.

    Args:
        slots: (n, k) Rows of the bank, where the weight is not 0.
        weights: (n, k) Their weights, float64.
        senders: (n, k) Their senders.
        bank_rows: Number of rows of the bank.
        own_weights: (n,) Weights of own models, float64.
        own_row: Row of the first own model; the others follow.
    """
    n, k = slots.shape
    slots = slots.contiguous()
    weights = weights.contiguous()
    senders = senders.contiguous()
    own_weights = own_weights.contiguous()
    starts = np.empty(n + 1, dtype=np.int64)
    rows = np.empty(n * (k + 1), dtype=np.int64)
    found = np.empty(n * (k + 1))
    sent_by = np.empty_like(rows)
    sizes = np.ones(2)
    messages = (slots.data_ptr(), weights.data_ptr(), senders.data_ptr(), n, k, bank_rows)
    results = tuple(pointer(x) for x in (starts, rows, found, sent_by, sizes))
    end = list_edges(*messages, own_weights.data_ptr(), own_row, *results)
    smallest, largest = sizes.tolist() if end else (1.0, 1.0)
    return WeightedEdges(starts, rows[:end], found[:end], sent_by[:end], smallest, largest)


def list_sums(
    matrices: Sequence[Tensor], lists: SumLists, out: Tensor, receivers: Integers | None = None
) -> bool:
    """``out[receivers]``, or all of ``out``: sums of lists of weighted rows.

    Rows of the lists are those of all matrices. Returns whether all sums are finite.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out, receivers)
        # A list, not a generator: after a sum that is not finite, all blocks are still written.
        return all([list_sums(part, lists, sums) for part, sums in blocks])
    sources = row_addresses(matrices)
    used = np.zeros(len(sources) + lists.inner_rows, dtype=bool)
    used[lists.rows] = True
    used[len(sources) :] = True
    edges = lists.rows
    if not used.all():  # no other row is packed
        edges = (used.cumsum() - 1)[edges]
        sources = sources[used[: len(sources)]]
    weights = lists.weights.astype(NUMPY_DTYPES[out.dtype])
    results = row_addresses([out])
    results = results if receivers is None else results[receivers]
    inner = lists.targets
    if lists.inner_rows:
        results = np.where(inner < 0, 0, results[np.maximum(inner, 0)])
        inner = len(sources) - 1 - inner
    call = function("sums", out)
    rows = (pointer(sources), len(sources), len(sources) + lists.inner_rows)
    listed = tuple(pointer(x) for x in (lists.starts, edges, weights, lists.runs, inner))

    def run(start: int, stop: int) -> int:
        targets = (len(results), pointer(results), start, stop, is_streamed(out))
        return call(*rows, *listed, *targets)

    return over_columns(run, out.shape[1], len(edges) + len(results))


def dense_sums(
    matrices: Sequence[Tensor],
    edges: WeightedEdges,
    out: Tensor,
    receivers: Integers | None = None,
) -> bool:
    """``out[receivers]``, or all of ``out``: the sums of receivers, as a product with a matrix.

    ``edges`` are those of these receivers, each with at most one message of a sender. Returns
    whether all sums are finite. If not, a row may have spoiled receivers that have weight 0 for it:
    0 times infinity is NaN.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out, receivers)
        return all([dense_sums(part, edges, sums) for part, sums in blocks])
    sources = row_addresses(matrices)
    owners = np.repeat(np.arange(len(edges.starts) - 1), np.diff(edges.starts))
    is_own = edges.senders == OWN_SENDER
    received = ~is_own
    # Columns by sender, as in a list. A sender may have several rows, each for other receivers.
    keys = edges.senders[received] * len(sources) + edges.rows[received]
    columns, places = np.unique(keys, return_inverse=True)
    shape = (len(edges.starts) - 1, len(columns))
    matrix = np.zeros(shape, dtype=NUMPY_DTYPES[out.dtype])
    matrix[owners[received], places] = edges.weights[received]
    # Own models are added to the sums of the others.
    extra = np.zeros(shape[0], dtype=np.int64)
    extra[owners[is_own]] = sources[edges.rows[is_own]]
    extra_weights = np.zeros(shape[0], dtype=matrix.dtype)
    extra_weights[owners[is_own]] = edges.weights[is_own]
    used = sources[columns % len(sources)]
    results = row_addresses([out])
    results = results if receivers is None else results[receivers]
    call = function("dense_sums", out)
    arrays = (matrix, extra, extra_weights)
    sums = (pointer(used), len(used), *map(pointer, arrays), len(matrix), pointer(results))

    def run(start: int, stop: int) -> int:
        return call(*sums, start, stop, is_streamed(out))

    return over_columns(run, out.shape[1], matrix.size + len(results))


def interpolate(own: Tensor, other: Tensor, shares: Tensor, out: Tensor) -> bool:
    """``out``: ``shares * own + (1 - shares) * other``; shares (n,) are float64.

    ``out`` may be ``own`` or ``other`` itself. Returns whether all results are finite.
    """
    of_own = shares.to(out.dtype).contiguous()
    of_other = (1 - shares).to(out.dtype).contiguous()
    rows = [addresses([x]) for x in (own, other, out)]
    call = function("interpolate", out)
    sources = (*(x.data_ptr() for x in (*rows[:2], of_own, of_other)), *array(rows[2])[::-1])

    def run(start: int, stop: int) -> int:
        return call(*sources, start, stop, is_streamed(out))

    return over_columns(run, out.shape[1], len(out))
