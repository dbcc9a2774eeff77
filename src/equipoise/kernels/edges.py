"""Distances and products along the edges of a sparse graph, at a cost linear in the number of edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.kernels.blocks import SUM, block, chunks, column_blocks, compute_dtype, gather, in_sums

if TYPE_CHECKING:
    from equipoise.inbox import Inbox

WIDTH = 65536  # elements of one call: long enough to hide its cost, short enough for the cache
SHORT = 8192  # models up to this length are served several at a time

Pair = Callable[..., Tensor]  # of message and own
Total = Callable[..., Tensor]  # of short pieces of these


def edge_distances(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) ``||own_i - message||`` in float64 from differences; 0 where no message is present."""
    return _along_edges(own, inbox, torch.sub, torch.linalg.vector_norm, Tensor.square).sqrt_()


def edge_products(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) scalar product of own and message in float64; 0 where no message is present."""
    return _along_edges(own, inbox, torch.mul, torch.sum, Tensor.double)


def _along_edges(own: Tensor, inbox: Inbox, pair: Pair, total: Total, term: Callable[[Tensor], Tensor]) -> Tensor:
    """(n, k) sum over all columns of ``term(total(pair(message, own)))``, totals taken over `SUM` columns each."""
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    if own.shape[1] <= SHORT:
        for group in inbox.groups():
            for some in chunks(len(group.receivers), group.rows.shape[1] * own.shape[1]):
                receivers, columns = group.receivers[some, None], group.columns[some]
                pairs = pair(gather(inbox.bank, group.rows[some], slice(None)), gather(own, receivers, slice(None)))
                result[receivers, columns] = term(total(in_sums(pairs), dim=-1).double()).sum(1)
        return result
    receivers, columns = inbox.present.nonzero(as_tuple=True)
    rows = inbox.slots[receivers, columns]
    for part in column_blocks(own.shape[1], WIDTH):
        result[receivers, columns] += term(_totals(own, receivers, inbox.bank, rows, part, pair, total)).sum(1)
    return result


def _totals(
    own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor, part: slice, pair: Pair, total: Total
) -> Tensor:
    """(edges, pieces) totals in float64, edge by edge on views, for long models: nothing is gathered."""
    mine, messages = block(own, part).unbind(), block(bank, part).unbind()
    width = part.stop - part.start
    padded = torch.zeros(-(-width // SUM), SUM, dtype=compute_dtype(own), device=own.device)
    pairs = padded.view(-1)[:width]
    totals = padded.new_empty(len(rows), len(padded))
    for receiver, row, result in zip(receivers.tolist(), rows.tolist(), totals.unbind(), strict=True):
        pair(messages[row], mine[receiver], out=pairs)
        total(padded, dim=1, out=result)
    return totals.double()
