"""Distances and products along the edges of a sparse graph, at a cost linear in the number of edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels._blocks import SUM, block, chunks, column_blocks, gather, in_sums
from equipoise.kernels._received import Received

WIDTH = 65536  # elements of one call: long enough to hide its cost, short enough for the cache
SHORT = 8192  # models up to this length are served several at a time


def edge_distances(own: Tensor, inbox: Received) -> Tensor:
    """(n, k) ``||own_i - message||`` in float64 from differences; 0 where no message is present."""
    if own.shape[1] > SHORT:
        return _long_models(own, inbox, DISTANCES).sqrt_()
    squares = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    for receivers, columns, mine, messages in _short_models(own, inbox):
        lengths: Tensor = torch.linalg.vector_norm(in_sums(messages.sub_(mine)), dim=3)
        squares[receivers, columns] = lengths.double().square_().sum(1)
    return squares.sqrt_()


def edge_products(own: Tensor, inbox: Received) -> Tensor:
    """(n, k) scalar product of own and message in float64; 0 where no message is present."""
    if own.shape[1] > SHORT:
        return _long_models(own, inbox, PRODUCTS)
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    for receivers, columns, mine, messages in _short_models(own, inbox):
        result[receivers, columns] = (messages @ mine.mT).double().squeeze(2)
    return result


def _short_models(own: Tensor, inbox: Received) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Receivers (r, 1) and columns (r, c) with own models (r, 1, d) and messages (r, c, d), several at a time."""
    for group in inbox._arrived.groups:
        for some in chunks(len(group.receivers), group.rows.shape[1] * own.shape[1]):
            receivers, whole = group.receivers[some, None], slice(None)
            messages = gather(inbox.bank, group.rows[some], whole)
            yield receivers, group.columns[some], gather(own, receivers, whole), messages


def pair_distances(own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor) -> Tensor:
    """(p,) ``||own[receivers] - bank[rows]||`` in float64 from differences, for a few pairs of long models."""
    return _over_pairs(own, receivers, bank, rows, DISTANCES).sqrt_()


class Measure(NamedTuple):
    """A sum over columns: of ``term(total(pair(message, own)))``, totals taken over `SUM` columns each."""

    pair: Callable[..., Tensor]
    total: Callable[..., Tensor]
    term: Callable[[Tensor], Tensor]


DISTANCES = Measure(torch.sub, torch.linalg.vector_norm, torch.square)
PRODUCTS = Measure(torch.mul, torch.sum, torch.positive)


def _long_models(own: Tensor, inbox: Received, measure: Measure) -> Tensor:
    """(n, k) a measure along every edge."""
    receivers, columns, rows = inbox._arrived.edges
    sums = _over_pairs(own, receivers, inbox.bank, rows, measure)
    result = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
    return result.index_put_((receivers, columns), sums)


def _over_pairs(
    own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor, measure: Measure
) -> Tensor:
    sums = torch.zeros(len(rows), dtype=torch.float64, device=own.device)
    for part in column_blocks(own.shape[1], WIDTH):
        totals = _totals(block(own, part), receivers, block(bank, part), rows, measure)
        sums += measure.term(totals.double()).sum(1)
    return sums


def _totals(own: Tensor, receivers: Tensor, bank: Tensor, rows: Tensor, measure: Measure) -> Tensor:
    """(edges, parts) ``total(pair(message, own))``, edge by edge on views: nothing is gathered."""
    mine, messages = own.unbind(), bank.unbind()
    padded = own.new_zeros(-(-own.shape[1] // SUM), SUM)
    pairs = padded.view(-1)[: own.shape[1]]
    totals = own.new_empty(len(rows), len(padded))
    for receiver, row, result in zip(
        receivers.tolist(), rows.tolist(), totals.unbind(), strict=True
    ):
        measure.pair(messages[row], mine[receiver], out=pairs)
        measure.total(padded, dim=1, out=result)
    return totals
