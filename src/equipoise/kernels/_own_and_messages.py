"""Squared distances between all models that a client knows: its messages and own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from equipoise._utils.memo import Memo
from equipoise.kernels._blocks import are_first_rows
from equipoise.kernels._distances import distances
from equipoise.kernels._edge_index import Group
from equipoise.kernels._exact import careful_squares
from equipoise.kernels._message_distances import exact_message_distances, message_distances
from equipoise.kernels._received_messages import ReceivedMessages


@dataclass(eq=False)
class OwnAndMessages:
    """Distances between the messages of each receiver and its own model.

    Own counts as one more message, in a slot behind the others. Receivers whose own model is not
    finite, and those without messages, are left out.
    """

    own: Tensor
    inbox: ReceivedMessages

    def __post_init__(self) -> None:
        # In a simulation own models are rows of the bank, so that they are messages already.
        self._is_joint = are_first_rows(self.own, self.inbox.bank)
        self._known = self._with_own() if self._is_joint else self.inbox
        self._exact = exact_message_distances(self._known)
        self._sizes: Tensor | None = None

    def __iter__(self) -> Iterator[tuple[Group, Tensor]]:
        """Yield groups, and (r, c + 1, c + 1) squared distances in float64; own is the last.

        The rows of a group have a last column for own, and so have its columns: slot k. Then it is
        known which messages are present, without another pass over them.
        """
        yield from self._joint() if self._is_joint else self._separate()

    def _joint(self) -> Iterator[tuple[Group, Tensor]]:
        for group, squares in message_distances(self.own, self._known):
            self.inbox._learn_norms(self._known.bank_norms)
            # Where own is missing it is not finite, and where it is alone there is no message.
            has_own = group.columns[:, -1] == self.inbox.k
            if group.columns.shape[1] == 1 or not has_own.any():
                continue
            if has_own.all():
                yield group, squares
            else:
                yield Group(*(index[has_own] for index in group)), squares[has_own]

    def _separate(self) -> Iterator[tuple[Group, Tensor]]:
        apart, self._sizes = distances(self.own, self.inbox)
        k = self.inbox.k
        for group, squares in message_distances(self.own, self.inbox):
            finite = self._sizes[group.receivers].isfinite()
            receivers, columns, rows = (index[finite] for index in group)
            if not len(receivers):
                continue
            squares = pad(squares[finite], (0, 1, 0, 1))
            mine = apart[receivers[:, None], columns].square_()
            squares[:, :-1, -1] = squares[:, -1, :-1] = mine
            # Rows beyond the bank are own models.
            last = len(self.inbox.bank) + receivers[:, None]
            places = pad(columns, (0, 1), value=k)
            yield Group(receivers, places, torch.cat([rows, last], 1)), squares

    def exact(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Exact squared distances between rows of groups: squares and scales, in the same shape.

        A squared distance is ``square * scale**2``; see `exact_message_distances`.
        """
        if self._is_joint:
            return self._exact(left, right)
        assert self._sizes is not None  # known since the first group
        m = len(self.inbox.bank)
        low = torch.minimum(left, right)
        high = torch.maximum(left, right)
        squares = torch.zeros(left.shape, dtype=torch.float64, device=left.device)
        scales = torch.ones_like(squares)
        are_messages = high < m
        squares[are_messages], scales[are_messages] = self._exact(
            low[are_messages], high[are_messages]
        )
        # Own is compared with messages of its receiver only, and with itself.
        is_mixed = (low < m) & ~are_messages
        rows = low[is_mixed]
        receivers = high[is_mixed] - m
        larger = torch.maximum(self._sizes[receivers], self.inbox.bank_norms[rows])
        squares[is_mixed], scales[is_mixed] = careful_squares(
            self.own, receivers, self.inbox.bank, rows, larger
        )
        return squares, scales

    def _with_own(self) -> ReceivedMessages:
        """The inbox of the same bank in which own is a message as well."""
        inbox = self.inbox
        rows = torch.arange(inbox.n, device=inbox.slots.device)[:, None]
        # Groups are in the order of senders, and own comes last.
        last = torch.full_like(rows, torch.iinfo(torch.int64).max - 1)
        memo = Memo()
        if inbox._knows_norms:
            memo.put("bank_norms", (inbox.bank,), inbox.bank_norms)
        return inbox._copy(
            memo,
            slots=torch.cat([inbox.slots, rows], 1),
            mask=torch.cat([inbox.mask, torch.ones_like(rows, dtype=torch.bool)], 1),
            senders=torch.cat([inbox.senders, last], 1),
        )
