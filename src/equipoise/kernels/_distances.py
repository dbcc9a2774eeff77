"""Distances and cosines between own models and messages, exact enough to base decisions on.

In a dense graph one matrix product serves all clients; in a sparse graph, work goes along the
edges. Values that the fast paths cannot guarantee are computed again in float64: a malicious client
can make this slower, never wrong.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import are_first_rows
from equipoise.kernels._distances_dense import products, squared_distances
from equipoise.kernels._distances_native import along_edges, pivot_distances
from equipoise.kernels._distances_sparse import (
    SHORT,
    edge_distances,
    edge_products,
    pair_distances,
)
from equipoise.kernels._exact import (
    careful_cosines,
    careful_distances,
    careful_norms,
    careful_squares,
)
from equipoise.kernels._norms import are_tame, is_tame, norms
from equipoise.kernels._received_messages import ReceivedMessages

# Differences (edges times parameters) up to which float64 costs no more in torch than the overhead
# of a call: then everything is computed in float64 at once.
SMALL = 1 << 16

# Products that a matrix product does in the time of one difference along an edge. The matrix
# product computes all pairs, so it pays if at least one pair in so many is an edge.
DENSE = 16

# Own models whose distances to all models decide about most messages. With one pivot, a client that
# diverged could make its distances useless, and cost time.
PIVOTS = 3
# Edges for each model from which on pivots pay.
PIVOTS_WORTH = 12

# Fast squared distances hold 1e-6, so distances and norms hold 5e-7 each, and a comparison of the
# two 1e-6. Closer to a threshold than ten times that, the decision is made in float64. Otherwise
# an attacker could place a message where rounding, and so the backend, decides.
DOUBT = 1e-5


def distances(own: Tensor, inbox: ReceivedMessages) -> tuple[Tensor, Tensor]:
    """(n, k) ``||own_i - message||`` in float64, and norms of own (n,).

    Distances are infinite where no message is present.
    """
    squares, sizes = _measured(own, inbox, differ=True)
    if squares is not None:
        fast = squares.sqrt()
        # Then all messages are finite, and so present.
        if are_tame(torch.cat([fast, sizes, inbox.bank_norms]), own):
            return _in_slots(fast, inbox, torch.inf), sizes
    receivers, columns, rows = inbox._arrived.edges
    if squares is not None:
        fast = _of_present(fast, inbox)
        doubtful = ~(
            is_tame(sizes, own)[receivers]
            & is_tame(inbox.bank_norms, own)[rows]
            & is_tame(fast, own)
        )
    elif len(rows) * own.shape[1] <= SMALL:
        # All distances are computed in float64 below.
        fast = torch.zeros(len(rows), dtype=torch.float64, device=own.device)
        doubtful = torch.ones_like(fast, dtype=torch.bool)
    elif len(own) * len(inbox.bank) <= DENSE * len(rows) and 2 * (
        len(own) + len(inbox.bank)
    ) <= len(rows):
        squares, doubts = squared_distances(own, sizes, inbox.bank, inbox.bank_norms)
        fast = squares[receivers, rows].sqrt()
        doubtful = doubts[receivers, rows]
        if own.shape[1] > SHORT:
            # Most doubtful pairs are close models, whose differences are exact in float32.
            close = doubtful & is_tame(sizes, own)[receivers] & is_tame(inbox.bank_norms, own)[rows]
            fast[close] = pair_distances(own, receivers[close], inbox.bank, rows[close])
            doubtful &= ~(close & is_tame(fast, own))
    else:
        fast = edge_distances(own, inbox)[receivers, columns]
        doubtful = ~(
            is_tame(sizes, own)[receivers]
            & is_tame(inbox.bank_norms, own)[rows]
            & is_tame(fast, own)
        )
    # Huge, tiny and equal models, and those that a matrix product cannot tell apart.
    if doubtful.any():
        fast[doubtful] = _careful(own, sizes, inbox, receivers[doubtful], rows[doubtful])
    return _in_slots(fast, inbox, torch.inf), sizes


def _in_slots(values: Tensor, inbox: ReceivedMessages, absent: float) -> Tensor:
    """(n, k) values of the edges of present messages, in their slots."""
    if len(values) == inbox.slots.numel():  # edges are in the order of the slots
        return values.view(inbox.slots.shape)
    receivers, columns, _ = inbox._arrived.edges
    table = torch.full_like(inbox.slots, absent, dtype=torch.float64)
    return table.index_put_((receivers, columns), values)


def _of_present(values: Tensor, inbox: ReceivedMessages) -> Tensor:
    """The values of the edges of present messages, from those of all messages."""
    if inbox._arrived is inbox._sent:
        return values
    receivers, columns, _ = inbox._sent.edges
    return values[inbox.present[receivers, columns]]


def _measured(
    own: Tensor, inbox: ReceivedMessages, *, differ: bool
) -> tuple[Tensor | None, Tensor]:
    """Squared distances or scalar products, if C measures them, and norms of own (n,).

    The first are those of all messages, finite or not.
    """
    if native.serves(own, inbox.bank):
        return along_edges(own, inbox, differ=differ)
    return None, norms_of(own, inbox)


def sharpened(
    own: Tensor,
    inbox: ReceivedMessages,
    sizes: Tensor,
    measured: Tensor,
    around: Tensor,
    minimum: int = 2,
) -> Tensor:
    """Distances, with those close to ``around`` (n,) as exact as float64 allows.

    If ``around`` is one of the distances, no decision depends on it unless at least ``minimum`` = 2
    of them are close.
    """
    close = _is_close(measured, around) & inbox.present
    receivers, columns = (close & (close.sum(1, keepdim=True) >= minimum)).nonzero(as_tuple=True)
    if not len(receivers):
        return measured
    exact = _careful(own, sizes, inbox, receivers, inbox.slots[receivers, columns])
    return measured.index_put((receivers, columns), exact)


def close_messages(own: Tensor, inbox: ReceivedMessages, factor: float) -> Tensor:
    """(n, k) where ``||own_i - message|| <= factor * ||own_i||``, as decided in float64.

    In a dense graph, the distances from all models to a few pivots decide about most messages, by
    the triangle inequality. Only the other distances are measured.
    """
    edges = len(inbox._sent.edges[2])
    models = len(inbox.bank)
    if not are_first_rows(own, inbox.bank):
        models += len(own)
    if edges < PIVOTS_WORTH * models or not native.serves(own, inbox.bank):
        measured, sizes = distances(own, inbox)
        return within(own, inbox, sizes, measured, factor)
    to_own, to_bank, sizes = pivot_distances(own, inbox, PIVOTS)
    receivers, _, rows = inbox._arrived.edges
    mine = to_own[:, receivers]
    theirs = to_bank[:, rows]
    # Both distances hold 1e-6, so that their sum and difference are within a tenth of this. NaN
    # compares as False, so that nothing is decided by models that are not tame.
    slack = DOUBT * (mine + theirs)
    limits = factor * sizes[receivers]
    near = ((mine + theirs + slack) < limits * (1 - DOUBT)).any(0)
    far = (((mine - theirs).abs_() - slack) > limits * (1 + DOUBT)).any(0)
    # Any distances on the right side of the limit serve where it is certain.
    apart = torch.zeros_like(limits).masked_fill_(far, torch.inf)
    unknown = (~(near | far)).nonzero().flatten()
    if 2 * len(unknown) > len(rows):
        return within(own, inbox, sizes, distances(own, inbox)[0], factor)
    if len(unknown):
        apart[unknown] = _edge_distances(own, inbox, sizes, receivers[unknown], rows[unknown])
    return within(own, inbox, sizes, _in_slots(apart, inbox, torch.inf), factor)


def _edge_distances(
    own: Tensor, inbox: ReceivedMessages, sizes: Tensor, receivers: Tensor, rows: Tensor
) -> Tensor:
    """Distances along some edges, by the C kernels."""
    are_rows = are_first_rows(own, inbox.bank)
    matrices = [inbox.bank] if are_rows else [own, inbox.bank]
    right = rows if are_rows else rows + len(own)
    squares, _ = native.measure(matrices, receivers, right, differ=True, all_rows=False)
    fast = squares.sqrt_()
    tame = is_tame(sizes, own)[receivers] & is_tame(inbox.bank_norms, own)[rows]
    doubtful = (~(tame & is_tame(fast, own))).nonzero().flatten()
    if len(doubtful):
        some = (receivers[doubtful], rows[doubtful])
        fast[doubtful] = _careful(own, sizes, inbox, *some)
    return fast


def within(
    own: Tensor, inbox: ReceivedMessages, sizes: Tensor, measured: Tensor, factor: float
) -> Tensor:
    """(n, k) where ``||own_i - message|| <= factor * ||own_i||``, as decided in float64."""
    limits = factor * sizes
    close = _is_close(measured, limits)
    if close.any():
        measured = sharpened(own, inbox, sizes, measured, limits, minimum=1)
        clients = close.any(1).nonzero().flatten()
        # Both sides of the comparison have to be exact.
        limits[clients] = factor * careful_norms(own, clients)
    # The distances of absent messages are infinite, and so are the only limits that accept them.
    accepted = measured <= limits[:, None]
    if not math.isfinite(limits.sum()):  # one of them is not, or their sum overflows
        accepted &= inbox.present
        # Where the distance overflows too, infinity <= infinity would accept any huge message: a
        # quarter of both is compared instead.
        receivers, columns = (accepted & measured.isinf()).nonzero(as_tuple=True)
        rows = inbox.slots[receivers, columns]
        larger = torch.maximum(sizes[receivers], inbox.bank_norms[rows])
        squares, scale = careful_squares(own, receivers, inbox.bank, rows, larger)
        quarter = scale / 4 * squares.sqrt()
        accepted[receivers, columns] = quarter <= factor * (sizes[receivers] / 4)
    return accepted


def cosines(own: Tensor, inbox: ReceivedMessages) -> tuple[Tensor, Tensor]:
    """(n, k) cosines between own and messages, and norms of own (n,).

    A cosine is 0 where no message is present, or one of the two models is zero.
    """
    measured, sizes = _measured(own, inbox, differ=False)
    receivers, columns, rows = inbox._arrived.edges
    left = sizes[receivers]
    right = inbox.bank_norms[rows]
    if measured is not None:
        fast = _of_present(measured, inbox) / left / right
    elif len(rows) * own.shape[1] <= SMALL:
        fast = torch.zeros_like(left)
    elif len(own) * len(inbox.bank) <= DENSE * len(rows):
        fast = products(own, sizes, inbox.bank, inbox.bank_norms)[receivers, rows] / left / right
    else:
        fast = edge_products(own, inbox)[receivers, columns] / left / right
    # The sign of a cosine decides whether FLTrust uses a message, so it must not be rounding.
    doubtful = ~(is_tame(left, own) & is_tame(right, own) & (fast.abs() > DOUBT))
    if doubtful.any():
        pairs = (
            own,
            receivers[doubtful],
            inbox.bank,
            rows[doubtful],
            left[doubtful],
            right[doubtful],
        )
        fast[doubtful] = careful_cosines(*pairs).nan_to_num_(nan=0.0)
    return _in_slots(fast, inbox, 0.0), sizes


def norms_of(own: Tensor, inbox: ReceivedMessages) -> Tensor:
    """(n,) norms of own models; those of the inbox if own are rows of its bank."""
    # Computed in any case: `Inbox.finite` then needs no other pass over the bank.
    messages = inbox.bank_norms
    return messages[: len(own)] if are_first_rows(own, inbox.bank) else norms(own)


def _is_close(measured: Tensor, around: Tensor) -> Tensor:
    around = around[:, None]
    return (measured - around).abs_() <= DOUBT * around


def _careful(
    own: Tensor, sizes: Tensor, inbox: ReceivedMessages, receivers: Tensor, rows: Tensor
) -> Tensor:
    larger = torch.maximum(sizes[receivers], inbox.bank_norms[rows])
    return careful_distances(own, receivers, inbox.bank, rows, larger)
