"""Distances and cosines between own models and messages, and distances between messages, exact enough to judge by.

Where the graph is dense one matrix product serves all clients; where it is sparse, work goes along the edges. Whatever
the fast way cannot answer for is computed again in float64: a malicious client can make this slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import chunks, same_rows
from equipoise.kernels._distances_dense import products, squared_distances, squared_distances_of_each
from equipoise.kernels._distances_native import along_edges, between_rows
from equipoise.kernels._distances_sparse import SHORT, edge_distances, edge_products, pair_distances
from equipoise.kernels._exact import (
    careful_cosines,
    careful_distances,
    careful_norms,
    careful_squares,
    largest_differences,
)
from equipoise.kernels._norms import is_tame, norms
from equipoise.kernels._pairs import unordered, unordered_within
from equipoise.kernels._received import Received
from equipoise.kernels._wiring import Group

BUDGET = 1 << 19  # elements of messages that are multiplied at once
WHOLE = 8  # times as many elements of own models are copied whole, to be what messages are centred on
SMALL = 1 << 16  # work below which float64 costs nothing
DENSE = 16  # a matrix product does this many products in the time of one difference
DOUBT = 1e-5  # relative distance from a threshold below which the decision is made in float64
REMEMBERED = 1 << 21  # exact distances that are kept for other receivers, in 48 MiB
TINY = 1e-280  # squares of float64 below this have lost digits, or vanished


def distances(own: Tensor, inbox: Received) -> tuple[Tensor, Tensor]:
    """(n, k) ``||own_i - message||`` in float64, infinity where no message is present; and norms of own (n,)."""
    squares, sizes = _measured(own, inbox, differ=True)
    receivers, columns, rows = inbox._arrived.edges
    if len(rows) * own.shape[1] <= SMALL:
        fast = torch.zeros(len(rows), dtype=torch.float64, device=own.device)
        doubtful = torch.ones_like(fast, dtype=torch.bool)
    elif squares is not None:
        fast = squares[receivers, columns].sqrt()
        doubtful = ~(is_tame(sizes, own)[receivers] & is_tame(inbox.bank_norms, own)[rows] & is_tame(fast, own))
    elif len(own) * len(inbox.bank) <= DENSE * len(rows) and 2 * (len(own) + len(inbox.bank)) <= len(rows):
        squares, doubts = squared_distances(own, sizes, inbox.bank, inbox.bank_norms)
        fast, doubtful = squares[receivers, rows].sqrt(), doubts[receivers, rows]
        if own.shape[1] > SHORT:  # differences of close models are exact enough in float32
            close = doubtful & is_tame(sizes, own)[receivers] & is_tame(inbox.bank_norms, own)[rows]
            fast[close] = pair_distances(own, receivers[close], inbox.bank, rows[close])
            doubtful &= ~(close & is_tame(fast, own))
    else:
        fast = edge_distances(own, inbox)[receivers, columns]
        doubtful = ~(is_tame(sizes, own)[receivers] & is_tame(inbox.bank_norms, own)[rows] & is_tame(fast, own))
    if doubtful.any():
        fast[doubtful] = _careful(own, sizes, inbox, receivers[doubtful], rows[doubtful])
    apart = torch.full_like(inbox.slots, torch.inf, dtype=torch.float64).index_put_((receivers, columns), fast)
    return apart, sizes


def _measured(own: Tensor, inbox: Received, *, differ: bool) -> tuple[Tensor | None, Tensor]:
    """(n, k) squared distances or scalar products where the native kernels measure them, and norms of own (n,)."""
    if inbox.mask.sum() * own.shape[1] > SMALL and native.serves(own, inbox.bank):
        return along_edges(own, inbox, differ=differ)
    return None, norms_of(own, inbox)


def sharpened(own: Tensor, inbox: Received, sizes: Tensor, measured: Tensor, around: Tensor, least: int = 2) -> Tensor:
    """Measured distances, with those close to ``around`` (n,) as exact as float64 has them, for decisions there.

    Where ``around`` is one of the distances itself, nothing hangs on it unless ``least`` two are close.
    """
    close = _is_close(measured, around) & inbox.present
    receivers, columns = (close & (close.sum(1, keepdim=True) >= least)).nonzero(as_tuple=True)
    if not len(receivers):
        return measured
    exact = _careful(own, sizes, inbox, receivers, inbox.slots[receivers, columns])
    return measured.index_put((receivers, columns), exact)


def within(own: Tensor, inbox: Received, sizes: Tensor, measured: Tensor, factor: float) -> Tensor:
    """(n, k) where ``||own_i - message|| <= factor * ||own_i||``, as float64 decides it, from measured distances."""
    limits = factor * sizes
    close = _is_close(measured, limits)
    if close.any():
        measured = sharpened(own, inbox, sizes, measured, limits, least=1)
        clients = close.any(1).nonzero().flatten()
        limits[clients] = factor * careful_norms(own, clients)
    accepted = (measured <= limits[:, None]) & inbox.present
    if limits.isinf().any():  # where the distance overflows too, compare a quarter of both
        receivers, columns = (accepted & measured.isinf()).nonzero(as_tuple=True)
        rows = inbox.slots[receivers, columns]
        larger = torch.maximum(sizes[receivers], inbox.bank_norms[rows])
        squares, scale = careful_squares(own, receivers, inbox.bank, rows, larger)
        quarter = scale / 4 * squares.sqrt()
        accepted[receivers, columns] = quarter <= factor * (sizes[receivers] / 4)
    return accepted


def cosines(own: Tensor, inbox: Received) -> tuple[Tensor, Tensor]:
    """(n, k) cosine between own and message, 0 where none is present or one of them is zero; and norms of own (n,)."""
    measured, sizes = _measured(own, inbox, differ=False)
    receivers, columns, rows = inbox._arrived.edges
    left, right = sizes[receivers], inbox.bank_norms[rows]
    if len(rows) * own.shape[1] <= SMALL:
        fast = torch.zeros_like(left)
    elif measured is not None:
        fast = measured[receivers, columns] / left / right
    elif len(own) * len(inbox.bank) <= DENSE * len(rows):
        fast = products(own, sizes, inbox.bank, inbox.bank_norms)[receivers, rows] / left / right
    else:
        fast = edge_products(own, inbox)[receivers, columns] / left / right
    doubtful = ~(is_tame(left, own) & is_tame(right, own) & (fast.abs() > DOUBT))
    if doubtful.any():
        pairs = (own, receivers[doubtful], inbox.bank, rows[doubtful], left[doubtful], right[doubtful])
        fast[doubtful] = careful_cosines(*pairs).nan_to_num_(nan=0.0)
    return torch.zeros_like(inbox.slots, dtype=torch.float64).index_put_((receivers, columns), fast), sizes


def message_distances(own: Tensor, inbox: Received) -> Iterator[tuple[Group, Tensor]]:
    """Squared distances between the messages of each receiver: groups of receivers, and their (r, c, c) float64."""
    sent, m = inbox.mask.sum(1), len(inbox.bank)  # whether it is finite is not known yet, nor needed
    work = int((sent * (sent + DENSE)).sum())
    small = work * own.shape[1] <= SMALL
    shared = None if small or m * m > 2 * work else _shared_distances(inbox)
    if shared is None and not small and native.serves(inbox.bank):
        yield from _native_distances(inbox)
        return
    centred = is_tame(norms_of(own, inbox), own)
    for group in inbox._arrived.groups:
        count = group.rows.shape[1]
        cost = max(count * min(4096, inbox.d), inbox.d // WHOLE) if shared is None else count * count
        for part in chunks(len(group.receivers), cost, BUDGET):
            piece = type(group)(*(index[part] for index in group))
            if shared is not None:
                yield piece, shared[piece.rows[:, :, None], piece.rows[:, None, :]]
            else:
                centres = own[piece.receivers].masked_fill_(~centred[piece.receivers, None], 0)
                squares, doubts = squared_distances_of_each(centres, inbox.bank, inbox.bank_norms, piece.rows)
                yield piece, _mended(squares, doubts | small, inbox, piece.rows)


def _native_distances(inbox: Received) -> Iterator[tuple[Group, Tensor]]:
    """The same along the edges between messages that some receiver has to compare."""
    sent = inbox if inbox._is_examined else inbox._trusted()
    for group in sent._arrived.groups:
        count = group.rows.shape[1]
        left, right = torch.triu_indices(count, count, offset=1, device="cpu")
        for part in chunks(len(group.receivers), count * count, BUDGET):
            piece = type(group)(*(index[part] for index in group))
            pairs, inverse = unordered_within(piece.rows, len(inbox.bank))
            found, doubts = _native_squares(inbox, *pairs)
            if sent is not inbox and not inbox.present.equal(sent.present):  # seen by the first call, before any yield
                yield from _native_distances(inbox)
                return
            squares = torch.zeros(*piece.rows.shape, count, dtype=torch.float64, device="cpu")
            doubtful = torch.zeros_like(squares, dtype=torch.bool)
            squares[:, left, right] = squares[:, right, left] = found[inverse]
            doubtful[:, left, right] = doubts[inverse]
            yield piece, _mended(squares, doubtful, inbox, piece.rows)


def _native_squares(inbox: Received, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(p,) squared distances between rows of the bank, and which of them are doubtful."""
    squares = between_rows(inbox, left, right)
    tame = is_tame(inbox.bank_norms, inbox.bank)
    return squares, ~(tame[left] & tame[right] & is_tame(squares.sqrt(), inbox.bank))


def _all_squares(inbox: Received) -> tuple[Tensor, Tensor]:
    """(m, m) squared distances between the rows of the bank, and which of them are doubtful."""
    if not native.serves(inbox.bank):
        return squared_distances(inbox.bank, inbox.bank_norms, inbox.bank, inbox.bank_norms)
    m = len(inbox.bank)
    left, right = torch.triu_indices(m, m, offset=1, device="cpu")
    squares = torch.zeros(m, m, dtype=torch.float64, device="cpu")
    doubtful = torch.zeros_like(squares, dtype=torch.bool)
    squares[left, right], doubtful[left, right] = _native_squares(inbox, left, right)
    return squares + squares.T, doubtful | doubtful.T


def _shared_distances(inbox: Received) -> Tensor:
    """(m, m) squared distances between all rows of the bank that somebody received."""
    squares, doubts = _all_squares(inbox)
    used = torch.zeros_like(doubts[0])
    used[inbox.slots[inbox.present]] = True
    return _mended(
        squares[None], (doubts & used & used[:, None])[None], inbox, torch.arange(len(used), device=used.device)[None]
    )[0]


def norms_of(own: Tensor, inbox: Received) -> Tensor:
    """(n,) norms of own models; taken from the inbox where own is its bank."""
    messages = inbox.bank_norms  # asked for first, so that nobody looks for NaN in another pass over the bank
    return messages if same_rows(own, inbox.bank) else norms(own)


def _is_close(measured: Tensor, around: Tensor) -> Tensor:
    return (measured - around[:, None]).abs() <= DOUBT * around[:, None]


def _careful(own: Tensor, sizes: Tensor, inbox: Received, receivers: Tensor, rows: Tensor) -> Tensor:
    larger = torch.maximum(sizes[receivers], inbox.bank_norms[rows])
    return careful_distances(own, receivers, inbox.bank, rows, larger)


def exact_message_distances(inbox: Received) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What tells squared distances between rows of the bank as exact as float64 has them, computing each only once.

    It returns squares, and scales to be squared too. These are powers of two, so that squares which are small
    integers stay exact, and none overflows or vanishes.
    """
    return _ExactDistances(inbox)


class _ExactDistances:
    """Remembers what it has told, by pair, so that one near tie costs a graph no more than it costs one receiver."""

    def __init__(self, inbox: Received) -> None:
        self.inbox = inbox
        self._forget()

    def _forget(self) -> None:
        self.known = torch.empty(0, dtype=torch.int64, device=self.inbox.bank.device)  # pairs, ascending
        self.squares = self.scales = self.known.double()

    def __call__(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.known) > REMEMBERED:
            self._forget()
        m = len(self.inbox.bank)
        (low, high), inverse = unordered(left, right, m)
        pairs = low * m + high
        new = ~torch.isin(pairs, self.known)
        if new.any():
            self._learn(pairs[new], *_exact_squares(self.inbox, low[new], high[new]))
        places = torch.searchsorted(self.known, pairs)[inverse]
        return self.squares[places], self.scales[places]

    def _learn(self, pairs: Tensor, squares: Tensor, scales: Tensor) -> None:
        self.known, order = torch.cat([self.known, pairs]).sort()
        self.squares = torch.cat([self.squares, squares])[order]
        self.scales = torch.cat([self.scales, scales])[order]


def _exact_squares(inbox: Received, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(p,) squares and scales; a second look at models that agree in all that is not tiny, as only float64 can."""
    bank, larger = inbox.bank, torch.maximum(inbox.bank_norms[left], inbox.bank_norms[right])
    squares, scales = careful_squares(bank, left, bank, right, larger)
    squares.masked_fill_(left == right, 0)
    if bank.dtype == torch.float64:
        lost = ((squares < TINY) & (left != right)).nonzero().flatten()
        pairs = left[lost], right[lost]
        squares[lost], scales[lost] = careful_squares(bank, pairs[0], bank, pairs[1], largest_differences(bank, *pairs))
    return squares, scales


def _mended(squares: Tensor, doubtful: Tensor, inbox: Received, rows: Tensor) -> Tensor:
    """Squared distances (r, c, c) with those in doubt computed again, and exact zeros on the diagonal."""
    squares.diagonal(dim1=1, dim2=2).zero_()
    if not doubtful.any():
        return squares
    which, left, right = doubtful.triu(diagonal=1).nonzero(as_tuple=True)
    a, b = rows[which, left], rows[which, right]
    larger = torch.maximum(inbox.bank_norms[a], inbox.bank_norms[b])
    exact, scale = careful_squares(inbox.bank, a, inbox.bank, b, larger)
    squares[which, left, right] = squares[which, right, left] = exact * scale * scale
    return squares
