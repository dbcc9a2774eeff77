"""Distances and products along the edges of a sparse graph, in time linear in their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels._blocks import SUM, block, chunks, column_blocks, gather, in_sums
from equipoise.kernels._received_messages import ReceivedMessages

# Columns that are processed at a time: 256 KiB of each row hide the overhead of a call, and a pair
# of them stays in a second-level cache.
EDGE_COLUMNS = 65536
# Models up to this length are gathered, and several processed at a time. For longer ones, copying
# takes longer than the calls that it saves.
SHORT = 8192


def edge_distances(own: Tensor, inbox: ReceivedMessages) -> Tensor:
    """(n, k) ``||own_i - message||`` in float64 from differences; 0 where no message is present."""
    if own.shape[1] > SHORT:
        return _long_models(own, inbox, SQUARED_DISTANCES).sqrt_()
    squares = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    for receivers, columns, mine, messages in _short_models(own, inbox):
        # (r, parts, c) norms of the parts of each difference; the parts are added in float64.
        lengths: Tensor = torch.linalg.vector_norm(in_sums(messages.sub_(mine)), dim=3)
        squares[receivers, columns] = lengths.double().square_().sum(1)
    return squares.sqrt_()


def edge_products(own: Tensor, inbox: ReceivedMessages) -> Tensor:
    """(n, k) scalar product of own and message in float64; 0 where no message is present."""
    if own.shape[1] > SHORT:
        return _long_models(own, inbox, SCALAR_PRODUCTS)
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    for receivers, columns, mine, messages in _short_models(own, inbox):
        result[receivers, columns] = (messages @ mine.mT).double().squeeze(2)
    return result


def _short_models(
    own: Tensor, inbox: ReceivedMessages
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Receivers (r, 1), columns (r, c), own models (r, 1, d) and messages (r, c, d)."""
    for group in inbox._arrived.groups:
        for some in chunks(len(group.receivers), group.rows.shape[1] * own.shape[1]):
            receivers = group.receivers[some, None]
            mine = gather(own, receivers, slice(None))
            messages = gather(inbox.bank, group.rows[some], slice(None))
            yield receivers, group.columns[some], mine, messages


def pair_distances(own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor) -> Tensor:
    """(p,) ``||own[receivers] - bank[rows]||`` in float64, for a few pairs of long models."""
    return _over_pairs(own, receivers, bank, rows, SQUARED_DISTANCES).sqrt_()


class Measure(NamedTuple):
    """A sum of ``term(total(pair(message, own)))``, each total taken over `SUM` columns."""

    pair: Callable[..., Tensor]
    total: Callable[..., Tensor]
    term: Callable[[Tensor], Tensor]


# A norm is squared in float64: squares of small differences could vanish in float32.
SQUARED_DISTANCES = Measure(torch.sub, torch.linalg.vector_norm, torch.square)
SCALAR_PRODUCTS = Measure(torch.mul, torch.sum, torch.positive)


def _long_models(own: Tensor, inbox: ReceivedMessages, measure: Measure) -> Tensor:
    """(n, k) a measure along every edge."""
    receivers, columns, rows = inbox._arrived.edges
    sums = _over_pairs(own, receivers, inbox.bank, rows, measure)
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    return result.index_put_((receivers, columns), sums)


def _over_pairs(
    own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor, measure: Measure
) -> Tensor:
    sums = torch.zeros(len(rows), dtype=torch.float64, device=own.device)
    for part in column_blocks(own.shape[1], EDGE_COLUMNS):
        totals = _totals(block(own, part), receivers, block(bank, part), rows, measure)
        sums += measure.term(totals.double()).sum(1)
    return sums


def _totals(own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor, measure: Measure) -> Tensor:
    """(edges, parts) ``total(pair(message, own))``, edge by edge on views."""
    mine = own.unbind()
    messages = bank.unbind()
    # One buffer for all edges. Its end beyond the last column stays 0, and adds nothing.
    padded = own.new_zeros(-(-own.shape[1] // SUM), SUM)
    pairs = padded.view(-1)[: own.shape[1]]
    totals = own.new_empty(len(rows), len(padded))
    for receiver, row, result in zip(
        receivers.tolist(), rows.tolist(), totals.unbind(), strict=True
    ):
        measure.pair(messages[row], mine[receiver], out=pairs)
        measure.total(padded, dim=1, out=result)
    return totals
