"""Weighted sums by the C kernels; receivers of the same messages except one share their sums.

In a complete graph, n clients with n - 1 neighbors each add n (n - 1) models. If the weights are
equal, as when BALANCE accepts all messages, prefix and suffix sums need 3 n additions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import same_rows

# Additions that sharing must save for each model that is read or written: finding the
# receivers that can share takes time as well.
WORTH = 8
# Groups of receivers with equal weights that are considered, the largest first. An attacker who
# causes many groups must not make this slow.
GROUPS = 4

WeightedEdges = tuple[Tensor, Tensor, Tensor]  # receivers, rows and weights


def combine_natively(
    own: Tensor, own_weights: Tensor, bank: Tensor, edges: WeightedEdges, out: Tensor
) -> bool:
    """``out``: sums of own and of weighted rows of the bank, one per edge, sorted by receiver.

    Returns whether all of it is finite.
    """
    matrices, edges = _with_own(own, own_weights, bank, edges)
    if len(edges[0]) <= WORTH * (len(out) + len(bank)):
        return native.weighted_row_sums(matrices, *edges, out)
    finite = True
    # Receivers of which the sums are still to be computed.
    left = torch.ones(len(out), dtype=torch.bool, device="cpu")
    for receivers, rows, left_out, share in _alike(len(out), sum(map(len, matrices)), edges):
        finite &= native.sums_but_one(matrices, rows, left_out, share, out, receivers)
        left[receivers] = False
    if left.all():
        return native.weighted_row_sums(matrices, *edges, out) and finite
    if left.any():
        some = left[edges[0]]
        places = (left.cumsum(0) - 1)[edges[0][some]]
        rest = out.new_empty(int(left.sum()), out.shape[1])
        finite &= native.weighted_row_sums(matrices, places, edges[1][some], edges[2][some], rest)
        out[left] = rest
    return finite


def _with_own(
    own: Tensor, own_weights: Tensor, bank: Tensor, edges: WeightedEdges
) -> tuple[list[Tensor], WeightedEdges]:
    """The matrices to add rows of, and the edges, with one for each own model with a weight."""
    mine = own_weights.nonzero().flatten()
    if not len(mine):
        return [bank], edges
    same = same_rows(own, bank)
    ids = mine if same else mine + len(bank)
    receivers, order = torch.cat([edges[0], mine]).sort(stable=True)
    rows = torch.cat([edges[1], ids])[order]
    weight = torch.cat([edges[2], own_weights[mine]])[order]
    return ([bank] if same else [bank, own]), (receivers, rows, weight)


def _alike(n: int, m: int, edges: WeightedEdges) -> Iterator[tuple[Tensor, Tensor, Tensor, float]]:
    """Receivers with equal weights: their ids, rows, the row that each lacks, and the weight."""
    receivers, rows, weight = edges
    infinite = torch.full((n,), torch.inf, dtype=torch.float64, device="cpu")
    # The weights of a receiver are equal if their minimum is their maximum.
    low = infinite.scatter_reduce(0, receivers, weight, "amin")
    high = (-infinite).scatter_reduce(0, receivers, weight, "amax")
    shares, sizes = low[low == high].unique(return_counts=True)
    for share in shares[sizes.argsort(descending=True)][:GROUPS].tolist():
        group = (low == share) & (high == share)
        theirs = group[receivers]
        found = _but_one(group.cumsum(0)[receivers[theirs]] - 1, rows[theirs], int(group.sum()), m)
        if found is not None:
            yield group.nonzero().flatten(), *found, share


def _but_one(receivers: Tensor, rows: Tensor, n: int, m: int) -> tuple[Tensor, Tensor] | None:
    """The rows of all receivers, and the place of the one that each lacks, -1 for none.

    None if a receiver lacks several, gets one twice, or sharing does not pay.
    """
    used = torch.zeros(m, dtype=torch.bool, device="cpu").index_fill_(0, rows, True)
    count = int(used.sum())
    if n <= WORTH or int(torch.bincount(receivers, minlength=n).min()) < count - 1:
        return None
    times = torch.zeros(n, count, dtype=torch.int64, device="cpu")
    times.index_put_(
        (receivers, (used.cumsum(0) - 1)[rows]), torch.tensor(1, device="cpu"), accumulate=True
    )
    if int(times.max()) > 1 or int(times.sum(1).min()) < count - 1:
        return None
    return used.nonzero().flatten(), times.argmin(1).where(times.sum(1) < count, -1)
