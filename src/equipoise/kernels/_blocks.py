"""Blocks of wide matrices that stay in cache, in the dtype of the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

# Elements of a temporary: 1 MiB of float32, the size of a second-level cache.
TILE = 1 << 18
# Bytes of a huge page, which smaller results cannot use.
HUGE_PAGE = 1 << 21
# Columns in one float32 sum of squares. torch adds in vectors and pairwise, so that 256 terms hold
# 1e-7; sums of these sums are float64.
SUM = 256
# Columns in one float32 scalar product. It only has to hold 1e-6 of the product of the norms:
# cosines closer to 0 than `DOUBT` are computed again.
PRODUCT = 8192


def compute_dtype(x: Tensor) -> torch.dtype:
    """Half precision is computed in float32, other dtypes as they are."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def new_output(like: Tensor, *shape: int) -> Tensor:
    """An uninitialized tensor for a result, which may be large.

    On the CPU numpy allocates it: it requests huge pages, and first touching these takes a quarter
    of the time.
    """
    size = math.prod(shape) * like.element_size()
    if size < HUGE_PAGE or like.device.type != "cpu":
        return like.new_empty(shape)
    memory = np.empty(size, dtype=np.uint8)
    return torch.from_numpy(memory).view(like.dtype).view(shape)


def ascending(x: Tensor) -> Tensor:
    """The values along the last dimension in ascending order, NaN last.

    On the CPU numpy sorts: torch also returns the indices, and takes fifty times as long for 99
    values.
    """
    if x.device.type != "cpu":
        return x.sort(dim=-1).values
    return torch.from_numpy(np.sort(x.numpy(), axis=-1))


def row_sums(x: Tensor) -> Tensor:
    """(rows,) sums of the columns, one after the other, so that zeros among them change no bit.

    The order of `Tensor.sum` depends on the number of columns.
    """
    return x.cumsum(1)[:, -1] if x.shape[1] else x.new_zeros(len(x))


def column_blocks(d: int, width: int) -> Iterator[slice]:
    """Slices that cover ``range(d)``."""
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


def block(x: Tensor, columns: slice) -> Tensor:
    """Columns of a matrix in the compute dtype with contiguous rows: a view if possible."""
    part = x[:, columns].to(compute_dtype(x))
    return part if part.stride(1) == 1 else part.contiguous()


def in_sums(x: Tensor, size: int = SUM) -> Tensor:
    """(..., rows, width) as (..., parts, rows, size), the last part padded with zeros."""
    missing = -x.shape[-1] % size
    filled: Tensor = pad(x, (0, missing)) if missing else x
    return filled.unflatten(-1, (-1, size)).transpose(-2, -3)  # type: ignore[no-any-return]


def same_rows(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices are the same memory, so that results for one hold for the other."""
    same_memory = a.data_ptr() == b.data_ptr() and a.is_neg() == b.is_neg()
    return same_memory and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype


def first_row(a: Tensor, b: Tensor) -> int | None:
    """The row of ``b`` at which the rows of ``a`` begin in memory, or None if they are others."""
    ahead = a.data_ptr() - b.data_ptr()
    row = ahead // max(1, b.stride(0) * b.element_size())
    return row if 0 <= row < len(b) and same_rows(a, b[row : row + len(a)]) else None


def are_first_rows(a: Tensor, b: Tensor) -> bool:
    """Whether ``a`` is the first rows of ``b`` in memory, or all of them.

    A simulation writes lies behind the models, so that own models are rows of the bank.
    """
    # Other memory is the usual case of one client.
    return a.data_ptr() == b.data_ptr() and len(a) <= len(b) and same_rows(a, b[: len(a)])


def may_share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether writing to one tensor may change the other: whether their address ranges overlap.

    Interleaved tensors, such as the even and the odd rows of a matrix, count as overlapping.
    """
    if a.device != b.device or not a.numel() or not b.numel() or b.layout != torch.strided:
        return False
    return a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(x: Tensor) -> int:
    """The address behind the last element; strides are never negative in torch."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr() + (last + 1) * x.element_size()


def chunks(size: int, cost: int, budget: int = TILE) -> Iterator[slice]:
    """Slices of ``range(size)`` whose items, of ``cost`` elements each, fit the budget."""
    return column_blocks(size, max(1, budget // max(1, cost)))


def gather(x: Tensor, rows: Tensor, columns: slice) -> Tensor:
    """A copy of some rows and columns in the compute dtype, shaped (*rows, columns)."""
    # Selected before they are converted, so that only the wanted rows are.
    part = x[:, columns].index_select(0, rows.flatten()).to(compute_dtype(x))
    return part.view(*rows.shape, part.shape[1])
