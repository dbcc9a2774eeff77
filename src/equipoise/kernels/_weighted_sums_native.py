"""Weighted sums by the C kernels; receivers share the sums of messages that they have in common.

In a complete graph, n clients with n - 1 neighbors each add n (n - 1) models. If the weights are
equal, as when BALANCE accepts all messages, most of these additions repeat others.

The sum of a receiver depends on its own messages and weights only, bit by bit. Otherwise it would
change with the receivers that are aggregated beside it, and a client on its own would get another
one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import same_rows
from equipoise.kernels.native import Integers, SumLists, WeightedEdges

# Share of the bank from which on receivers probably share runs of rows, or its weights are a row of
# a matrix. A product with a matrix is bound by multiplications, and zeros cost as much as other
# weights.
DENSE_SHARE = 0.75
# Rows of a receiver from which on runs pay: finding equal runs takes time as well.
BLOCKED_ROWS = 20
# Sums of runs that are kept for other receivers, at most: 4 MiB in strips of 64 float32.
SHARED_BLOCKS = 1 << 14


def combine_natively(own: Tensor, bank: Tensor, edges: WeightedEdges, out: Tensor) -> bool:
    """``out``: sums of weighted rows of the bank and of own; whether all of it is finite."""
    matrices = [bank] if same_rows(own, bank) else [bank, own]
    counts = np.diff(edges.starts)
    if counts.max(initial=0) < BLOCKED_ROWS:
        return native.list_sums(matrices, _lists(edges, np.zeros_like(counts)), out)
    runs = _run_lengths(edges)
    if len(counts) < 3:
        return native.list_sums(matrices, _lists(edges, runs), out)
    is_dense = counts >= max(DENSE_SHARE * len(bank), BLOCKED_ROWS)
    if not is_dense.any():
        return native.list_sums(matrices, _lists(edges, runs), out)
    shared = is_dense & (runs > 0)
    others = ~shared
    dense = (is_dense & others & _have_ascending_senders(edges)).nonzero()[0]
    if len(dense) >= native.limits().min_dense_receivers:
        # If a sum is not finite, a row may have spoiled receivers that did not get it: 0 times
        # infinity is NaN. Then all are computed again, row by row, with the same order of rows.
        others[dense] = not native.dense_sums(matrices, _some(edges, dense), out, dense)
    finite = True
    if others.any():
        some = others.nonzero()[0]
        lists = _lists(_some(edges, some), runs[some])
        finite &= native.list_sums(matrices, lists, out, some)
    if shared.any():
        some = shared.nonzero()[0]
        lists = _shared_lists(_some(edges, some), runs[some], sum(map(len, matrices)))
        finite &= native.list_sums(matrices, lists, out, some)
    return finite


def _run_lengths(edges: WeightedEdges) -> Integers:
    """(n,) after how many rows of equal weight the sum of a receiver starts anew; 0 for never.

    A power of two near the root of the number of rows. Then runs are about as many as rows in each,
    and a receiver that differs from others in one row adds few of both. Runs are counted from the
    first row of the receiver, whose ids a client on its own need not know.
    """
    counts = np.diff(edges.starts)
    lengths = np.where(counts < 128, 8, np.where(counts < 512, 16, 32))
    changes = np.concatenate([[0], (np.diff(edges.weights) != 0).cumsum(), [0]])
    first = edges.starts[:-1]
    are_equal = changes[first] == changes[np.maximum(edges.starts[1:] - 1, first)]
    found: Integers = np.where(are_equal & (counts >= BLOCKED_ROWS), lengths, 0)
    return found


def _have_ascending_senders(edges: WeightedEdges) -> NDArray[np.bool_]:
    """(n,) whether no sender has two rows."""
    repeats = np.concatenate([[0], (np.diff(edges.senders) == 0).cumsum(), [0]])
    first = edges.starts[:-1]
    found: NDArray[np.bool_] = repeats[first] == repeats[np.maximum(edges.starts[1:] - 1, first)]
    return found


def _some(edges: WeightedEdges, receivers: Integers) -> WeightedEdges:
    """The edges of some receivers."""
    begins = edges.starts[receivers]
    starts, places = _ranges(begins, edges.starts[receivers + 1] - begins)
    return edges._replace(
        starts=starts,
        rows=edges.rows[places],
        weights=edges.weights[places],
        senders=edges.senders[places],
    )


def _lists(edges: WeightedEdges, runs: Integers) -> SumLists:
    """One list for each receiver."""
    targets = np.arange(len(edges.starts) - 1)
    return SumLists(edges.starts, edges.rows, edges.weights, runs, targets)


def _shared_lists(edges: WeightedEdges, runs: Integers, count: int) -> SumLists:
    """Lists of runs of rows, and of their sums. Equal runs of several receivers are added once.

    Where one of its rows is missing, a receiver has the runs that others have in front of it, and
    behind it those of all others that lack a row further in front.
    """
    n = len(runs)
    counts = np.diff(edges.starts)
    amounts = -(-counts // runs)
    first_run = np.concatenate([[0], amounts.cumsum()])
    owners = np.repeat(np.arange(n), amounts)
    begins = edges.starts[owners] + (np.arange(len(owners)) - first_run[owners]) * runs[owners]
    lengths = np.minimum(begins + runs[owners], edges.starts[owners + 1]) - begins
    examples, which, uses = _equal_runs(edges, begins, lengths, count)
    most_used = np.argsort(-uses, kind="stable")[:SHARED_BLOCKS]
    shared = np.zeros(len(uses), dtype=bool)
    shared[most_used] = uses[most_used] > 1
    # Sums of shared runs stay in inner rows of their own. All receivers use the same inner rows for
    # their other runs, one after the other.
    kept = int(shared.sum())
    alone = ~shared[which]
    own_place = kept + np.arange(len(begins)) - first_run[owners]
    inner = np.where(alone, own_place, (shared.cumsum() - 1)[which])
    # Lists are ranges of a pool: all edges, and then the sums of all runs. Shared runs come first,
    # then the runs of each receiver, and then its sum of runs.
    example = examples[shared]
    rows = len(edges.rows)
    list_begins = np.concatenate([begins[example], begins[alone], rows + first_run[:-1]])
    list_lengths = np.concatenate([lengths[example], lengths[alone], amounts])
    targets = np.concatenate([-1 - inner[example], -1 - inner[alone], np.arange(n)])
    turns = np.concatenate([np.full(kept, -1), 2 * owners[alone], 2 * np.arange(n) + 1])
    order = np.argsort(turns, kind="stable")
    starts, places = _ranges(list_begins[order], list_lengths[order])
    pool_rows = np.concatenate([edges.rows, count + inner])
    pool_weights = np.concatenate([edges.weights, np.ones(len(inner))])
    return SumLists(
        starts,
        pool_rows[places],
        pool_weights[places],
        np.zeros_like(order),
        targets[order],
        int(inner.max()) + 1,
    )


def _equal_runs(
    edges: WeightedEdges, begins: Integers, lengths: Integers, count: int
) -> tuple[Integers, Integers, Integers]:
    """An example of each distinct run, which one every run is, and how many there are of each."""
    # Equal runs have equal sums of random numbers, one for each row.
    salt = np.random.default_rng(0).integers(1 << 62, size=count)
    keys = np.add.reduceat(salt[edges.rows], begins)
    _, examples, which = np.unique(keys, return_index=True, return_inverse=True)
    # Different runs have the same sum once in 1e9 graphs, and runs may differ in their weight.
    example = examples[which]
    _, places = _ranges(np.minimum(begins[example], len(edges.rows) - lengths), lengths)
    same = (edges.rows == edges.rows[places]) & (edges.weights == edges.weights[places])
    differs = ~np.logical_and.reduceat(same, begins) | (lengths != lengths[example])
    which[differs] = len(examples) + np.arange(differs.sum())
    examples = np.concatenate([examples, differs.nonzero()[0]])
    return examples, which, np.bincount(which, minlength=len(examples))


def _ranges(begins: Integers, lengths: Integers) -> tuple[Integers, Integers]:
    """All places of some ranges, one after the other, and where each range starts among them."""
    starts = np.concatenate([[0], lengths.cumsum()])
    return starts, np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
