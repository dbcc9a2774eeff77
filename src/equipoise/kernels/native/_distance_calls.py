"""Norms, squared distances and scalar products in C."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from equipoise.kernels.native._calls import (
    HALVES,
    Floats,
    addresses,
    array,
    compact,
    in_float32,
    pointer,
    summed_parts,
)
from equipoise.kernels.native._library import function, in_threads, tile_rows

# Pairs that are measured at a time, at least. Lanes of each take 64 bytes per thread: 8 MiB.
PAIRS = 1 << 17
# Rows of a matrix below which tiles would have too many rows that are measured for nothing.
FEW_ROWS = 8


def squared_norms(x: Tensor) -> Tensor:
    """(rows,) float64 ``|x|^2``."""
    if x.dtype in HALVES:
        parts_of_x = (squared_norms(part) for (part,), _ in in_float32([x]))
        return sum(parts_of_x, x.new_zeros(len(x), dtype=torch.float64))
    rows = addresses([x])
    call = function("norms", x)
    parts = summed_parts(x.shape[1])
    sums = np.zeros((len(parts), len(x)))
    targets = _row_pointers(sums)

    def run(part: int) -> int:
        return call(*array(rows), *parts[part], targets[part])

    in_threads(run, len(parts), x.numel())
    return _add_in_order(sums)


def exact_measure(
    matrices: Sequence[Tensor],
    left: Tensor,
    right: Tensor,
    before: Tensor,
    after: Tensor,
    *,
    differ: bool,
) -> Tensor:
    """(p,) ``|after * (before_0 * x[left] - before_1 * x[right])|^2``, computed in float64.

    Without ``differ``, the scalar products of the scaled rows. ``before`` is (p, 2), ``after``
    (p,). Each result depends on its own pair only, bit by bit.
    """
    x = matrices[0]
    if x.dtype in HALVES:
        parts_of_x = (
            exact_measure(part, left, right, before, after, differ=differ)
            for part, _ in in_float32(matrices)
        )
        return sum(parts_of_x, torch.zeros_like(after))
    rows = addresses(matrices)
    call = function("exact", x)
    parts = summed_parts(x.shape[1])
    inputs = [y.contiguous() for y in (left, right, before, after)]
    pairs = (inputs[0].data_ptr(), inputs[1].data_ptr(), len(left))
    scales = (inputs[2].data_ptr(), inputs[3].data_ptr())
    sums = np.zeros((len(parts), len(left)))
    targets = _row_pointers(sums)

    def run(part: int) -> int:
        return call(*array(rows), *pairs, *scales, differ, *parts[part], targets[part])

    in_threads(run, len(parts), len(left) * x.shape[1])
    return _add_in_order(sums)


def measure(
    matrices: Sequence[Tensor], left: Tensor, right: Tensor, *, differ: bool, all_rows: bool = True
) -> tuple[Tensor, Tensor]:
    """Squared distances or scalar products of pairs of rows, and norms, in one pass over all rows.

    Each measure depends on its two rows only, bit by bit. Fastest if equal ``left`` are next to
    each other. If most pairs of rows are wanted, all are measured, in tiles.

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
    if _is_between(matrices, left, right):
        return _measure_between(x, matrices[1], left, right - len(x), differ)
    rows = addresses(matrices)
    if not all_rows:
        rows, (left, right) = compact(matrices, left, right)
    count = len(rows)
    # From two thirds of all pairs on, measuring all of them in tiles is faster.
    if 3 * len(left) > count * count and len(left) > 6:
        low = torch.minimum(left, right)
        high = torch.maximum(left, right)
        return _measure_tiles(x, rows, low, high, differ)
    blocks = len(left) // PAIRS
    if blocks < 2:
        ends = (left.contiguous(), right.contiguous())
        return _measure_pairs(x, rows, (0, 0), ends, len(left), differ)
    chunks = zip(left.contiguous().chunk(blocks), right.contiguous().chunk(blocks), strict=True)
    found = [_measure_pairs(x, rows, (0, 0), ends, len(ends[0]), differ) for ends in chunks]
    measures, norms = zip(*found, strict=True)
    # Each block measures the norms of all rows, in the same order and so with the same result.
    return torch.cat(measures), norms[0]


def _is_between(matrices: Sequence[Tensor], left: Tensor, right: Tensor) -> bool:
    """Whether pairs are of one row of each of two matrices, and two thirds of all such pairs."""
    if len(matrices) != 2 or min(map(len, matrices)) < FEW_ROWS:
        return False
    first, second = map(len, matrices)
    if 3 * len(left) <= 2 * first * second:
        return False
    return int(left.max()) < first and int(right.min()) >= first


def _measure_between(
    a: Tensor, b: Tensor, left: Tensor, right: Tensor, differ: bool
) -> tuple[Tensor, Tensor]:
    """Measure all pairs of a row of ``a`` and a row of ``b``, and select the wanted ones."""
    tile = tile_rows()
    rows = addresses([a])
    # The rows of b start a tile of their own. Before it, the last row of a repeats.
    padded = torch.cat([rows, rows[-1:].expand(-len(a) % tile)])
    others = -(-len(b) // tile)
    measured = []
    norms = torch.empty(0, device="cpu")
    for part in padded.split(max(1, PAIRS // (tile * tile * others)) * tile):
        some = torch.cat([part, addresses([b])])
        amount = len(part) // tile
        pairs = tile * tile * amount * others
        found, sizes = _measure_pairs(a, some, (amount, amount), None, pairs, differ)
        measured.append(found)
        norms = torch.cat([norms, sizes[: len(part)]])
        of_b = sizes[len(part) :]
    place = ((left // tile * others + right // tile) * tile + left % tile) * tile + right % tile
    squares = torch.cat(measured)[place]
    return squares, torch.cat([norms[: len(a)], of_b])


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
        squares[start:end], sizes = _measure_pairs(x, some, (amount, 0), None, end - start, differ)
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
    tiles: tuple[int, int],
    ends: tuple[Tensor, Tensor] | None,
    pairs: int,
    differ: bool,
) -> tuple[Tensor, Tensor]:
    """(pairs,) measures of the given pairs, or of some tiles, and (rows,) squared norms.

    ``tiles`` are how many tiles are measured against all tiles from their own on, or from which one
    on.
    """
    parts = summed_parts(x.shape[1])
    call = function("measure", x)
    sums = np.zeros((len(parts), pairs + len(rows)))
    targets = _row_pointers(sums)
    norms = pairs * sums.itemsize  # measures of pairs first, then squared norms of rows
    pointers = (None, None) if ends is None else (ends[0].data_ptr(), ends[1].data_ptr())
    arguments = (*array(rows), *tiles, *pointers, pairs, differ)

    def run(part: int) -> int:
        # Of these columns alone.
        return call(*arguments, *parts[part], targets[part], targets[part] + norms)

    in_threads(run, len(parts), sums.shape[1] * x.shape[1])
    total = _add_in_order(sums)
    return total[:pairs], total[pairs:]


def _row_pointers(sums: Floats) -> range:
    """The addresses of the rows of a matrix."""
    start = pointer(sums)
    step = max(sums.shape[1], 1) * sums.itemsize
    return range(start, start + len(sums) * step, step)


def _add_in_order(sums: Floats) -> Tensor:
    """The sum of all rows in their order; that of `sum` depends on the number of columns."""
    total = np.zeros(sums.shape[1]) if not len(sums) else sums[0]
    for part in sums[1:]:
        total += part
    return torch.from_numpy(total)
