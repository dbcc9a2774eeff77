"""Euclidean norms of models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import SUM, compute_dtype
from equipoise.kernels._exact import careful_norms

# Norms whose squares, and the squares of whose coordinates, are neither too large nor too small.
# float32 ends at 3.4e38: squared distances of models up to 1e15 are below 4e30, and sums of them
# have room. It has full precision down to 1.2e-38: of a norm of 1e-12, with a square of 1e-24,
# terms below that bound are a share of 1e-14, far below the 1e-6 that distances must hold.
TAME_FLOAT32 = (1e-12, 1e15)
# float64 ends at 1.8e308 and has full precision down to 2.2e-308: 1e300 and 1e-280, alike.
TAME_FLOAT64 = (1e-140, 1e150)


def norms(x: Tensor) -> Tensor:
    """(rows,) norm of every row in float64, accurate for all finite values; NaN if not finite."""
    squares = native.squared_norms(x) if native.serves(x) else _sums_of_squares(x)
    return mended_norms(squares.sqrt(), x)


def mended_norms(fast: Tensor, x: Tensor) -> Tensor:
    """Norms of the rows of ``x``, computed again where the fast result may be inaccurate."""
    if not are_tame(fast, x):
        doubtful = (~is_tame(fast, x)).nonzero().flatten()
        fast[doubtful] = careful_norms(x, doubtful)
    return fast


def _sums_of_squares(x: Tensor) -> Tensor:
    squares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    whole = x.shape[1] // SUM * SUM
    if whole:
        squares += _norm(x[:, :whole].unflatten(1, (-1, SUM))).square().sum(1)
    return squares + _norm(x[:, whole:]).square()


def are_finite(x: Tensor) -> Tensor:
    """(rows,) whether all values are finite, and the norm fits a float64."""
    if x.dtype == torch.float64:
        return norms(x).isfinite()
    # A sum is half the work of a norm, and finite only if all terms are. It may overflow although
    # they are; then the norms decide.
    sums = x.sum(1, dtype=torch.float32)
    finite = sums.isfinite()
    return finite if finite.all() else norms(x).isfinite()


def all_finite(x: Tensor) -> bool:
    """Whether `are_finite` holds for all rows, in fewer steps than finding out for which."""
    # Finite float64 values may have a norm that overflows.
    if x.dtype != torch.float64 and math.isfinite(x.sum(dtype=torch.float32)):
        return True
    return bool(are_finite(x).all())


def is_tame(sizes: Tensor, x: Tensor) -> Tensor:
    """Whether models of these norms can be subtracted and squared in the compute dtype of ``x``."""
    low, high = _tame_range(x)
    return (sizes > low) & (sizes < high)


def are_tame(sizes: Tensor, x: Tensor) -> bool:
    """Whether `is_tame` holds for all sizes, in fewer steps than finding out for which."""
    if not sizes.numel():
        return True
    low, high = _tame_range(x)
    smallest, largest = sizes.aminmax()  # NaN reaches both, and compares as False
    return low < float(smallest) and float(largest) < high


def _tame_range(x: Tensor) -> tuple[float, float]:
    return TAME_FLOAT64 if compute_dtype(x) == torch.float64 else TAME_FLOAT32


def _norm(x: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=compute_dtype(x))
    return lengths.double()


def squared_spread(x: Tensor) -> Tensor:
    """The sum of the squared distances of rows to their mean, in float64.

    >>> from equipoise.kernels import squared_spread
    >>> squared_spread(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    tensor(2., dtype=torch.float64)
    """
    part = x.to(torch.float64, copy=True)
    return part.sub_(part.mean(0)).square_().sum()
