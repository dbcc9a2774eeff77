"""Arguments of the C kernels: addresses of rows, and ranges of columns.

Helper tensors are created on the CPU, even if torch has another default device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels._blocks import column_blocks
from equipoise.kernels.native._library import (
    SINGLE_THREADED,
    SUFFIXES,
    available,
    checked,
    in_threads,
    limits,
)

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

HALVES = (torch.float16, torch.bfloat16)

NO_BYTES = ctypes.c_char * 0  # of which every array has enough

# Sums over columns have a fixed number of parts, so that results do not depend on the number of
# threads. 16 keep up to 16 threads busy.
PARTS = 16
# Elements of half precision that are converted at a time: 4 MiB of float32, as a panel.
HALF_BLOCK = 1 << 20
# Larger results are written past the caches: they would displace the models that are still needed,
# and the CPU need not read memory that is about to be overwritten.
STREAMED_BYTES = 1 << 23


def serves(*matrices: Tensor) -> bool:
    """Whether the library supports these matrices: contiguous rows on a CPU, all of one dtype."""
    dtype = matrices[0].dtype
    return (
        available()
        and (dtype in SUFFIXES or dtype in HALVES)
        and all(x.dtype == dtype and _has_plain_rows(x) for x in matrices)
    )


def _has_plain_rows(x: Tensor) -> bool:
    return x.is_cpu and (x.stride(1) == 1 or x.shape[1] < 2) and not x.is_neg()


def counted(count: int) -> Tensor:
    """``range(count)`` on the CPU."""
    return torch.arange(count, device="cpu")


def array(x: Tensor) -> tuple[int, int]:
    """Address and length, as C functions take them."""
    return x.data_ptr(), len(x)


def pointer(x: NDArray[Any]) -> int:
    """The address of a writable array without gaps, which the caller keeps alive."""
    # A third of the time of `x.__array_interface__`, and of `x.ctypes.data`.
    return ctypes.addressof(NO_BYTES.from_buffer(x.data))


def addresses(matrices: Sequence[Tensor]) -> Tensor:
    """The addresses of the rows of some matrices."""
    return torch.from_numpy(row_addresses(matrices))


def row_addresses(matrices: Sequence[Tensor]) -> Integers:
    """The same as an array: numpy is faster than torch for few rows."""
    starts = [
        x.data_ptr() + np.arange(x.shape[0]) * (x.stride(0) * x.element_size()) for x in matrices
    ]
    return starts[0] if len(starts) == 1 else np.concatenate(starts)


def compact(matrices: Sequence[Tensor], *indices: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Addresses of the rows in ``indices`` only, and indices into these: no other row is packed."""
    used = torch.zeros(sum(map(len, matrices)), dtype=torch.bool, device="cpu")
    for index in indices:
        used[index] = True
    if used.all():
        return addresses(matrices), [index.contiguous() for index in indices]
    place = used.cumsum(0) - 1
    return addresses(matrices)[used], [place[index].contiguous() for index in indices]


def is_streamed(out: Tensor) -> bool:
    """Whether a result is written past the caches."""
    return out.nbytes > STREAMED_BYTES


def in_float32(
    matrices: Sequence[Tensor],
    out: Tensor | None = None,
    receivers: Tensor | Integers | None = None,
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Blocks of columns in float32, and a tensor for their results, which are copied to ``out``."""
    d = matrices[0].shape[1]
    rows = slice(None) if receivers is None else receivers
    results = 0 if out is None else len(out) if receivers is None else len(receivers)
    # Blocks depend on the longest matrix alone, so that its norms are the same sums beside others.
    longest = max(map(len, matrices))
    strip = limits().max_strip
    for columns in column_blocks(d, max(strip, HALF_BLOCK // max(1, longest) // strip * strip)):
        width = min(columns.stop, d) - columns.start
        result = torch.empty(results, width, dtype=torch.float32, device="cpu")
        yield [x[:, columns].float() for x in matrices], result
        if out is not None:
            out[rows, columns] = result.to(out.dtype)


def summed_parts(d: int) -> list[tuple[int, int]]:
    """Ranges of columns that are summed apart, the same for any number of threads."""
    # C adds to a float64 sum after so many columns. No part interrupts a run of them.
    flush = limits().flush_columns
    width = max(1, -(-d // (PARTS * flush))) * flush
    return [(part.start, part.stop) for part in column_blocks(d, width)]


def over_columns(run: Callable[[int, int], int], d: int, cost: int) -> bool:
    """Run over d columns, one part per thread; whether all of them returned true."""
    threads = torch.get_num_threads() if cost * d >= SINGLE_THREADED else 1
    if threads == 1:
        return bool(checked(run(0, d)))
    # Whole strips per thread, so that only the last one has incomplete vectors.
    strip = limits().max_strip
    parts = list(column_blocks(d, -(-d // (threads * strip)) * strip))

    def run_part(part: int) -> int:
        return run(parts[part].start, parts[part].stop)

    return all(in_threads(run_part, len(parts), cost * d))
