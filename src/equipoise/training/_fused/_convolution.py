"""A 3 x 3 convolution without padding, 2 x 2 max pooling and ReLU in one step, in C."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from equipoise.kernels import native

CONVOLUTION_SIGNATURES = {
    "conv_pool": (ctypes.c_void_p,) * 6,
    "conv_pool_back": (ctypes.c_void_p,) * 8,
}

# Images whose gradients are summed before others are added. A constant, so that sums do not depend
# on the number of threads.
IMAGES_PER_PART = 32
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


def _open_convolution() -> ctypes.CDLL | None:
    stem = Path(__file__).with_name("_convolution_kernels")
    return native.open_library(stem, CONVOLUTION_SIGNATURES)


CONVOLUTION_LIBRARY = _open_convolution() if native.is_requested() else None


def can_fuse(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether `conv_pool` supports these tensors, and torch does not observe single operations."""
    if CONVOLUTION_LIBRARY is None or not native.available() or _is_observed():
        return False
    if not all(_fits_kernel(part, x.dtype) for part in (x, weight, bias)):
        return False
    # The convolution leaves h - 2 rows, and the pooling needs 2 of them; columns alike.
    return x.dim() == 4 and x.shape[1] == weight.shape[1] and min(x.shape[2:]) >= 4


def _fits_kernel(tensor: Tensor, dtype: torch.dtype) -> bool:
    # A subclass of Tensor may give operations another meaning, which C would not see.
    is_plain = type(tensor) in PLAIN_TENSORS and tensor.device.type == "cpu"
    return is_plain and tensor.dtype == dtype and dtype in native.SUFFIXES


def _is_observed() -> bool:
    """Whether torch traces, compiles, maps, counts or casts single operations."""
    return (
        torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.is_autocast_enabled("cpu")
    )


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(max_pool2d(conv2d(x, weight, bias), 2))`` for x (b, c, h, w) and weight (o, c, 3, 3).

    Channels are last in the memory of the result, and should be in that of x. The largest is one of
    four sums, so that three of four gradients are zero: the backward pass multiplies the rest only.

    >>> from equipoise.training._fused._convolution import conv_pool
    >>> conv_pool(torch.arange(16.0).view(1, 1, 4, 4), torch.ones(1, 1, 3, 3), torch.zeros(1))
    tensor([[[[90.]]]])
    """
    found: Tensor = _ConvPool.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    # Outside of the function: torch forbids changing views that a custom function returns.
    return found.movedim(-1, 1)


class _ConvPool(torch.autograd.Function):
    """The same, with channels last in the shape of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        images = x.movedim(1, -1).contiguous()
        weights = weight.contiguous()
        biases = bias.contiguous()
        # (b, rows, columns, o). As in torch, pooling drops an odd last row or column.
        shape = (len(x), (x.shape[2] - 2) // 2, (x.shape[3] - 2) // 2, len(weight))
        out = x.new_empty(shape)
        largest = torch.empty(shape, dtype=torch.uint8, device="cpu")
        call = native.function("conv_pool", x, CONVOLUTION_LIBRARY)

        def run(part: int) -> int:
            some, into, where = (_address(tensor, part) for tensor in (images, out, largest))
            shape = _shape(images, weights, part)
            return call(shape, some, weights.data_ptr(), biases.data_ptr(), into, where)

        native.in_threads(run, _parts(images), images.numel() * len(weight))
        ctx.save_for_backward(x, weight, bias, largest)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, largest = ctx.saved_tensors
        wanted: tuple[bool, ...] = ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients are wanted: torch can compute them
            inputs = [part for part, need in zip((x, weight, bias), wanted, strict=True) if need]
            out = relu(max_pool2d(conv2d(x, weight, bias), 2)).movedim(1, -1)
            found = iter(torch.autograd.grad(out, inputs, gradients, create_graph=True))
            return tuple(next(found) if needed else None for needed in wanted)
        return _backward(x, weight, largest, gradients[0], to_x=wanted[0])


def _backward(
    x: Tensor, weight: Tensor, largest: Tensor, gradient: Tensor, *, to_x: bool
) -> tuple[Tensor | None, ...]:
    images = x.movedim(1, -1).contiguous()
    weights = weight.contiguous()
    steps = gradient.contiguous()
    parts = _parts(images)
    call = native.function("conv_pool_back", x, CONVOLUTION_LIBRARY)
    to_images = torch.empty_like(images) if to_x else None
    # One sum per part, so that threads do not add to the same numbers. The parts are added up in
    # their order, whichever thread was first.
    to_weight = weight.new_empty(parts, *weight.shape)
    to_bias = weight.new_empty(parts, len(weight))

    def run(part: int) -> int:
        some, step, where = (_address(tensor, part) for tensor in (images, steps, largest))
        into = None if to_images is None else _address(to_images, part)
        results = (_address(to_weight, part, 1), _address(to_bias, part, 1))
        shape = _shape(images, weights, part)
        return call(shape, some, weights.data_ptr(), step, where, into, *results)

    native.in_threads(run, parts, images.numel() * len(weight))
    to_input = None if to_images is None else to_images.movedim(-1, 1)
    if parts == 1:
        return to_input, to_weight[0], to_bias[0]
    return to_input, to_weight.sum(0), to_bias.sum(0)


def _parts(images: Tensor) -> int:
    return -(-len(images) // IMAGES_PER_PART)


def _address(tensor: Tensor, part: int, rows: int = IMAGES_PER_PART) -> int:
    """The address of the first of the rows of a part; cheaper than a slice of the tensor."""
    return tensor.data_ptr() + part * rows * tensor.stride(0) * tensor.element_size()


def _shape(images: Tensor, weight: Tensor, part: int) -> Any:
    count, *sizes = images.shape
    count = min(IMAGES_PER_PART, count - part * IMAGES_PER_PART)
    return (ctypes.c_int64 * 5)(count, *sizes, len(weight))
