"""A step of gradient descent for weights whose gradient is a product of matrices, in C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from torch import Tensor

from equipoise.kernels import native
from equipoise.training._fused import _convolution


def serves(left: Tensor, right: Tensor, *stacked: Tensor) -> bool:
    """Whether `step_product` supports these tensors."""
    fits = (_convolution.fits_kernel(tensor, left.dtype) for tensor in (left, right, *stacked))
    return all(fits) and all(tensor[0].is_contiguous() for tensor in stacked)


def step_product(
    left: Tensor,
    right: Tensor,
    old: Sequence[Tensor],
    new: Sequence[Tensor],
    *,
    lr: float,
    momentum: float,
) -> None:
    """Update weights ``(c, rows, columns)`` of c clients, whose gradients are ``left @ right``.

    ``old`` holds the weights and, with momentum, their velocities; ``new`` is where the updated
    ones are written, which may be the same. The gradients are never written to memory.
    """
    none = () if len(old) == 2 else (None,)  # without momentum there are no velocities
    tensors = (left.contiguous(), right.contiguous(), *old, *none, *new, *none)
    distances = (0 if tensor is None else tensor.stride(0) for tensor in tensors)
    sizes = (ctypes.c_int64 * 10)(*left.shape, right.shape[2], *distances)
    factors = (ctypes.c_double * 2)(lr, momentum)
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    call = native.function("gradient_step", left, _convolution.CONVOLUTION_LIBRARY)
    native.in_threads(lambda _: call(sizes, factors, *addresses), parts=1, cost=0)
