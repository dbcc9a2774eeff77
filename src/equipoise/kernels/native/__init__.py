"""The kernels in C, where there is a library of them: for models on a CPU.

They are used if there was a compiler when equipoise was installed, unless the environment variable
``EQUIPOISE_NATIVE`` is 0; ``equipoise.native_available`` tells. Otherwise everything works in torch, with the same
results but for rounding. float16 and bfloat16 pass through float32, some columns at a time.

Functions take several matrices, whose rows are counted through: row ``len(a) + i`` of ``(a, b)`` is ``b[i]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from equipoise.kernels._blocks import column_blocks
from equipoise.kernels._selection_networks import Network, middle, sorting
from equipoise.kernels.native._library import ALONE, SUFFIXES, function, in_threads, tile_rows
from equipoise.kernels.native._library import available as available
from equipoise.kernels.native._library import disabled as disabled

HALVES = (torch.float16, torch.bfloat16)
LARGEST = 512  # values in one network
COMPILED = 32  # values that need no list of steps
DENSE = 0.75  # of all weights that are not 0, from which on they are a matrix
ABREAST = 6  # receivers that share a row then, at most
STRIP = 256  # columns that the library combines at a time, at most
PARTS = 16  # of the columns that are summed apart, so that sums do not depend on the number of threads
FLUSH = 4096  # columns of a part are a multiple of this
CLIQUES = 8  # times as many pairs as rows, beyond which the library packs rows for pairs that are next to each other
PAIRS = 1 << 17  # that are measured at a time, at least: sums of each take 64 bytes per thread
BLOCK = 1 << 20  # elements of half precision that are converted at a time
CACHE = 1 << 23  # bytes of a result beyond which it is written past the caches


def serves(*matrices: Tensor) -> bool:
    """Whether the library can take these matrices: rows of contiguous floats in memory, all of one type."""
    return (
        available()
        and len({x.dtype for x in matrices}) == 1
        and all(x.device.type == "cpu" and (x.shape[1] < 2 or x.stride(1) == 1) and not x.is_neg() for x in matrices)
        and (matrices[0].dtype in SUFFIXES or matrices[0].dtype in HALVES)
    )


# Norms, distances and scalar products.


def squared_norms(x: Tensor) -> Tensor:
    """(rows,) float64 ``|x|^2``."""
    if x.dtype in HALVES:
        return sum((squared_norms(part) for (part,), _ in _in_float32([x])), x.new_zeros(len(x), dtype=torch.float64))
    rows, call = _addresses([x]), function("norms", x)
    parts = _parts(x.shape[1])
    sums = torch.zeros(len(parts), len(x), dtype=torch.float64, device="cpu")

    def run(part: int) -> int:
        return call(*_array(rows), *parts[part], sums[part].data_ptr())

    in_threads(run, len(parts), x.numel())
    return _in_order(sums)


def measure(
    matrices: Sequence[Tensor], left: Tensor, right: Tensor, *, differ: bool, all_rows: bool = True
) -> tuple[Tensor, Tensor]:
    """(p,) float64 ``|x[left] - x[right]|^2``, or scalar products, and (rows,) ``|x|^2``, in one pass over all rows.

    Fastest if equal ``left`` are next to each other; and where most pairs of rows are asked for, all are measured, in
    tiles. Without ``all_rows`` only those are read that occur in a pair, and norms are of these.
    """
    x = matrices[0]
    if x.dtype in HALVES:
        found = [measure(parts, left, right, differ=differ, all_rows=all_rows) for parts, _ in _in_float32(matrices)]
        return sum(pairs for pairs, _ in found), sum(norms for _, norms in found)  # type: ignore[return-value]
    rows = _addresses(matrices)
    if not all_rows:
        rows, (left, right) = _compact(matrices, left, right)
    count = len(rows)
    if 3 * len(left) > count * count and len(left) > 6:
        return _in_tiles(x, rows, torch.minimum(left, right), torch.maximum(left, right), differ)
    # The number of blocks is rounded down: one block alone is as long as it may be, or all are at least that long.
    blocks = max(1, len(left) // max(PAIRS, CLIQUES * count + 1))
    measures: list[Tensor] = []
    norms = torch.empty(0, device="cpu")
    for number, (some, others) in enumerate(zip(left.chunk(blocks), right.chunk(blocks), strict=True)):
        squares, sizes = _measured(x, rows, 0, (some.contiguous(), others.contiguous()), len(some), differ)
        measures.append(squares)
        if number == 0:
            norms = sizes
    return measures[0] if len(measures) == 1 else torch.cat(measures), norms


def _in_tiles(x: Tensor, rows: Tensor, low: Tensor, high: Tensor, differ: bool) -> tuple[Tensor, Tensor]:
    """All pairs of rows are measured, tile by tile of the upper triangle, and those that were asked for picked out."""
    tile = tile_rows()
    size = -(-len(rows) // tile)
    squares = torch.empty(tile * tile * (size * (size + 1) // 2), dtype=torch.float64, device="cpu")
    norms = torch.empty(0, device="cpu")
    first = 0
    end = 0
    while first < size:  # some rows of tiles at a time, with all tiles from theirs on
        amount = min(size - first, max(1, PAIRS // (tile * tile * (size - first))))
        start = end
        end += tile * tile * (amount * (size - first) - amount * (amount - 1) // 2)
        squares[start:end], sizes = _measured(x, rows[first * tile :], amount, None, end - start, differ)
        if first == 0:
            norms = sizes
        first += amount
    i = low // tile
    place = i * size - i * (i + 1) // 2  # tiles before those of this row of tiles, less its own number
    place += high // tile
    place *= tile
    place += low % tile
    place *= tile
    place += high % tile
    return squares[place], norms


def _measured(
    x: Tensor, rows: Tensor, tiles: int, ends: tuple[Tensor, Tensor] | None, pairs: int, differ: bool
) -> tuple[Tensor, Tensor]:
    """(pairs,) measures of the pairs with these ends, or of so many rows of tiles, and (rows,) squared norms."""
    parts, call = _parts(x.shape[1]), function("measure", x)
    sums = torch.zeros(len(parts), pairs + len(rows), dtype=torch.float64, device="cpu")
    pointers = (None, None) if ends is None else (ends[0].data_ptr(), ends[1].data_ptr())

    def run(part: int) -> int:
        out = sums[part]
        sums_of = (out.data_ptr(), out[pairs:].data_ptr())
        return call(*_array(rows), tiles, *pointers, pairs, differ, *parts[part], *sums_of)

    in_threads(run, len(parts), (pairs + len(rows)) * x.shape[1])
    total = _in_order(sums)
    return total[:pairs], total[pairs:]


def _in_order(sums: Tensor) -> Tensor:
    """The sum of all rows, one after the other: in ``Tensor.sum`` the order depends on how many columns there are."""
    total = sums[0] if len(sums) else sums.new_zeros(sums.shape[1])
    for part in sums[1:]:
        total += part
    return total


# Weighted sums.


def weighted_sums(matrices: Sequence[Tensor], receivers: Tensor, rows: Tensor, weight: Tensor, out: Tensor) -> bool:
    """``out`` (n, d): sums of weighted rows, one per edge, sorted by receiver; whether all of them are finite."""
    if out.dtype in HALVES:
        blocks = _in_float32(matrices, out)
        return all([weighted_sums(parts, receivers, rows, weight, result) for parts, result in blocks])
    used, (rows,) = _compact(matrices, rows)
    weight = weight.to(out.dtype).contiguous()
    dense = len(rows) > DENSE * len(out) * len(used) and len(out) >= ABREAST
    if dense and _dense_sums(used, receivers, rows, weight, out):
        return True  # else what somebody does not even hear may have spoilt it
    starts, call = torch.searchsorted(receivers.contiguous(), _counted(len(out) + 1)), function("sums", out)
    edges = (starts.data_ptr(), rows.data_ptr(), weight.data_ptr())

    def run(start: int, stop: int, results: Tensor) -> int:
        return call(*_array(used), *edges, len(out), results.data_ptr(), start, stop, _streams(out))

    return _over_columns(run, out, None, len(rows) + len(out))


def _dense_sums(used: Tensor, receivers: Tensor, rows: Tensor, weight: Tensor, out: Tensor) -> bool:
    """The same where almost everybody hears almost every row: a product with a matrix of weights."""
    matrix, call = out.new_zeros(len(out), len(used)), function("dense_sums", out)
    matrix.index_put_((receivers, rows), weight, accumulate=True)

    def run(start: int, stop: int, results: Tensor) -> int:
        return call(*_array(used), *_array(matrix), results.data_ptr(), start, stop, _streams(out))

    return _over_columns(run, out, None, len(rows) + len(out))


def sums_but_one(
    matrices: Sequence[Tensor], rows: Tensor, left_out: Tensor, share: float, out: Tensor, receivers: Tensor
) -> bool:
    """``out[receivers]``: ``share`` times the sum of ``rows``, without one of them; whether all are finite.

    ``left_out`` are places in ``rows``, -1 for a receiver that leaves none out.
    """
    if out.dtype in HALVES:
        blocks, places = _in_float32(matrices, out, receivers), _counted(len(receivers))
        return all([sums_but_one(parts, rows, left_out, share, result, places) for parts, result in blocks])
    used, call = _addresses(matrices)[rows], function("sums_but_one", out)
    order = left_out.argsort(descending=True)
    left_out, receivers = left_out[order], receivers[order]

    def run(start: int, stop: int, results: Tensor) -> int:
        return call(*_array(used), share, *_array(left_out), results.data_ptr(), start, stop, _streams(out))

    return _over_columns(run, out, receivers, 2 * len(rows) + len(receivers))


# Order statistics.


def trimmed_means(
    matrices: Sequence[Tensor], rows: Tensor, counts: Tensor, trims: Tensor, out: Tensor, receivers: Tensor
) -> bool:
    """``out[receivers[r]]``: mean of the next ``counts[r]`` of ``rows``, without the ``trims[r]`` smallest and largest.

    Receivers of more than `COMPILED` rows must all have equally many, and trim equally many. Returns whether all rows
    are finite.
    """
    if out.dtype in HALVES:
        blocks, places = _in_float32(matrices, out, receivers), _counted(len(receivers))
        return all([trimmed_means(parts, rows, counts, trims, result, places) for parts, result in blocks])
    used, (heard,) = _compact(matrices, rows)
    starts, trims, call = _starts(counts), trims.contiguous(), function("middle", out)
    largest = int(counts.argmax())
    count, trim = int(counts[largest]), int(trims[largest])
    steps, kept = _encoded(middle(count, trim) if count > COMPILED else Network((), ()))

    def run(start: int, stop: int, results: Tensor) -> int:
        which = (starts.data_ptr(), heard.data_ptr(), *_array(trims), *_array(steps), kept.data_ptr())
        return call(*_array(used), *which, results.data_ptr(), start, stop, _streams(out))

    return _over_columns(run, out, receivers, rows.numel() * 4)


def _starts(counts: Tensor) -> Tensor:
    """Where each of some lists starts, and where the last one ends, if they follow each other."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def trimmed_means_but_one(
    matrices: Sequence[Tensor], rows: Tensor, left_out: Tensor, trim: int, out: Tensor, receivers: Tensor
) -> bool:
    """``out[receivers[r]]``: trimmed mean of ``rows`` without ``rows[left_out[r]]``; whether all rows are finite."""
    if out.dtype in HALVES:
        blocks, places = _in_float32(matrices, out, receivers), _counted(len(receivers))
        return all([trimmed_means_but_one(parts, rows, left_out, trim, result, places) for parts, result in blocks])
    used, left_out, call = _addresses(matrices)[rows], left_out.contiguous(), function("middle_but_one", out)
    steps, kept = _encoded(sorting(len(rows), trim))
    network = (*_array(steps), kept.data_ptr())

    def run(start: int, stop: int, results: Tensor) -> int:
        which = (*_array(left_out), trim, *network)
        return call(*_array(used), *which, results.data_ptr(), start, stop, _streams(out))

    return _over_columns(run, out, receivers, len(steps) + len(receivers))


@lru_cache(maxsize=256)
def _encoded(network: Network) -> tuple[Tensor, Tensor]:
    steps = [(step.i, step.j, step.low + 2 * step.high) for step in network.steps]
    return _numbers(steps).reshape(-1, 3), _numbers(network.kept)


# How the library is called: with what is on a CPU, whatever torch's default device is.


def _counted(count: int) -> Tensor:
    return torch.arange(count, device="cpu")


def _numbers(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cpu")


def _array(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), len(x)


def _addresses(matrices: Sequence[Tensor]) -> Tensor:
    """Where the rows of some matrices start in memory."""
    starts = [x.data_ptr() + _counted(len(x)) * (x.stride(0) * x.element_size()) for x in matrices]
    return starts[0] if len(starts) == 1 else torch.cat(starts)


def _compact(matrices: Sequence[Tensor], *indices: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Where the rows are that the indices name, and the indices as places among these: nothing else is packed."""
    used = torch.zeros(sum(map(len, matrices)), dtype=torch.bool, device="cpu")
    for index in indices:
        used[index] = True
    if used.all():
        return _addresses(matrices), [index.contiguous() for index in indices]
    place = used.cumsum(0) - 1
    return _addresses(matrices)[used], [place[index].contiguous() for index in indices]


def _streams(out: Tensor) -> bool:
    return out.nbytes > CACHE


def _in_float32(
    matrices: Sequence[Tensor], out: Tensor | None = None, receivers: Tensor | None = None
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Blocks of columns of all matrices in float32, and a tensor for their results, which go to ``out`` afterwards."""
    # Blocks are those of the longest matrix alone, so that its norms are the same sums beside others.
    d, heard = matrices[0].shape[1], max(map(len, matrices))
    rows = slice(None) if receivers is None else receivers
    results = 0 if out is None else len(out) if receivers is None else len(receivers)
    for columns in column_blocks(d, max(STRIP, BLOCK // max(1, heard) // STRIP * STRIP)):
        result = torch.empty(results, min(columns.stop, d) - columns.start, dtype=torch.float32, device="cpu")
        yield [x[:, columns].float() for x in matrices], result
        if out is not None:
            out[rows, columns] = result.to(out.dtype)


def _parts(d: int) -> list[tuple[int, int]]:
    """Ranges of columns that are summed apart, the same whatever the number of threads."""
    width = max(1, -(-d // (PARTS * FLUSH))) * FLUSH
    return [(part.start, part.stop) for part in column_blocks(d, width)]


def _over_columns(run: Callable[[int, int, Tensor], int], out: Tensor, receivers: Tensor | None, cost: int) -> bool:
    """Run over the columns of ``out`` in as many parts as torch has threads; whether all of them returned true."""
    results, d = _addresses([out]), out.shape[1]
    results = results if receivers is None else results[receivers]
    if not len(results):
        return True
    threads = torch.get_num_threads() if cost * d >= ALONE else 1
    width = -(-d // (threads * STRIP)) * STRIP
    parts = list(column_blocks(d, width))
    return all(in_threads(lambda part: run(parts[part].start, parts[part].stop, results), len(parts), cost * d))
