"""Squared distances between all models that a client knows: its messages and own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from equipoise._utils.memo import Memo
from equipoise.kernels._blocks import are_first_rows
from equipoise.kernels._distances import distances, norms_of
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
        self._sizes = norms_of(self.own, self.inbox)
        self._known = self._with_own() if self._is_joint else self._of_finite()
        self._exact = exact_message_distances(self._known)

    def __iter__(self) -> Iterator[tuple[Group, Tensor]]:
        """Yield groups, and (r, c + 1, c + 1) squared distances in float64; own is the last.

        The rows of a group have a last column for own, and so have its columns: slot k.
        """
        if self._is_joint:
            yield from message_distances(self.own, self._known)
            return
        apart, _ = distances(self.own, self._known)
        k = self.inbox.k
        for group, squares in message_distances(self.own, self._known):
            receivers, columns, rows = group
            mine = apart[receivers[:, None], columns].square_()
            squares = pad(squares, (0, 1, 0, 1))
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

    def _of_finite(self) -> ReceivedMessages:
        """The inbox without receivers whose own model is not finite."""
        finite = self._sizes.isfinite()
        if finite.all():
            return self.inbox
        return self._changed(mask=self.inbox.mask & finite[:, None])

    def _with_own(self) -> ReceivedMessages:
        """The inbox of the same bank in which own is a message as well."""
        inbox = self.inbox
        n = inbox.n
        # A receiver that hears nobody must not have own as its only message.
        heard = inbox.present.any(1) & self._sizes.isfinite()
        rows = torch.arange(n, device=inbox.slots.device)[:, None]
        # Groups are in the order of senders, and own comes last.
        last = torch.full_like(rows, torch.iinfo(torch.int64).max - 1)
        return self._changed(
            slots=torch.cat([inbox.slots, rows], 1),
            mask=torch.cat([inbox.mask & heard[:, None], heard[:, None]], 1),
            senders=torch.cat([inbox.senders, last], 1),
        )

    def _changed(self, **tables: Tensor) -> ReceivedMessages:
        """The same bank along other edges, of which the norms are known."""
        memo = Memo()
        memo.put("bank_norms", (self.inbox.bank,), self.inbox.bank_norms)
        return self.inbox._copy(memo, **tables)
