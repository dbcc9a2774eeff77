"""Squared distances and products of all pairs of models by matrix products.

``|u|^2 + |v|^2 - 2 u.v`` is fast, but loses all digits if u and v are close to each other and far
from the origin, as models near consensus are. So models are centered first, which is exact for
floats that are close to each other. Results that are still small compared with ``|u|^2 + |v|^2``
are reported as doubtful, for the caller to compute again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.kernels._blocks import PRODUCT, SUM, block, column_blocks, gather, in_sums, same_rows
from equipoise.kernels._norms import is_tame, norms

# The three terms hold about 1e-7 of |u|^2 + |v|^2 each, their sum 2.5e-7. Results of at least a
# quarter of that hold 1e-6, and smaller ones are doubtful.
CANCELLED = 0.25
# Elements of the temporary with the products of several sums: 16 MiB of float32.
PRODUCT_ELEMENTS = 1 << 22


def squared_distances(
    a: Tensor, a_norms: Tensor, b: Tensor, b_norms: Tensor
) -> tuple[Tensor, Tensor]:
    """(rows of a, rows of b) squared distances in float64, and which of them are doubtful."""
    same = same_rows(a, b)
    a_tame = is_tame(a_norms, a)
    b_tame = is_tame(b_norms, b)
    a_wild = _wild_rows(a_tame)
    b_wild = _wild_rows(b_tame)
    weights = central_rows(b, b_tame)
    gram = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    a_squares = torch.zeros_like(a_norms)
    b_squares = torch.zeros_like(b_norms)
    for columns in _blocks(a, len(b)):
        right = _tame_block(b, b_wild, columns)
        center = weights.to(right.dtype) @ right
        right = right - center
        left = right if same else _tame_block(a, a_wild, columns) - center
        gram += _products(left, right)
        if not same:
            a_squares += norms(left).square_()
            b_squares += norms(right).square_()
    if same:
        a_squares = b_squares = gram.diagonal()
        gram = (gram + gram.T) / 2  # the rounding of a product may depend on the order
    return _from_gram(gram, a_squares, b_squares, a_tame[:, None] & b_tame, b)


def squared_distances_of_each(
    centers: Tensor, b: Tensor, b_norms: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """(r, c, c) squared distances between ``b[rows[i]]``, and which of them are doubtful.

    Rows are (r, c). They are centered on ``centers`` (r, d).
    """
    tame = is_tame(b_norms, b)[rows]
    gram = torch.zeros(*rows.shape, rows.shape[1], dtype=torch.float64, device=b.device)
    for columns in _blocks(centers, rows.shape[1]):
        messages = gather(b, rows, columns).sub_(block(centers, columns)[:, None])
        if not tame.all():
            messages.masked_fill_(~tame[..., None], 0)
        gram += _products(messages, messages)
    squares = gram.diagonal(dim1=1, dim2=2)
    both_tame = tame[:, :, None] & tame[:, None, :]
    return _from_gram((gram + gram.mT) / 2, squares, squares, both_tame, b)


def products(a: Tensor, a_norms: Tensor, b: Tensor, b_norms: Tensor) -> Tensor:
    """(rows of a, rows of b) scalar products in float64; 0 for models that are not tame."""
    a_wild = _wild_rows(is_tame(a_norms, a))
    b_wild = _wild_rows(is_tame(b_norms, b))
    result = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for columns in column_blocks(a.shape[1], 4 * PRODUCT if len(a) == 1 else 8 * PRODUCT):
        left = _tame_block(a, a_wild, columns)
        right = _tame_block(b, b_wild, columns)
        result += right @ left[0] if len(a) == 1 else _products(left, right, PRODUCT)
    return result


def _products(a: Tensor, b: Tensor, size: int = SUM) -> Tensor:
    """Scalar products of all rows of two blocks, summed in short parts."""
    return (in_sums(a, size) @ in_sums(b, size).mT).sum(-3, dtype=torch.float64)


def _blocks(a: Tensor, others: int) -> Iterator[slice]:
    parts = PRODUCT_ELEMENTS // max(1, len(a) * others)
    return column_blocks(a.shape[1], SUM * min(max(parts, 1), 64))


def _from_gram(
    gram: Tensor, a: Tensor, b: Tensor, tame: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    both = a[..., :, None] + b[..., None, :]
    squares = both - 2 * gram
    trusted = tame & (squares > CANCELLED * both) & is_tame(both.sqrt(), x)
    # Rounding can make the difference of equal models negative, which has no root.
    return squares.clamp_min_(0), ~trusted


def _wild_rows(tame: Tensor) -> Tensor | None:
    return None if tame.all() else ~tame[:, None]


def _tame_block(x: Tensor, wild: Tensor | None, columns: slice) -> Tensor:
    """A block whose wild rows are 0, so that they do not spoil the sums of others."""
    part = block(x, columns)
    return part if wild is None else part.masked_fill(wild, 0)


def central_rows(x: Tensor, tame: Tensor) -> Tensor:
    """(rows,) weights of a mean in the middle of most models, wherever a minority is.

    The rows around the medoid of a sample are averaged. An attacker who shifts it costs time, not
    correctness: distances that cancel are computed again.
    """
    weights = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    candidates = tame.nonzero().flatten()
    candidates = candidates[:: max(1, len(candidates) // 64)]  # at most 127 rows
    if len(candidates):
        sampled = torch.arange(0, x.shape[1], max(1, x.shape[1] // 256), device=x.device)
        models = x[candidates[:, None], sampled].double()
        # Every 256th coordinate of 64 to 127 models: cheap, and only a start.
        apart = torch.cdist(models, models)
        typical, medoid = apart.median(dim=1).values.min(dim=0)
        # The model with the smallest median distance is close to at least half of them. Three times
        # that distance includes these, and leaves out models far away.
        members = candidates[apart[medoid] <= 3 * typical]
        weights[members] = 1 / len(members)
    return weights
