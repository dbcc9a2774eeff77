"""Distances and products along the edges of a sparse graph, at a cost linear in the number of edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.kernels.blocks import chunks, column_blocks, gather, in_sums

if TYPE_CHECKING:
    from equipoise.inbox import Group, Inbox

WIDTH = 4096


def edge_distances(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) ``||own_i - message||`` in float64 from differences; 0 where no message is present."""
    squares = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    for piece, mine, messages in _tiles(own, inbox):
        lengths = torch.linalg.vector_norm(in_sums(messages.sub_(mine)), dim=3).double()
        squares[piece.receivers[:, None], piece.columns] += lengths.square_().sum(1)
    return squares.sqrt_()


def edge_products(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) scalar product of own and message in float64; 0 where no message is present."""
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    for piece, mine, messages in _tiles(own, inbox):
        result[piece.receivers[:, None], piece.columns] += (messages @ mine.mT).squeeze(2)
    return result


def _tiles(own: Tensor, inbox: Inbox) -> Iterator[tuple[Group, Tensor, Tensor]]:
    """Pieces of groups with their own models (r, 1, width) and messages (r, c, width), block by block of columns."""
    groups = list(inbox.groups())
    width = min(WIDTH, own.shape[1])
    for columns in column_blocks(own.shape[1], width):
        for group in groups:
            for part in chunks(len(group.receivers), group.rows.shape[1] * width):
                piece = type(group)(*(index[part] for index in group))
                yield piece, gather(own, piece.receivers[:, None], columns), gather(inbox.bank, piece.rows, columns)
