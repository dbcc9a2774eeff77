"""Coordinate-wise trimmed means and medians of values that have weights."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels._blocks import TILE, chunks, column_blocks, gather, new_output, row_sums
from equipoise.kernels._received_messages import ReceivedMessages

# Sums of weights differ by rounding from the number that they stand for. At a multiple of the
# spacing of float64 near 1, several hundred weights are told apart from half of the total.
ROUNDING = 1e-12


def weighted_trimmed_mean(
    own: Tensor,
    inbox: ReceivedMessages,
    weights: Tensor,
    cut: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """(n, d) weighted mean of each coordinate without weight ``cut_i`` at both ends.

    A value that is cut in part counts with the rest of its weight. Own is a further value, with
    what ``weights (n, k)`` lack to 1. From ``cut_i = 1/2`` on it is the weighted median: the
    smallest value up to which at least half of the weight lies or, where this is exactly half, the
    mean of this value and the next.
    """
    result = new_output(own, *own.shape) if out is None else out
    rows = inbox.slots.where(inbox.present, 0)
    weights = weights.where(inbox.present, 0.0)
    rest = (1 - row_sums(weights)[:, None]).clamp_min(0.0)
    # A remainder by rounding is none: own must not be an extreme value that is looked at.
    shares = torch.cat([weights, rest.where(rest > ROUNDING, 0.0)], 1)
    shares = shares / row_sums(shares)[:, None]
    # The sorted values of a block, with their weights in float64, take about three tiles.
    for columns in column_blocks(own.shape[1], max(1, TILE // shares.shape[1])):
        width = columns.stop - columns.start
        for some in chunks(len(own), shares.shape[1] * width):
            mine = gather(own, torch.arange(len(own), device=own.device)[some, None], columns)
            # An inbox without messages has no row that unused slots could point to.
            received = gather(inbox.bank, rows[some], columns) if len(inbox.bank) else mine[:, :0]
            values = torch.cat([received, mine], 1)
            means = _trimmed(values, shares[some, :, None], cut[some, None])
            result[some, columns] = means.to(result.dtype)
    return result


def _trimmed(values: Tensor, shares: Tensor, cut: Tensor) -> Tensor:
    """(receivers, columns) the trimmed means of (receivers, values, columns)."""
    # A value without weight may be anything; it must not be sorted between the others.
    values = values.where(shares > 0, torch.inf)
    # Stable: the weights of equal values are added in the order of their slots.
    ranked, order = values.sort(dim=1, stable=True)
    weights = shares.expand_as(values).gather(1, order)
    end = weights.cumsum(1)
    start = end - weights
    cut = cut[:, None]
    # The part of each weight, from start to end, that lies between both cuts.
    kept = torch.minimum(end, 1 - cut) - torch.maximum(start, cut)
    # At the median, the cuts meet: one value, or two that touch the middle, are left.
    touching = ((end >= 0.5 - ROUNDING) & (start <= 0.5 + ROUNDING) & (weights > 0)).to(kept.dtype)
    kept = kept.clamp_min(0.0).where(cut < 0.5 - ROUNDING, touching)
    # Sums in ascending order: values without weight are last, and change no bit.
    kept = kept / kept.cumsum(1)[:, -1:]
    products = (ranked * kept.to(ranked.dtype)).where(kept > 0, 0.0)
    # Of finite values, rounding may push the mean beyond the largest number.
    largest = torch.finfo(ranked.dtype).max
    low = ranked[:, 0].clamp_max(-largest)
    high = ranked.where(kept > 0, -torch.inf).amax(1).clamp_min(largest)
    return products.cumsum(1)[:, -1].clamp(low, high)
