"""Trimmed means, and means around the median, in C."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from equipoise.kernels._selection_networks import Network, sorting
from equipoise.kernels.native._calls import (
    HALVES,
    addresses,
    array,
    compact,
    counted,
    in_float32,
    is_streamed,
    over_columns,
)
from equipoise.kernels.native._library import function, limits


def trimmed_means(
    matrices: Sequence[Tensor],
    rows: Tensor,
    counts: Tensor,
    trims: Tensor,
    out: Tensor,
    receivers: Tensor,
) -> bool:
    """``out[receivers[r]]``: mean without the ``trims[r]`` smallest and largest values.

    The values of receiver r are the next ``counts[r]`` of ``rows``. Receivers of more than
    ``limits().max_compiled`` rows must all have the same number of rows, and drop the same number.
    Returns whether all rows are finite.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out, receivers)
        places = counted(len(receivers))
        # A list, not a generator: after a value that is not finite, all blocks are still written.
        found = [trimmed_means(part, rows, counts, trims, mean, places) for part, mean in blocks]
        return all(found)
    used, (edges,) = compact(matrices, rows)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    trims = trims.contiguous()
    call = function("middle", out)
    # C has compiled networks for few values. Beyond these, one list of steps serves all receivers.
    # Beyond max_values it is empty, and C reports that the limit is exceeded.
    largest = int(counts.argmax())
    count = int(counts[largest])
    listed = limits().max_compiled < count <= limits().max_values
    # It sorts, so that the mean does not depend on the order of the rows.
    network = sorting(count, int(trims[largest])) if listed else Network((), ())
    steps, kept = _encoded(network)
    results = addresses([out])[receivers]

    def run(start: int, stop: int) -> int:
        lists = (starts.data_ptr(), edges.data_ptr(), *array(trims))
        selection = (*array(steps), *array(kept))
        targets = results.data_ptr()
        return call(*array(used), *lists, *selection, targets, start, stop, is_streamed(out))

    # The cost per column only decides whether threads pay: a value takes part in several steps.
    return over_columns(run, out.shape[1], rows.numel() * 4)


def trimmed_means_but_one(
    matrices: Sequence[Tensor],
    rows: Tensor,
    left_out: Tensor,
    trim: int,
    out: Tensor,
    receivers: Tensor,
) -> bool:
    """``out[receivers[r]]``: trimmed mean of ``rows`` without ``rows[left_out[r]]``.

    Returns whether all rows are finite.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out, receivers)
        places = counted(len(receivers))
        # A list here, too, so that all blocks are written.
        return all(
            [
                trimmed_means_but_one(part, rows, left_out, trim, means, places)
                for part, means in blocks
            ]
        )
    # All rows are used, and `left_out` are places among them, so nothing has to be renumbered.
    used = addresses(matrices)[rows]
    left_out = left_out.contiguous()
    call = function("middle_but_one", out)
    listed = len(rows) <= limits().max_values
    steps, kept = _encoded(sorting(len(rows), trim) if listed else Network((), ()))
    results = addresses([out])[receivers]

    def run(start: int, stop: int) -> int:
        selection = (*array(left_out), trim, *array(steps), *array(kept))
        targets = results.data_ptr()
        return call(*array(used), *selection, targets, start, stop, is_streamed(out))

    return over_columns(run, out.shape[1], len(steps) + len(receivers))


def means_around_median(
    matrices: Sequence[Tensor], rows: Tensor, amount: int, out: Tensor, receivers: Tensor
) -> bool:
    """``out[receivers[r]]``: mean of the ``amount`` values of ``rows[r]`` nearest to their median.

    Returns False if a value may not be below `largest_around_median`. Then the means of receivers
    of such values are undefined.
    """
    if out.dtype in HALVES:
        blocks = in_float32(matrices, out, receivers)
        places = counted(len(receivers))
        # A list here, too: other receivers than those of large values keep their means.
        return all([means_around_median(part, rows, amount, mean, places) for part, mean in blocks])
    used, (edges,) = compact(matrices, rows.flatten())
    count = rows.shape[1]
    call = function("nearest", out)
    steps, kept = _encoded(sorting(count))
    results = addresses([out])[receivers]

    def run(start: int, stop: int) -> int:
        values = (edges.data_ptr(), count, len(receivers), amount)
        selection = (*array(steps), *array(kept))
        targets = results.data_ptr()
        return call(*array(used), *values, *selection, targets, start, stop, is_streamed(out))

    return over_columns(run, out.shape[1], rows.numel() * 8)


def largest_around_median(dtype: torch.dtype) -> float:
    """The magnitude that values must stay below, so that no sum of two differences overflows."""
    return torch.finfo(torch.float32 if dtype in HALVES else dtype).max / 8


@lru_cache(maxsize=256)
def _encoded(network: Network) -> tuple[Tensor, Tensor]:
    """Steps (i, j, sides), and the kept places, as C reads them."""
    # Sides as in csrc/order_statistics.h: 1 keeps the smaller value, 2 the larger one, 3 both.
    steps = [(step.i, step.j, step.low + 2 * step.high) for step in network.steps]
    encoded = torch.tensor(steps, dtype=torch.int32, device="cpu").reshape(-1, 3)
    return encoded, torch.tensor(network.kept, dtype=torch.int32, device="cpu")
