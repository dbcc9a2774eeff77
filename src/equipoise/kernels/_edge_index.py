"""Edges, pairs and groups of receivers, from the slots of an inbox."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels._pairs import unordered


class Group(NamedTuple):
    """Receivers with the same number ``c`` of present messages, and their places by sender."""

    receivers: Tensor  # (r,)
    columns: Tensor  # (r, c) slots of the receiver
    rows: Tensor  # (r, c) rows of the bank


class EdgeIndex:
    """Values derived from the ids alone; all inboxes of a fixed graph share them."""

    def __init__(self, slots: Tensor, mask: Tensor, senders: Tensor) -> None:
        self.slots = slots
        self.mask = mask
        self.senders = senders
        # Pairs of messages that rules compare, by the size of their parts; see _message_distances.
        self.compared_pairs: dict[tuple[int, int], list[Any]] = {}

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """(e,) receiver, slot and row of every message, sorted by receiver."""
        return edges_of(self.slots, self.mask)

    @cached_property
    def used_rows(self) -> int:
        """The number of different rows."""
        return len(self.edges[2].unique())

    @cached_property
    def pairs(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The distinct pairs of a receiver and a row, if own are the first rows of the bank.

        The second tensor is the pair of each edge.
        """
        receivers, _, rows = self.edges
        end = max(len(self.slots), int(rows.max()) + 1) if len(rows) else len(self.slots)
        return unordered(receivers, rows, end)

    @cached_property
    def groups(self) -> list[Group]:
        """The receivers that have a message, grouped by the number of messages."""
        counts = self.mask.sum(1)
        # By sender, whatever the order of the slots; those without a message last.
        known = self.senders.where(self.mask, torch.iinfo(torch.int64).max)
        compact = known.argsort(dim=1, stable=True)
        found = []
        for count in counts[counts > 0].unique().tolist():
            receivers = (counts == count).nonzero().flatten()
            columns = compact[receivers, :count]
            found.append(Group(receivers, columns, self.slots[receivers].gather(1, columns)))
        return found


def edges_of(slots: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(e,) receiver, slot and row of the chosen (n, k) messages."""
    receivers, columns = chosen.nonzero(as_tuple=True)
    return receivers, columns, slots[receivers, columns]
