"""Euclidean norms of models."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import SUM, compute_dtype
from equipoise.kernels._exact import careful_norms


def norms(x: Tensor) -> Tensor:
    """(rows,) norm of every row in float64, exact enough for any finite values; NaN where a row is not finite."""
    return mended_norms(
        (native.squared_norms(x) if native.serves(x) else _sums_of_squares(x)).sqrt(), x
    )


def mended_norms(fast: Tensor, x: Tensor) -> Tensor:
    """Norms of the rows of ``x``, with those computed again that the fast way cannot answer for."""
    doubtful = (~is_tame(fast, x)).nonzero().flatten()
    if len(doubtful):
        fast[doubtful] = careful_norms(x, doubtful)
    return fast


def _sums_of_squares(x: Tensor) -> Tensor:
    squares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    whole = x.shape[1] // SUM * SUM
    if whole:
        squares += _norm(x[:, :whole].unflatten(1, (-1, SUM))).square().sum(1)
    return squares + _norm(x[:, whole:]).square()


def are_finite(x: Tensor) -> Tensor:
    """(rows,) whether a row has neither NaN nor infinity, and a norm that fits a float64."""
    if x.dtype == torch.float64:
        return norms(x).isfinite()
    if native.serves(x):
        return norms(x).isfinite()
    sums = x.sum(
        1, dtype=torch.float32
    )  # half the work of a norm, and finite only if all terms are
    return (
        norms(x).isfinite()
        if not sums.isfinite().all()
        else torch.ones_like(sums, dtype=torch.bool)
    )


def is_tame(sizes: Tensor, x: Tensor) -> Tensor:
    """Whether models of these norms can be squared and subtracted in the compute dtype of ``x`` without damage."""
    low, high = (1e-140, 1e150) if compute_dtype(x) == torch.float64 else (1e-12, 1e15)
    return (sizes > low) & (sizes < high)


def _norm(x: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=compute_dtype(x))
    return lengths.double()
