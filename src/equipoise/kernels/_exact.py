"""Norms, distances and products in float64, scaled against overflow and underflow: slow and exact.

The fast kernels use these for values that they cannot guarantee: huge, tiny or nearly equal models,
and decisions that depend on the last digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import TILE, chunks, column_blocks, same_rows

# Columns of a block, at least: 32 KiB of float64, which hides the overhead of an operation.
EXACT_COLUMNS = 4096


def careful_norms(x: Tensor, rows: Tensor) -> Tensor:
    """Norms of the given rows; NaN if a row is not finite, or its norm overflows float64."""
    norms = torch.empty(len(rows), dtype=torch.float64, device=x.device)
    for part in chunks(len(rows), EXACT_COLUMNS):
        largest = torch.zeros(len(rows[part]), dtype=torch.float64, device=x.device)
        for columns in column_blocks(x.shape[1], EXACT_COLUMNS):
            block = x[rows[part], columns].abs().amax(1).double()
            largest = torch.maximum(largest, block)  # propagates NaN
        # A second pass: the scale must be known before the first value is squared.
        scale = power_of_two(largest)
        if native.serves(x):
            before = (1 / scale)[:, None].expand(-1, 2)
            ones = torch.ones_like(scale)
            squares = _exact_natively(x, rows[part], x, rows[part], before, ones, differ=False)
            norms[part] = scale * squares.sqrt()
            continue
        total = torch.zeros_like(largest)
        for columns in column_blocks(x.shape[1], EXACT_COLUMNS):
            # Scaled values are below 2^24, see `power_of_two`: no square overflows.
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
    """``||a[a_rows] - b[b_rows]||^2 / scale^2`` pair by pair, and the scale.

    The scale is a power of two, so that dividing by it is exact. ``sizes`` is the larger norm of
    each pair, or its largest difference.
    """
    scale = power_of_two(sizes)
    # Then squares are between 1e-200 and 1e200, which fits a float64 with room for sums.
    scale = scale.masked_fill_((scale > 1e-100) & (scale < 1e100), 1.0)
    # Large values are divided before they are subtracted, since their difference may overflow.
    # Small ones are divided after that, since dividing them first could overflow.
    before = scale.clamp_min(1)[:, None]
    after = scale.clamp_max(1)[:, None]
    if native.serves(a, b):
        # Dividing by a power of two is multiplying by another, both exactly.
        scales = ((1 / before).expand(-1, 2), 1 / after[:, 0])
        return _exact_natively(a, a_rows, b, b_rows, *scales, differ=True), scale
    plain = bool((scale == 1).all())
    squares = torch.zeros_like(sizes)
    for part, columns in _pair_blocks(len(sizes), a.shape[1]):
        left = a[:, columns].index_select(0, a_rows[part]).double()
        right = b[:, columns].index_select(0, b_rows[part]).double()
        if plain:
            squares[part] += left.sub_(right).square_().sum(1)
        else:
            apart = left / before[part] - right / before[part]
            squares[part] += apart.div_(after[part]).square_().sum(1)
    return squares, scale


def largest_differences(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The largest absolute difference between two rows of ``x``, pair by pair."""
    largest = torch.zeros(len(left), dtype=torch.float64, device=x.device)
    for part, columns in _pair_blocks(len(left), x.shape[1]):
        apart = x[:, columns].index_select(0, left[part]).double()
        apart = apart - x[:, columns].index_select(0, right[part])
        largest[part] = torch.maximum(largest[part], apart.abs_().amax(1))
    return largest


def careful_cosines(
    a: Tensor, a_rows: Tensor, b: Tensor, b_rows: Tensor, a_norms: Tensor, b_norms: Tensor
) -> Tensor:
    """The cosine between ``a[a_rows]`` and ``b[b_rows]`` pair by pair; NaN if one is zero."""
    a_scale = power_of_two(a_norms)
    b_scale = power_of_two(b_norms)
    if native.serves(a, b):
        before = torch.stack([1 / a_scale, 1 / b_scale], 1)
        ones = torch.ones_like(a_scale)
        products = _exact_natively(a, a_rows, b, b_rows, before, ones, differ=False)
        return products / (a_norms / a_scale) / (b_norms / b_scale)
    products = torch.zeros_like(a_norms)
    for part, columns in _pair_blocks(len(a_norms), a.shape[1]):
        left = a[a_rows[part], columns].double() / a_scale[part, None]
        right = b[b_rows[part], columns].double() / b_scale[part, None]
        products[part] += left.mul_(right).sum(1)
    # The norms have the scale of the products, so that the powers of two cancel exactly.
    return products / (a_norms / a_scale) / (b_norms / b_scale)


def _exact_natively(
    a: Tensor,
    a_rows: Tensor,
    b: Tensor,
    b_rows: Tensor,
    before: Tensor,
    after: Tensor,
    *,
    differ: bool,
) -> Tensor:
    same = same_rows(a, b)
    right = b_rows if same else b_rows + len(a)
    matrices = [a] if same else [a, b]
    return native.exact_measure(matrices, a_rows, right, before, after, differ=differ)


def _pair_blocks(pairs: int, d: int) -> list[tuple[slice, slice]]:
    """Blocks of pairs and columns whose two float64 temporaries have `TILE` elements."""
    width = min(max(EXACT_COLUMNS, TILE // (2 * max(pairs, 1))), max(d, 1))
    parts = chunks(pairs, width, TILE // 2)
    return [(part, columns) for part in parts for columns in column_blocks(d, width)]


def power_of_two(sizes: Tensor) -> Tensor:
    """The power of two next to each size; 1 for zero and for values that are not finite.

    Exponents are clamped to 1000, so that neither the power nor its inverse overflows, and a value
    divided by it is below 2^24: its square fits.
    """
    mantissa, exponent = torch.frexp(sizes)
    usable = sizes.isfinite() & (sizes > 0)
    powers = torch.ldexp(torch.ones_like(mantissa), exponent.clamp(-1000, 1000))
    return powers.where(usable, 1.0)
