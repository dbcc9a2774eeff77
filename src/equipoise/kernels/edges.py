"""Distances and products along the edges of a sparse graph, at a cost linear in the number of edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.kernels.blocks import PRODUCT, SUM, block, chunks, column_blocks, gather, in_sums

if TYPE_CHECKING:
    from equipoise.inbox import Inbox

WIDTH = 65536  # elements of one call: long enough to hide its cost, short enough for the cache
SHORT = 8192  # models up to this length are served several at a time


def edge_distances(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) ``||own_i - message||`` in float64 from differences; 0 where no message is present."""
    squares = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    if own.shape[1] <= SHORT:
        for receivers, columns, mine, messages in _short_models(own, inbox):
            lengths: Tensor = torch.linalg.vector_norm(in_sums(messages.sub_(mine)), dim=3)
            squares[receivers, columns] = lengths.double().square_().sum(1)
        return squares.sqrt_()
    receivers, columns = inbox.present.nonzero(as_tuple=True)
    rows = inbox.slots[receivers, columns]
    for part in column_blocks(own.shape[1], WIDTH):
        squares[receivers, columns] += _squares(own, receivers, inbox.bank, rows, part)
    return squares.sqrt_()


def edge_products(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) scalar product of own and message in float64; 0 where no message is present."""
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    if own.shape[1] <= SHORT:
        for receivers, columns, mine, messages in _short_models(own, inbox):
            result[receivers, columns] = (messages @ mine.mT).double().squeeze(2)
        return result
    receivers, columns = inbox.present.nonzero(as_tuple=True)
    rows = inbox.slots[receivers, columns]
    for part in column_blocks(own.shape[1], PRODUCT):
        models, bank = block(own, part).unbind(), block(inbox.bank, part).unbind()
        pairs = zip(receivers.tolist(), rows.tolist(), strict=True)
        products = [torch.dot(models[receiver], bank[row]) for receiver, row in pairs]
        result[receivers, columns] += torch.stack(products)
    return result


def _short_models(own: Tensor, inbox: Inbox) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Receivers (r, 1) and columns (r, c) with own models (r, 1, d) and messages (r, c, d), several at a time."""
    for group in inbox.groups():
        for some in chunks(len(group.receivers), group.rows.shape[1] * own.shape[1]):
            receivers, whole = group.receivers[some, None], slice(None)
            messages = gather(inbox.bank, group.rows[some], whole)
            yield receivers, group.columns[some], gather(own, receivers, whole), messages


def _squares(own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor, part: slice) -> Tensor:
    """(edges,) squared distances within some columns, edge by edge on views, for long models: nothing is gathered."""
    mine, messages = block(own, part).unbind(), block(bank, part).unbind()
    width = part.stop - part.start
    padded = mine[0].new_zeros(-(-width // SUM), SUM)
    differences = padded.view(-1)[:width]
    lengths = padded.new_empty(len(rows), len(padded))
    for receiver, row, length in zip(receivers.tolist(), rows.tolist(), lengths.unbind(), strict=True):
        torch.sub(messages[row], mine[receiver], out=differences)
        torch.linalg.vector_norm(padded, dim=1, out=length)
    return lengths.double().square_().sum(1)
