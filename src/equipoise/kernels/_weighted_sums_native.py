"""Weighted sums by the C kernels; receivers share the sums of messages that they have in common.

In a complete graph, n clients with n - 1 neighbors each add n (n - 1) models. If the weights are
equal, as when BALANCE accepts all messages, most of these additions repeat others.

The sum of a receiver depends on its own rows and weights only, bit by bit. Otherwise it would
change with the receivers that are aggregated beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import same_rows
from equipoise.kernels.native import Integers, SumLists, WeightedEdges

# Share of the bank from which on a receiver's rows are added block by block, or its weights are a
# row of a matrix. A product with a matrix is bound by multiplications, and zeros cost as much as
# other weights.
DENSE_SHARE = 0.75
# Rows of a receiver from which on blocks pay: finding equal blocks takes time as well.
BLOCKED_ROWS = 20
# Sums of blocks that are kept for other receivers, at most: 4 MiB in strips of 64 float32.
SHARED_BLOCKS = 1 << 14


def combine_natively(own: Tensor, bank: Tensor, edges: WeightedEdges, out: Tensor) -> bool:
    """``out``: sums of weighted rows of the bank and of own; whether all of it is finite."""
    matrices = [bank] if same_rows(own, bank) else [bank, own]
    if len(out) < 3 or len(edges.rows) < BLOCKED_ROWS:
        return native.list_sums(matrices, _lists(edges), out)
    is_dense = _from_bank(edges, len(bank)) >= max(DENSE_SHARE * len(bank), BLOCKED_ROWS)
    if not is_dense.any():
        return native.list_sums(matrices, _lists(edges), out)
    blocked = is_dense & _have_equal_weights(edges)
    others = ~blocked
    dense = (is_dense & others).nonzero()[0]
    if len(dense) >= native.limits().min_dense_receivers:
        # If a sum is not finite, a row may have spoiled receivers that did not get it: 0 times
        # infinity is NaN. Then all are computed again, row by row, with the same order of rows.
        others[dense] = not native.dense_sums(matrices, _some(edges, dense), out, dense)
    finite = True
    if others.any():
        some = others.nonzero()[0]
        finite &= native.list_sums(matrices, _lists(_some(edges, some)), out, some)
    if blocked.any():
        some = blocked.nonzero()[0]
        lists = _block_lists(_some(edges, some), len(bank), sum(map(len, matrices)))
        finite &= native.list_sums(matrices, lists, out, some)
    return finite


def _from_bank(edges: WeightedEdges, bank_rows: int) -> Integers:
    """(n,) the number of rows of the bank that each receiver adds; own models come after these."""
    before = np.concatenate([[0], (edges.rows < bank_rows).cumsum()])
    return np.diff(before[edges.starts])


def _have_equal_weights(edges: WeightedEdges) -> NDArray[np.bool_]:
    """(n,) whether all rows of a receiver have the same weight."""
    changes = np.concatenate([[0], (np.diff(edges.weights) != 0).cumsum(), [0]])
    first = edges.starts[:-1]
    last = np.maximum(edges.starts[1:] - 1, first)
    equal: NDArray[np.bool_] = changes[first] == changes[last]
    return equal


def _some(edges: WeightedEdges, receivers: Integers) -> WeightedEdges:
    """The edges of some receivers."""
    begins = edges.starts[receivers]
    starts, places = _ranges(begins, edges.starts[receivers + 1] - begins)
    return edges._replace(starts=starts, rows=edges.rows[places], weights=edges.weights[places])


def _lists(edges: WeightedEdges) -> SumLists:
    """One list for each receiver."""
    return SumLists(edges.starts, edges.rows, edges.weights, np.arange(len(edges.starts) - 1))


def _block_lists(edges: WeightedEdges, bank_rows: int, count: int) -> SumLists:
    """Lists of blocks: ranges of rows. Equal blocks of several receivers are added once.

    Two blocks are equal if they have the same rows and the same weight.
    """
    # A power of two near the root of the number of rows: then blocks are about as many as rows in
    # each, and a receiver that differs from others in one row adds few of both.
    size = 8 if bank_rows < 128 else 16 if bank_rows < 512 else 32
    n = len(edges.starts) - 1
    receivers = np.repeat(np.arange(n), np.diff(edges.starts))
    blocks = edges.rows // size
    # A piece is what a receiver has of a block.
    begins = _first_places(receivers * (count // size + 1) + blocks)
    lengths = np.diff(np.append(begins, len(blocks)))
    owners = receivers[begins]
    first_piece = np.searchsorted(owners, np.arange(n + 1))
    # One integer for the weight, the block and the rows in it, which are bits.
    weight = np.unique(edges.weights[begins], return_inverse=True)[1]
    rows = np.add.reduceat(np.left_shift(1, edges.rows % size), begins)
    keys = (weight * (count // size + 1) + blocks[begins]) << size | rows
    _, examples, which, uses = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    most_used = np.argsort(-uses, kind="stable")[:SHARED_BLOCKS]
    shared = np.zeros(len(uses), dtype=bool)
    shared[most_used] = uses[most_used] > 1
    # Sums of shared pieces stay in inner rows of their own. All receivers use the same inner rows
    # for their other pieces, one after the other.
    kept = int(shared.sum())
    alone = ~shared[which]
    own_place = kept + np.arange(len(begins)) - first_piece[owners]
    inner = np.where(alone, own_place, (shared.cumsum() - 1)[which])
    # Lists are ranges of a pool: all edges, and then the sums of all pieces. Shared pieces come
    # first, then the pieces of each receiver, and then its sum of pieces.
    example = examples[shared]
    list_begins = np.concatenate([begins[example], begins[alone], len(blocks) + first_piece[:-1]])
    list_lengths = np.concatenate([lengths[example], lengths[alone], np.diff(first_piece)])
    targets = np.concatenate([-1 - inner[example], -1 - inner[alone], np.arange(n)])
    turns = np.concatenate([np.full(kept, -1), 2 * owners[alone], 2 * np.arange(n) + 1])
    order = np.argsort(turns, kind="stable")
    starts, places = _ranges(list_begins[order], list_lengths[order])
    pool_rows = np.concatenate([edges.rows, count + inner])
    pool_weights = np.concatenate([edges.weights, np.ones(len(inner))])
    inner_rows = int(inner.max()) + 1
    return SumLists(starts, pool_rows[places], pool_weights[places], targets[order], inner_rows)


def _first_places(keys: Integers) -> Integers:
    """The places of the first of each run of equal keys."""
    return np.concatenate([[0], np.diff(keys).nonzero()[0] + 1])


def _ranges(begins: Integers, lengths: Integers) -> tuple[Integers, Integers]:
    """All places of some ranges, one after the other, and where each range starts among them."""
    starts = np.concatenate([[0], lengths.cumsum()])
    return starts, np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
