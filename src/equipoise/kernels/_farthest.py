"""Drop the messages that are farthest from the mean of the others, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise.kernels._blocks import row_sums
from equipoise.kernels._decisions import LARGEST_RATIO, NEAR_TIE
from equipoise.kernels._edge_index import Group
from equipoise.kernels._exact import power_of_two
from equipoise.kernels._message_distances import (
    TINY,
    exact_message_distances,
    message_distances,
)
from equipoise.kernels._own_and_messages import OwnAndMessages
from equipoise.kernels._received_messages import ReceivedMessages

# Exact sums of up to 1,000 terms hold 1e-13. Sums closer to each other than this are equal on
# paper, for all that is known: then the client id decides, as in every other tie.
TIE = 1e-12


def without_farthest(
    own: Tensor,
    inbox: ReceivedMessages,
    weigh: Callable[[Tensor], Tensor],
    amount: Tensor,
    *,
    include_own: bool,
) -> Tensor:
    """(n, k) the weights, 0 for messages that are dropped; each client drops ``amount`` (n,).

    Again and again, the message is dropped that is farthest from the mean of the remaining messages
    with these weights. ``weigh`` returns the weights (n, k) of the messages that it is told to
    accept; only those of weight > 0 take part. With ``include_own``, own has a part in the mean
    with the remainder to 1 as its weight; it is never dropped. Then clients whose own model is not
    finite drop all. Of equally far messages, the one with the highest client id is dropped.
    """
    known = OwnAndMessages(own, inbox) if include_own else _MessagesOnly(own, inbox)
    kept = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    weights: Tensor | None = None
    for group, squares in known:
        # The first measurement shows which messages are present.
        weights = weigh(inbox.present) if weights is None else weights
        columns = group.columns[:, :-1] if include_own else group.columns
        senders = inbox.senders[group.receivers[:, None], columns]
        theirs = weights[group.receivers[:, None], columns]
        everything = theirs
        if include_own:
            rest = (1 - row_sums(weights)[group.receivers, None]).clamp_min(0)
            everything = torch.cat([theirs, rest], 1)
        remaining = _Remaining(known, group, squares, everything, theirs > 0)
        steps = amount[group.receivers].clamp_max(columns.shape[1])
        for step in range(int(steps.max())):
            remaining.drop_farthest(senders, steps > step)
        kept[group.receivers[:, None], columns] = theirs.where(remaining.is_left, 0.0)
    return kept


class _MessagesOnly:
    """As `OwnAndMessages`, without own."""

    def __init__(self, own: Tensor, inbox: ReceivedMessages) -> None:
        self.own = own
        self.inbox = inbox
        self.exact = exact_message_distances(inbox)

    def __iter__(self) -> Iterator[tuple[Group, Tensor]]:
        return message_distances(self.own, self.inbox)


class _Remaining:
    """The messages of a group of receivers that are left, and their distances; own is the last.

    With shares p of a mean c, ``|x_j - c|^2 = sum_a p_a |x_j - x_a|^2 - V``, and V is the same for
    all j. So the message with the largest weighted sum of squared distances is the farthest from
    the mean, and no mean has to be computed. No digits cancel in a sum of positive terms.
    """

    def __init__(
        self,
        known: OwnAndMessages | _MessagesOnly,
        group: Group,
        squares: Tensor,
        weights: Tensor,
        is_left: Tensor,
    ) -> None:
        self._known = known
        self._rows = group.rows
        self._squares = squares
        self._weights = weights
        self._is_exact = torch.zeros_like(weights, dtype=torch.bool)
        self._may_vanish = known.own.dtype == torch.float64
        self.is_left = is_left  # (r, c) without own, which has a last column elsewhere
        self._own = torch.ones_like(weights[:, is_left.shape[1] :], dtype=torch.bool)

    @property
    def _count(self) -> int:
        """The number of messages."""
        return self.is_left.shape[1]

    def drop_farthest(self, senders: Tensor, active: Tensor) -> None:
        """Drop one message of each active receiver (r,) that has any left."""
        sums = self._sums()
        rivals = self._rivals(sums)
        several = active & (rivals.sum(1) > 1)
        if several.any() or not sums.isfinite().all():
            self._measure_exactly(rivals, several, sums)
            sums = self._sums()
            rivals = self._rivals(sums)
        top, best = sums.max(dim=1, keepdim=True)
        # Copies of the farthest message are as far as it is, whatever rounding says.
        to_best = self._squares.gather(1, best[:, :, None].expand(-1, 1, self._squares.shape[2]))
        are_copies = to_best[:, 0, : self._count] == 0
        tied = rivals & ((sums >= top * (1 - TIE)) | are_copies)
        last = senders.where(tied, -1).argmax(1)
        which = (active & self.is_left.any(1)).nonzero().flatten()
        self.is_left[which, last[which]] = False

    def _sums(self) -> Tensor:
        """(r, c) weighted sums of squared distances to all that is left; -1 for what is dropped."""
        left = torch.cat([self.is_left, self._own], 1)
        weights = self._weights.where(left, 0.0)
        # Distances to what is dropped may be infinite, and 0 times infinity is NaN.
        squares = self._squares[:, : self._count].where(left[:, None], 0.0)
        sums = (squares @ weights[:, :, None])[:, :, 0]
        return sums.where(self.is_left, -1.0)

    def _rivals(self, sums: Tensor) -> Tensor:
        """(r, c) the messages one of which is the farthest, where sums hold 1e-6."""
        top = sums.amax(1, keepdim=True)
        return self.is_left & (sums >= top * (1 - NEAR_TIE))

    def _measure_exactly(self, rivals: Tensor, several: Tensor, sums: Tensor) -> None:
        """Replace the distances that these sums cannot be compared by."""
        top = sums.amax(1)
        # Sums that overflow, or of squares that vanish, are computed in another unit.
        wild = ~top.isfinite()
        if self._may_vanish:
            wild |= several & (top < TINY)
        which = wild.nonzero().flatten()
        if len(which):
            self._squares[which] = self._on_one_scale(which)
            self._is_exact[which] = True
        # Rivals that are copies of one message are no doubt.
        close = rivals & (several & ~wild)[:, None]
        count = self._count
        differ = (self._squares[:, :count, :count] > 0) & close[:, :, None] & close[:, None, :]
        unknown = close & differ.any(2).any(1)[:, None] & ~self._is_exact[:, :count]
        which, place = unknown.nonzero(as_tuple=True)
        if len(which):
            rows = self._rows[which]
            mine = rows.gather(1, place[:, None]).expand_as(rows)
            squares, scales = self._known.exact(mine, rows)
            found = squares * scales * scales
            self._squares[which, place] = found
            self._squares[which, :, place] = found
            self._is_exact[which, place] = True

    def _on_one_scale(self, which: Tensor) -> Tensor:
        """(w, c + 1, c + 1) exact squared distances of some receivers, in a unit for each.

        The unit is the largest distance between models that are left, so that sums are about 1.
        """
        rows = self._rows[which]
        count = rows.shape[1]
        left = rows[:, :, None].expand(-1, -1, count)
        squares, scales = self._known.exact(left, left.mT)
        remains = torch.cat([self.is_left[which], self._own[which]], 1)
        pairs = remains[:, :, None] & remains[:, None, :]
        lengths = (scales * squares.sqrt()).clamp_max(torch.finfo(torch.float64).max)
        unit = power_of_two(lengths.where(pairs, 0.0).amax((1, 2)))
        ratio = (scales / unit[:, None, None]).clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
        return (squares * ratio * ratio).where(pairs, 0.0)
