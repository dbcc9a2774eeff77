"""Norms, distances and products in float64, scaled so that nothing overflows or vanishes: slow, and right.

The fast kernels send here what they cannot answer for: huge, tiny or nearly equal models, and decisions that hang
on the last digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels._blocks import TILE, chunks, column_blocks

WIDTH = 4096


def careful_norms(x: Tensor, rows: Tensor) -> Tensor:
    """Euclidean norms of the given rows; NaN where a row has a NaN or an infinity, or its norm overflows float64."""
    norms = torch.empty(len(rows), dtype=torch.float64, device=x.device)
    for part in chunks(len(rows), WIDTH):
        largest = torch.zeros(len(rows[part]), dtype=torch.float64, device=x.device)
        for columns in column_blocks(x.shape[1], WIDTH):
            largest = torch.maximum(
                largest, x[rows[part], columns].abs().amax(1).double()
            )  # NaN wins
        scale, total = power_of_two(largest), torch.zeros_like(largest)
        for columns in column_blocks(x.shape[1], WIDTH):
            total += (x[rows[part], columns].double() / scale[:, None]).square_().sum(1)
        norms[part] = scale * total.sqrt()
    return norms.where(norms.isfinite(), torch.nan)


def careful_distances(
    a: Tensor, a_rows: Tensor, b: Tensor, b_rows: Tensor, sizes: Tensor
) -> Tensor:
    """``||a[a_rows] - b[b_rows]||`` pair by pair; ``sizes`` is the larger norm of each pair."""
    squares, scale = careful_squares(a, a_rows, b, b_rows, sizes)
    return scale * squares.sqrt()


def careful_squares(
    a: Tensor, a_rows: Tensor, b: Tensor, b_rows: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """``||a[a_rows] - b[b_rows]||^2 / scale^2`` pair by pair, and that scale: a power of two, so that no digit is lost.

    ``sizes`` is the larger norm of each pair, or the largest of its differences.
    """
    scale = power_of_two(sizes)
    if ((scale > 1e-100) & (scale < 1e100)).all():  # then squares fit a float64 as they are
        scale = torch.ones_like(sizes)
    before, after = (
        scale.clamp_min(1)[:, None],
        scale.clamp_max(1)[:, None],
    )  # neither terms nor differences overflow
    plain, squares = bool((scale == 1).all()), torch.zeros_like(sizes)
    for part, columns in _pair_blocks(len(sizes), a.shape[1]):
        left, right = (
            x[:, columns].index_select(0, rows[part]).double()
            for x, rows in ((a, a_rows), (b, b_rows))
        )
        if plain:
            squares[part] += left.sub_(right).square_().sum(1)
        else:
            squares[part] += (
                (left / before[part] - right / before[part]).div_(after[part]).square_().sum(1)
            )
    return squares, scale


def largest_differences(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The largest absolute difference between two rows of ``x``, pair by pair."""
    largest = torch.zeros(len(left), dtype=torch.float64, device=x.device)
    for part, columns in _pair_blocks(len(left), x.shape[1]):
        apart = x[:, columns].index_select(0, left[part]).double() - x[:, columns].index_select(
            0, right[part]
        )
        largest[part] = torch.maximum(largest[part], apart.abs_().amax(1))
    return largest


def careful_cosines(
    a: Tensor, a_rows: Tensor, b: Tensor, b_rows: Tensor, a_norms: Tensor, b_norms: Tensor
) -> Tensor:
    """The cosine between ``a[a_rows]`` and ``b[b_rows]`` pair by pair, given their norms; NaN if one is zero."""
    a_scale, b_scale = power_of_two(a_norms), power_of_two(b_norms)
    products = torch.zeros_like(a_norms)
    for part, columns in _pair_blocks(len(a_norms), a.shape[1]):
        left = a[a_rows[part], columns].double() / a_scale[part, None]
        right = b[b_rows[part], columns].double() / b_scale[part, None]
        products[part] += left.mul_(right).sum(1)
    return products / (a_norms / a_scale) / (b_norms / b_scale)


def _pair_blocks(pairs: int, d: int) -> list[tuple[slice, slice]]:
    width = min(max(WIDTH, TILE // (2 * max(pairs, 1))), max(d, 1))
    return [
        (part, columns)
        for part in chunks(pairs, width, TILE // 2)
        for columns in column_blocks(d, width)
    ]


def power_of_two(sizes: Tensor) -> Tensor:
    """The power of two next to each size, by which scaling is exact; 1 for zero and for what is not finite."""
    mantissa, exponent = torch.frexp(sizes)
    usable = sizes.isfinite() & (sizes > 0)
    return torch.ldexp(torch.ones_like(mantissa), exponent.clamp(-1000, 1000)).where(usable, 1.0)
