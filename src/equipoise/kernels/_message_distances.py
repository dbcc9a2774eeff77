"""Distances between the messages of a receiver, exact enough to rank by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import chunks
from equipoise.kernels._distances import DENSE, SMALL, norms_of
from equipoise.kernels._distances_dense import squared_distances, squared_distances_of_each
from equipoise.kernels._distances_native import between_rows
from equipoise.kernels._edge_index import EdgeIndex, Group
from equipoise.kernels._exact import careful_squares, largest_differences
from equipoise.kernels._norms import are_tame, is_tame
from equipoise.kernels._pairs import unordered, unordered_within
from equipoise.kernels._received_messages import ReceivedMessages

# Elements of messages, or of distances, that are processed at a time: 4 MiB of float64.
BUDGET = 1 << 19

# Own models on which messages are centered are copied whole, and read only once, so they may take
# this many times as many elements.
WHOLE = 8

# Exact distances that are kept for other receivers. Pair, square and scale take 24 bytes: 48 MiB,
# well below the 256 MiB that kernels may use.
REMEMBERED = 1 << 21

# Pairs of messages whose numbers are kept with the edges of a graph: 4 MiB.
KEPT_PAIRS = 1 << 19

# A sum of squares below this may have terms below 2.2e-308, which lose digits, or vanish below
# 4.9e-324. Here all terms that matter, down to a share of 1e-16 and less, are normal numbers.
# Without a second look, an attacker could send float64 models that differ from another one by less
# than 1e-162 and appear equal to it.
TINY = 1e-280


def message_distances(
    own: Tensor, inbox: ReceivedMessages, *, by_size: bool = True
) -> Iterator[tuple[Group, Tensor]]:
    """Squared distances between the messages of each receiver: groups, and (r, c, c) float64.

    With ``by_size``, small problems are computed in float64. Otherwise results of the C kernels do
    not depend on other receivers, bit by bit.
    """
    sent = inbox.mask.sum(1)  # an estimate: which messages are finite is not known yet
    m = len(inbox.bank)
    work = int((sent * (sent + DENSE)).sum())
    small = work * own.shape[1] <= SMALL and (by_size or not native.serves(inbox.bank))
    if work == 0:
        return
    if not small and m * m <= 2 * work:
        # In a complete graph, all receivers compare the same messages.
        shared = _shared_distances(inbox)
        for group in inbox._arrived.groups:
            for piece in pieces(group, group.rows.shape[1] ** 2):
                # Rows, then columns: a quarter of the time of indexing by both at once.
                columns = piece.rows[:, None].expand(-1, piece.rows.shape[1], -1)
                yield piece, shared[piece.rows].gather(2, columns)
    elif not small and native.serves(inbox.bank):
        yield from _native_distances(inbox)
    else:
        yield from _centered_distances(own, inbox, exact=small)


def pieces(group: Group, cost: int) -> Iterator[Group]:
    """Some receivers of the group at a time, of ``cost`` elements each."""
    for part in chunks(len(group.receivers), cost, BUDGET):
        yield Group(*(index[part] for index in group))


def _centered_distances(
    own: Tensor, inbox: ReceivedMessages, *, exact: bool
) -> Iterator[tuple[Group, Tensor]]:
    """The same by a matrix product for each receiver, or all in float64 if ``exact``."""
    centered = is_tame(norms_of(own, inbox), own)
    for group in inbox._arrived.groups:
        # Messages are gathered in blocks of columns, so only thousands of columns count. Own models
        # are copied whole, so all of theirs do.
        cost = max(group.rows.shape[1] * min(4096, inbox.d), inbox.d // WHOLE)
        for piece in pieces(group, cost):
            # Near consensus, a receiver's own model is close to its messages.
            centers = own[piece.receivers].masked_fill_(~centered[piece.receivers, None], 0)
            squares, doubts = squared_distances_of_each(
                centers, inbox.bank, inbox.bank_norms, piece.rows
            )
            yield piece, _mended(squares, doubts | exact, inbox, piece.rows)


def _native_distances(inbox: ReceivedMessages) -> Iterator[tuple[Group, Tensor]]:
    """The same by the C kernels, for the pairs of messages that a receiver has to compare."""
    sent = inbox if inbox._is_examined else inbox._trusted()
    for piece, (left, right), places in _compared_pairs(sent._arrived, len(inbox.bank)):
        found = between_rows(inbox, left, right)
        # The first measurement shows which messages are finite. Nothing has been yielded yet.
        if sent is not inbox and not inbox.present.equal(sent.present):
            yield from _native_distances(inbox)
            return
        # The last place is the distance of a message to itself.
        squares = torch.cat([found, found.new_zeros(1)])[places]
        if not all(are_tame(x, inbox.bank) for x in (inbox.bank_norms, found.sqrt())):
            doubts = torch.cat([_is_doubtful(inbox, left, right, found), left.new_zeros(1).bool()])
            squares = _mended(squares, doubts[places], inbox, piece.rows)
        yield piece, squares


ComparedPairs = tuple[Group, tuple[Tensor, Tensor], Tensor]


def _compared_pairs(index: EdgeIndex, m: int) -> Iterable[ComparedPairs]:
    """Some receivers at a time, the pairs of their messages, and (r, c, c) the place of each pair.

    Small ones are kept with the edges: they are the same in all rounds of a fixed graph.
    """
    size = sum(len(group.rows) * group.rows.shape[1] ** 2 for group in index.groups)
    if size > KEPT_PAIRS:
        return _number_pairs(index, m)
    key = (BUDGET, m)
    if key not in index.compared_pairs:
        index.compared_pairs = {key: list(_number_pairs(index, m))}
    return index.compared_pairs[key]


def _number_pairs(index: EdgeIndex, m: int) -> Iterator[ComparedPairs]:
    for group in index.groups:
        count = group.rows.shape[1]
        left, right = torch.triu_indices(count, count, offset=1, device="cpu")
        for piece in pieces(group, count * count):
            pairs, inverse = unordered_within(piece.rows, m)
            places = torch.full((*piece.rows.shape, count), len(pairs[0]), device="cpu")
            places[:, left, right] = places[:, right, left] = inverse
            yield piece, pairs, places


def _is_doubtful(inbox: ReceivedMessages, left: Tensor, right: Tensor, squares: Tensor) -> Tensor:
    tame = is_tame(inbox.bank_norms, inbox.bank)
    return ~(tame[left] & tame[right] & is_tame(squares.sqrt(), inbox.bank))


def _all_squares(inbox: ReceivedMessages) -> tuple[Tensor, Tensor | None]:
    """(m, m) squared distances between the rows of the bank, and the doubtful ones, if any."""
    if not native.serves(inbox.bank):
        return squared_distances(inbox.bank, inbox.bank_norms, inbox.bank, inbox.bank_norms)
    m = len(inbox.bank)
    left, right = torch.triu_indices(m, m, offset=1, device="cpu")
    found = between_rows(inbox, left, right)
    squares = torch.zeros(m, m, dtype=torch.float64, device="cpu")
    squares[left, right] = found
    squares = squares + squares.T
    if squares.numel() <= KEPT_PAIRS:
        inbox._learn_squares(squares.clone())  # before they are mended in place
    if all(are_tame(x, inbox.bank) for x in (inbox.bank_norms, found.sqrt())):
        return squares, None
    doubtful = torch.zeros_like(squares, dtype=torch.bool)
    doubtful[left, right] = _is_doubtful(inbox, left, right, found)
    return squares, doubtful | doubtful.T


def _shared_distances(inbox: ReceivedMessages) -> Tensor:
    """(m, m) squared distances between all rows of the bank that are present somewhere."""
    squares, doubts = _all_squares(inbox)
    if doubts is None:
        return squares
    used = torch.zeros_like(doubts[0])
    used[inbox.slots[inbox.present]] = True
    doubtful = doubts & used & used[:, None]
    rows = torch.arange(len(used), device=used.device)
    return _mended(squares[None], doubtful[None], inbox, rows[None])[0]


def exact_message_distances(
    inbox: ReceivedMessages,
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A function for exact squared distances between rows of the bank, which computes each once.

    It returns squares and scales: a squared distance is ``square * scale**2``. Scales are powers of
    two, so that squares which are small integers stay exact, and none overflows or vanishes.
    """
    return _ExactDistances(inbox)


class _ExactDistances:
    """Caches distances by pair, so that a near tie costs a graph no more than one receiver."""

    def __init__(self, inbox: ReceivedMessages) -> None:
        self.inbox = inbox
        self._forget()

    def _forget(self) -> None:
        self.known = torch.empty(
            0, dtype=torch.int64, device=self.inbox.bank.device
        )  # pairs, ascending
        self.squares = self.scales = self.known.double()

    def __call__(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        # Forgetting costs time only: distances are computed again.
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


def _exact_squares(inbox: ReceivedMessages, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(p,) squares and scales. Float64 models whose differences are tiny are scaled by these."""
    bank = inbox.bank
    larger = torch.maximum(inbox.bank_norms[left], inbox.bank_norms[right])
    squares, scales = careful_squares(bank, left, bank, right, larger)
    squares.masked_fill_(left == right, 0)
    if bank.dtype == torch.float64:
        lost = ((squares < TINY) & (left != right)).nonzero().flatten()
        a = left[lost]
        b = right[lost]
        largest = largest_differences(bank, a, b)
        squares[lost], scales[lost] = careful_squares(bank, a, bank, b, largest)
    return squares, scales


def _mended(squares: Tensor, doubtful: Tensor, inbox: ReceivedMessages, rows: Tensor) -> Tensor:
    """Squared distances (r, c, c), with doubtful ones computed again, and zeros on the diagonal."""
    # A message has distance 0 to itself, which a matrix product does not find exactly.
    squares.diagonal(dim1=1, dim2=2).zero_()
    if not doubtful.any():
        return squares
    which, left, right = doubtful.triu(diagonal=1).nonzero(as_tuple=True)
    a = rows[which, left]
    b = rows[which, right]
    larger = torch.maximum(inbox.bank_norms[a], inbox.bank_norms[b])
    exact, scale = careful_squares(inbox.bank, a, inbox.bank, b, larger)
    exact.masked_fill_(a == b, 0)  # also for NaN, in two messages from one row
    squares[which, left, right] = squares[which, right, left] = exact * scale * scale
    return squares
