"""Norms, squared distances and scalar products in C."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.kernels.native._calls import (
    HALVES,
    addresses,
    array,
    compact,
    in_float32,
    summed_parts,
)
from equipoise.kernels.native._library import function, in_threads, limits, tile_rows

# Pairs that are measured at a time, at least. Lanes of each take 64 bytes per thread: 8 MiB.
PAIRS = 1 << 17


def squared_norms(x: Tensor) -> Tensor:
    """(rows,) float64 ``|x|^2``."""
    if x.dtype in HALVES:
        parts_of_x = (squared_norms(part) for (part,), _ in in_float32([x]))
        return sum(parts_of_x, x.new_zeros(len(x), dtype=torch.float64))
    rows = addresses([x])
    call = function("norms", x)
    parts = summed_parts(x.shape[1])
    sums = torch.zeros(len(parts), len(x), dtype=torch.float64, device="cpu")

    def run(part: int) -> int:
        return call(*array(rows), *parts[part], sums[part].data_ptr())

    in_threads(run, len(parts), x.numel())
    return _add_in_order(sums)


def measure(
    matrices: Sequence[Tensor], left: Tensor, right: Tensor, *, differ: bool, all_rows: bool = True
) -> tuple[Tensor, Tensor]:
    """Squared distances or scalar products of pairs of rows, and norms, in one pass over all rows.

    Fastest if equal ``left`` are next to each other. If most pairs of rows are wanted, all are
    measured, in tiles.

    Args:
        matrices: Matrices whose rows are numbered consecutively.
        left: (p,) First row of each pair.
        right: (p,) Second row of each pair.
        differ: Measure ``|x[left] - x[right]|^2``, otherwise scalar products.
        all_rows: Read all rows, otherwise only those that occur in a pair; norms are of these.

    Returns:
        (p,) float64 measures and (rows,) float64 ``|x|^2``.
    """
    x = matrices[0]
    if x.dtype in HALVES:
        found = [
            measure(parts, left, right, differ=differ, all_rows=all_rows)
            for parts, _ in in_float32(matrices)
        ]
        measures, norms = zip(*found, strict=True)
        return sum(measures), sum(norms)
    rows = addresses(matrices)
    if not all_rows:
        rows, (left, right) = compact(matrices, left, right)
    count = len(rows)
    # From two thirds of all pairs on, measuring all of them in tiles is faster.
    if 3 * len(left) > count * count and len(left) > 6:
        low = torch.minimum(left, right)
        high = torch.maximum(left, right)
        return _measure_tiles(x, rows, low, high, differ)
    # The number of blocks is rounded down, so that each of several blocks has more than
    # clique_pairs pairs per row: C then uses the same strips, and sums in the same order.
    blocks = max(1, len(left) // max(PAIRS, limits().clique_pairs * count + 1))
    chunks = zip(left.contiguous().chunk(blocks), right.contiguous().chunk(blocks), strict=True)
    found = [_measure_pairs(x, rows, 0, ends, len(ends[0]), differ) for ends in chunks]
    measures, norms = zip(*found, strict=True)
    # Each block measures the norms of all rows, in the same order and so with the same result.
    return measures[0] if blocks == 1 else torch.cat(measures), norms[0]


def _measure_tiles(
    x: Tensor, rows: Tensor, low: Tensor, high: Tensor, differ: bool
) -> tuple[Tensor, Tensor]:
    """Measure all pairs of rows, tile by tile of the upper triangle, and select the wanted ones."""
    tile = tile_rows()
    size = -(-len(rows) // tile)
    tiles = size * (size + 1) // 2
    squares = torch.empty(tile * tile * tiles, dtype=torch.float64, device="cpu")
    norms = torch.empty(0, device="cpu")
    first = 0
    end = 0
    while first < size:  # some rows of tiles at a time, each with all tiles from its own on
        amount = min(size - first, max(1, PAIRS // (tile * tile * (size - first))))
        start = end
        end += tile * tile * (amount * (size - first) - amount * (amount - 1) // 2)
        some = rows[first * tile :]
        squares[start:end], sizes = _measure_pairs(x, some, amount, None, end - start, differ)
        if first == 0:
            norms = sizes
        first += amount
    # In place: with 1,200 rows each temporary would have 720,000 elements.
    i = low // tile
    place = i * size - i * (i + 1) // 2  # tiles before this row of tiles, less its own number
    place += high // tile
    place *= tile
    place += low % tile
    place *= tile
    place += high % tile
    return squares[place], norms


def _measure_pairs(
    x: Tensor,
    rows: Tensor,
    tiles: int,
    ends: tuple[Tensor, Tensor] | None,
    pairs: int,
    differ: bool,
) -> tuple[Tensor, Tensor]:
    """(pairs,) measures of the given pairs, or of some rows of tiles, and (rows,) squared norms."""
    parts = summed_parts(x.shape[1])
    call = function("measure", x)
    sums = torch.zeros(len(parts), pairs + len(rows), dtype=torch.float64, device="cpu")
    pointers = (None, None) if ends is None else (ends[0].data_ptr(), ends[1].data_ptr())

    def run(part: int) -> int:
        # Measures of pairs first, then squared norms of rows, both of these columns alone.
        out = sums[part]
        results = (out.data_ptr(), out[pairs:].data_ptr())
        return call(*array(rows), tiles, *pointers, pairs, differ, *parts[part], *results)

    in_threads(run, len(parts), (pairs + len(rows)) * x.shape[1])
    total = _add_in_order(sums)
    return total[:pairs], total[pairs:]


def _add_in_order(sums: Tensor) -> Tensor:
    """The sum of all rows in their order; that of `Tensor.sum` depends on the number of columns."""
    total = sums[0] if len(sums) else sums.new_zeros(sums.shape[1])
    for part in sums[1:]:
        total += part
    return total
