"""Results that stay finite even if malicious clients send the largest numbers of a dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import block, chunks, compute_dtype, new_output
from equipoise.kernels._norms import are_finite


def clip_factors(limits: Tensor, sizes: Tensor) -> Tensor:
    """``min(1, limits / sizes)``; 0 where one of the two is not finite.

    A size that is within the limit has the factor 1 without a division, so that 0 / 0 cannot occur.
    """
    factors = (limits / sizes).clamp_max(1).where(sizes > limits, 1.0)
    return factors.where(sizes.isfinite() & limits.isfinite(), 0.0)


def undo_infinite_values(values: Tensor, previous: Tensor) -> Tensor:
    """The values, replaced by the previous ones where they are not finite."""
    if values.sum().isfinite():  # one pass over the memory; a sum is finite only if all terms are
        return values
    return values.where(values.isfinite(), previous)


def undo_infinite_norms(vectors: Tensor, previous: Tensor) -> Tensor:
    """The vectors (d,) or (n, d), replaced by the previous ones where their norm overflows.

    Messages whose norm overflows are absent, so such a vector would reach no receiver. Other
    clients can cause this in float64 only, whose norms have no wider type to fit into: a trimmed
    mean takes its coordinates from different vectors, and can be longer than each of them.
    """
    if vectors.dtype != torch.float64:
        return vectors
    # (n,) or (1,): whether the norm of each vector is finite.
    fits = are_finite(torch.atleast_2d(vectors))
    return vectors.where(fits.view(*vectors.shape[:-1], 1), previous)


def interpolate(
    own: Tensor, other: Tensor, shares: Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``shares * own + (1 - shares) * other`` for matrices (n, d), and whether it is finite.

    The matrix is written to ``out`` if given.

    ``shares`` is float64, of shape (n, 1) or (1, 1). ``out`` may be ``own`` or ``other`` itself.

    Each value lies between those of ``own`` and ``other``. A share of 0 or 1 ignores the other
    side, also if that is infinite or NaN. Half precision is computed in float32.
    """
    mixed = new_output(own, *own.shape) if out is None else out
    if own.dtype in native.SUFFIXES and native.serves(own, other, mixed):
        return mixed, native.interpolate(own, other, shares[:, 0].expand(len(own)), mixed)
    dtype = compute_dtype(own)
    of_own = shares.to(own.device, dtype)
    of_other = (1 - shares).to(own.device, dtype)
    finite = True
    for columns in chunks(own.shape[1], len(own)):
        left = block(own, columns)
        right = block(other, columns)
        part = torch.lerp(right, left, of_own)
        # lerp computes right + share * (left - right). The difference may overflow. The sum of all
        # results is finite only if no difference did.
        if not part.sum().isfinite():
            products = (left * of_own).add_(right * of_other)
            # Rounding can leave the interval by a unit in the last place.
            products.clamp_(torch.minimum(left, right), torch.maximum(left, right))
            part = part.where(part.isfinite(), products)
        # 0 times an infinity is NaN, so that the other side is copied.
        part = torch.where(of_other == 0, left, part)
        part = torch.where(of_own == 0, right, part)
        finite &= bool(part.sum().isfinite())
        mixed[:, columns] = part
    return mixed, finite
