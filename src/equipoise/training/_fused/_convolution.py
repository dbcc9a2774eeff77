"""A convolution of 3 x 3 without padding, the largest of every 2 x 2, and 0 if that is less: one step, in C."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from equipoise.kernels.native import _library as library

TOGETHER = 32  # images whose gradients are summed before others are added: sums do not depend on the number of threads
PLAIN = (Tensor, torch.nn.Parameter)


def serves(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether `conv_pool` can take these, and nobody wants to see or change single operations."""
    return (
        library.available()
        and not _is_watched()
        and all(type(part) in PLAIN and part.device.type == "cpu" for part in (x, weight, bias))
        and x.dtype == weight.dtype == bias.dtype
        and x.dtype in library.SUFFIXES
        and x.dim() == 4
        and x.shape[1] == weight.shape[1]
        and min(x.shape[2:]) >= 4
    )


def _is_watched() -> bool:
    """Tracing, compiling, ``vmap`` and the like, forward-mode gradients, counting of operations, or autocast."""
    return (
        torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.is_autocast_enabled("cpu")
    )


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(max_pool2d(conv2d(x, weight, bias), 2))`` for images x ``(b, c, h, w)`` and weights ``(o, c, 3, 3)``.

    Channels are last in the memory of the result, and best so in that of x. The largest is one of four sums, so three
    of four gradients are zero: on the way back only the others are multiplied.

    >>> from equipoise.training._fused._convolution import conv_pool
    >>> conv_pool(torch.arange(16.0).view(1, 1, 4, 4), torch.ones(1, 1, 3, 3), torch.zeros(1))
    tensor([[[[90.]]]])
    """
    found: Tensor = _ConvPool.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found.movedim(-1, 1)  # not inside, or nobody could change the result in place


class _ConvPool(torch.autograd.Function):
    """Channels are last in its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        images, weights, biases = x.movedim(1, -1).contiguous(), weight.contiguous(), bias.contiguous()
        shape = (len(x), (x.shape[2] - 2) // 2, (x.shape[3] - 2) // 2, len(weight))
        out, largest = x.new_empty(shape), torch.empty(shape, dtype=torch.uint8, device="cpu")
        call = library.function("conv_pool", x)

        def run(part: int) -> int:
            some, into, where = (_images(tensor, part) for tensor in (images, out, largest))
            sizes = _sizes(some, weights)
            return call(sizes, *(part.data_ptr() for part in (some, weights, biases, into, where)))

        _run(run, images, weights)
        ctx.save_for_backward(x, weight, bias, largest)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, largest = ctx.saved_tensors
        wanted: tuple[bool, ...] = ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody wants gradients of gradients
            inputs = [part for part, needed in zip((x, weight, bias), wanted, strict=True) if needed]
            out = _in_torch(x, weight, bias).movedim(1, -1)
            found = iter(torch.autograd.grad(out, inputs, gradients, create_graph=True))
            return tuple(next(found) if needed else None for needed in wanted)
        return _backward(x, weight, largest, gradients[0], to_x=wanted[0])


def _backward(x: Tensor, weight: Tensor, largest: Tensor, gradient: Tensor, *, to_x: bool) -> tuple[Tensor | None, ...]:
    images, weights = x.movedim(1, -1).contiguous(), weight.contiguous()
    steps = gradient.contiguous()
    parts, call = -(-len(x) // TOGETHER), library.function("conv_pool_back", x)
    to_images = torch.empty_like(images) if to_x else None
    to_weight, to_bias = weight.new_zeros(parts, *weight.shape), weight.new_zeros(parts, len(weight))

    def run(part: int) -> int:
        some, step, where = (_images(tensor, part) for tensor in (images, steps, largest))
        into = None if to_images is None else _images(to_images, part).data_ptr()
        sizes, into_weight, into_bias = _sizes(some, weights), to_weight[part], to_bias[part]
        inputs = (tensor.data_ptr() for tensor in (some, weights, step, where))
        return call(sizes, *inputs, into, into_weight.data_ptr(), into_bias.data_ptr())

    _run(run, images, weights)
    return None if to_images is None else to_images.movedim(-1, 1), to_weight.sum(0), to_bias.sum(0)


def _in_torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return relu(max_pool2d(conv2d(x, weight, bias), 2))


def _images(tensor: Tensor, part: int) -> Tensor:
    return tensor[part * TOGETHER : (part + 1) * TOGETHER]


def _sizes(images: Tensor, weight: Tensor) -> Any:
    return (ctypes.c_int64 * 5)(*images.shape, len(weight))


def _run(run: Any, images: Tensor, weight: Tensor) -> None:
    parts = -(-len(images) // TOGETHER)
    if any(library.in_threads(run, parts, images.numel() * len(weight))):
        raise MemoryError("there was no memory for a copy of an image and of the weights")
