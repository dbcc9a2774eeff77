"""Squared distances and products of all pairs of models by matrix products.

``|u|^2 + |v|^2 - 2 u.v`` is fast, but loses all digits when u and v are close to each other and far from the origin, as
models near consensus are. So models are first centred, which is exact for floats that are close to each other, and
what is still small against ``|u|^2 + |v|^2`` is reported as doubtful, for the caller to compute again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.kernels._blocks import PRODUCT, SUM, block, column_blocks, gather, in_sums, same_rows
from equipoise.kernels._norms import is_tame, norms

CANCELLED = 0.25  # of |u|^2 + |v|^2: below this float32 does not hold 1e-6
PRODUCTS = 1 << 22  # elements of a temporary that holds the products of several sums


def squared_distances(
    a: Tensor, a_norms: Tensor, b: Tensor, b_norms: Tensor
) -> tuple[Tensor, Tensor]:
    """(rows of a, rows of b) squared distances in float64, and which of them are doubtful."""
    a_tame, b_tame, same = is_tame(a_norms, a), is_tame(b_norms, b), same_rows(a, b)
    a_wild, b_wild, weights = _wild_rows(a_tame), _wild_rows(b_tame), central_rows(b, b_tame)
    gram = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    a_squares, b_squares = torch.zeros_like(a_norms), torch.zeros_like(b_norms)
    for columns in _blocks(a, len(b)):
        right = _tame_block(b, b_wild, columns)
        centre = weights.to(right.dtype) @ right
        right = right - centre
        left = right if same else _tame_block(a, a_wild, columns) - centre
        gram += _products(left, right)
        if not same:
            a_squares += norms(left).square_()
            b_squares += norms(right).square_()
    if same:
        a_squares = b_squares = gram.diagonal()
        gram = (gram + gram.T) / 2
    return _from_gram(gram, a_squares, b_squares, a_tame[:, None] & b_tame, b)


def squared_distances_of_each(
    centres: Tensor, b: Tensor, b_norms: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """(r, c, c) squared distances between ``b[rows[i]]``, rows (r, c), centred on ``centres`` (r, d), and doubts."""
    tame = is_tame(b_norms, b)[rows]
    gram = torch.zeros(*rows.shape, rows.shape[1], dtype=torch.float64, device=b.device)
    for columns in _blocks(centres, rows.shape[1]):
        messages = gather(b, rows, columns).sub_(block(centres, columns)[:, None])
        if not tame.all():
            messages.masked_fill_(~tame[..., None], 0)
        gram += _products(messages, messages)
    squares = gram.diagonal(dim1=1, dim2=2)
    return _from_gram(
        (gram + gram.mT) / 2, squares, squares, tame[:, :, None] & tame[:, None, :], b
    )


def products(a: Tensor, a_norms: Tensor, b: Tensor, b_norms: Tensor) -> Tensor:
    """(rows of a, rows of b) scalar products in float64; 0 for models too large or small to be multiplied."""
    a_wild, b_wild = _wild_rows(is_tame(a_norms, a)), _wild_rows(is_tame(b_norms, b))
    result = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for columns in column_blocks(a.shape[1], 4 * PRODUCT if len(a) == 1 else 8 * PRODUCT):
        left, right = _tame_block(a, a_wild, columns), _tame_block(b, b_wild, columns)
        result += right @ left[0] if len(a) == 1 else _products(left, right, PRODUCT)
    return result


def _products(a: Tensor, b: Tensor, size: int = SUM) -> Tensor:
    """Scalar products of all rows of two blocks, summed in short pieces."""
    return (in_sums(a, size) @ in_sums(b, size).mT).sum(-3, dtype=torch.float64)


def _blocks(a: Tensor, others: int) -> Iterator[slice]:
    parts = PRODUCTS // max(1, len(a) * others)
    return column_blocks(a.shape[1], SUM * min(max(parts, 1), 64))


def _from_gram(
    gram: Tensor, a: Tensor, b: Tensor, tame: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    both = a[..., :, None] + b[..., None, :]
    squares = both - 2 * gram
    trusted = tame & (squares > CANCELLED * both) & is_tame(both.sqrt(), x)
    return squares.clamp_min_(0), ~trusted


def _wild_rows(tame: Tensor) -> Tensor | None:
    return None if tame.all() else ~tame[:, None]


def _tame_block(x: Tensor, wild: Tensor | None, columns: slice) -> Tensor:
    """A block whose wild rows are 0, so that they spoil nobody else's sums."""
    part = block(x, columns)
    return part if wild is None else part.masked_fill(wild, 0)


def central_rows(x: Tensor, tame: Tensor) -> Tensor:
    """(rows,) weights whose mean of rows lies in the middle of most models, wherever a minority has gone.

    The rows around the medoid of a sample are averaged. A bad choice costs time, not correctness.
    """
    weights = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    candidates = tame.nonzero().flatten()
    candidates = candidates[:: max(1, len(candidates) // 64)]
    if len(candidates):
        sampled = torch.arange(0, x.shape[1], max(1, x.shape[1] // 256), device=x.device)
        models = x[candidates[:, None], sampled].double()
        apart = torch.cdist(models, models)
        typical, medoid = apart.median(dim=1).values.min(dim=0)
        members = candidates[apart[medoid] <= 3 * typical]
        weights[members] = 1 / len(members)
    return weights
