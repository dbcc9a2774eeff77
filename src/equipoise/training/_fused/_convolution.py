"""A 3 x 3 convolution without padding, 2 x 2 max pooling and ReLU in one step, in C."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from equipoise.kernels import native

CONVOLUTION_SIGNATURES = {
    "conv_pool": (ctypes.c_void_p,) * 6,
    "conv_pool_back": (ctypes.c_void_p,) * 8,
    "gradient_step": (ctypes.c_void_p,) * 8,
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
    if _is_observed() or not all(fits_kernel(part, x.dtype) for part in (x, weight, bias)):
        return False
    # The convolution leaves h - 2 rows, and the pooling needs 2 of them; columns alike.
    return x.dim() == 4 and x.shape[1] == weight.shape[1] and min(x.shape[2:]) >= 4


def fits_kernel(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether the C library is in use, and takes tensors like this one."""
    if CONVOLUTION_LIBRARY is None or not native.available():
        return False
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
        out, largest = forward(x.movedim(1, -1)[None], weight[None], bias[None])
        ctx.save_for_backward(x, weight, bias, largest)
        return out.squeeze_(0)  # in place: no view, which torch forbids to change

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, largest = ctx.saved_tensors
        wanted: tuple[bool, ...] = ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients are wanted: torch can compute them
            inputs = [part for part, need in zip((x, weight, bias), wanted, strict=True) if need]
            out = relu(max_pool2d(conv2d(x, weight, bias), 2)).movedim(1, -1)
            found = iter(torch.autograd.grad(out, inputs, gradients, create_graph=True))
            return tuple(next(found) if needed else None for needed in wanted)
        images = x.movedim(1, -1)[None]
        to_images, to_weight, to_bias = backward(
            images, weight[None], largest, gradients[0][None], to_images=wanted[0]
        )
        to_x = None if to_images is None else to_images[0].movedim(-1, 1)
        return to_x, to_weight[0], to_bias[0]


def forward(images: Tensor, weights: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
    """`conv_pool` of c clients, and which of the four sums is the largest.

    ``images (c, b, h, w, channels)``, ``weights (c, o, channels, 3, 3)`` and ``biases (c, o)``.
    Both results are ``(c, b, rows, columns, o)``.
    """
    images = images.contiguous()
    weights = _with_whole_rows(weights)
    biases = _with_whole_rows(biases)
    # As in torch, pooling drops an odd last row or column.
    rows, columns = ((side - 2) // 2 for side in images.shape[2:4])
    shape = (*images.shape[:2], rows, columns, weights.shape[1])
    out = images.new_empty(shape)
    largest = torch.empty(shape, dtype=torch.uint8, device="cpu")
    call = native.function("conv_pool", images, CONVOLUTION_LIBRARY)
    parts = _parts(images)

    def run(i: int) -> int:
        part = parts[i]
        filters = (_address(tensor, part.client) for tensor in (weights, biases))
        results = (_address(tensor, part.first, 1) for tensor in (out, largest))
        return call(part.shape(weights), _address(images, part.first, 1), *filters, *results)

    native.in_threads(run, len(parts), images.numel() * weights.shape[1])
    return out, largest


def backward(
    images: Tensor, weights: Tensor, largest: Tensor, gradient: Tensor, *, to_images: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The gradients of c clients by images, if wanted, weights and biases.

    ``gradient`` and ``largest`` are shaped like the results of `forward`.
    """
    images = images.contiguous()
    weights = _with_whole_rows(weights)
    gradient = gradient.contiguous()
    call = native.function("conv_pool_back", images, CONVOLUTION_LIBRARY)
    parts = _parts(images)
    found = torch.empty_like(images) if to_images else None
    # One sum per part, so that threads do not add to the same numbers. The parts are added up in
    # their order, whichever thread was first.
    to_weights = weights.new_empty(len(parts), *weights.shape[1:])
    to_biases = weights.new_empty(len(parts), weights.shape[1])

    def run(i: int) -> int:
        part = parts[i]
        given = (_address(tensor, part.first, 1) for tensor in (gradient, largest))
        into = None if found is None else _address(found, part.first, 1)
        results = (_address(to_weights, i), _address(to_biases, i))
        some = _address(images, part.first, 1)
        return call(
            part.shape(weights), some, _address(weights, part.client), *given, into, *results
        )

    native.in_threads(run, len(parts), images.numel() * weights.shape[1])
    c = len(images)
    if len(parts) == c:
        return found, to_weights, to_biases
    return found, to_weights.unflatten(0, (c, -1)).sum(1), to_biases.unflatten(0, (c, -1)).sum(1)


class _Part(NamedTuple):
    """Some images of one client."""

    client: int
    first: int  # among the images of all clients
    sizes: tuple[int, ...]  # (images, height, width, channels)

    def shape(self, weights: Tensor) -> Any:
        return (ctypes.c_int64 * 5)(*self.sizes, weights.shape[1])


def _parts(images: Tensor) -> list[_Part]:
    c, b, *sizes = images.shape
    return [
        _Part(client, client * b + start, (min(IMAGES_PER_PART, b - start), *sizes))
        for client in range(c)
        for start in range(0, b, IMAGES_PER_PART)
    ]


def _with_whole_rows(tensor: Tensor) -> Tensor:
    """The same values, with each ``tensor[i]`` in one piece of memory."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _address(tensor: Tensor, i: int, dim: int = 0) -> int:
    """The address of element i of a dimension; cheaper than a slice of the tensor."""
    return tensor.data_ptr() + i * tensor.stride(dim) * tensor.element_size()
