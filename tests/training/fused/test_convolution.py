"""The fused convolution against torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from equipoise.kernels import native
from equipoise.training._fused import _convolution
from equipoise.training._fused._convolution import IMAGES_PER_PART, conv_pool
from tests.instruction_sets import instructions  # noqa: F401

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-13}


def in_torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return relu(max_pool2d(conv2d(x, weight, bias), 2))


def layer(
    images: int,
    channels: int,
    height: int,
    width: int,
    outputs: int,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((images, channels, height, width), (outputs, channels, 3, 3), (outputs,))
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    )
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], seed: int = 0
) -> tuple[Tensor, ...]:
    out = function(*inputs)
    step = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(out.dtype)
    return torch.autograd.grad(out, [x for x in inputs if x.requires_grad], step)


@given(
    images=st.integers(1, 3),
    channels=st.sampled_from([1, 2, 3, 5, 7, 8, 9, 16, 30, 33]),
    height=st.integers(4, 13),
    width=st.integers(4, 13),
    outputs=st.sampled_from([1, 2, 7, 8, 16, 17, 30, 50, 65]),
    dtype=st.sampled_from(list(DTYPES)),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_same_as_torch(
    images: int, channels: int, height: int, width: int, outputs: int, dtype: torch.dtype, seed: int
) -> None:
    inputs = layer(images, channels, height, width, outputs, dtype, seed)
    scale = 3.0 * channels**0.5
    torch.testing.assert_close(
        conv_pool(*inputs), in_torch(*inputs), rtol=0, atol=DTYPES[dtype] * scale
    )
    # In float64, where no two sums are so close that rounding decides which is the largest.
    inputs = tuple(x.detach().double().requires_grad_() for x in inputs)
    for ours, torchs in zip(gradients(conv_pool, inputs), gradients(in_torch, inputs), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("channels", "outputs"), [(1, 30), (30, 50)])
def test_float32_gradients(channels: int, outputs: int) -> None:
    inputs = layer(IMAGES_PER_PART + 3, channels, 13, 13, outputs, torch.float32)
    exact = gradients(in_torch, tuple(x.detach().double().requires_grad_() for x in inputs))
    for ours, expected in zip(gradients(conv_pool, inputs), exact, strict=True):
        error = (ours - expected).norm() / expected.norm()
        assert error < 1e-4  # where two sums are almost equal, another one may be the largest


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)])
def test_only_wanted_gradients(wanted: tuple[int, int, int]) -> None:
    inputs = tuple(
        x.detach().requires_grad_(bool(need))
        for x, need in zip(layer(2, 3, 8, 9, 5), wanted, strict=True)
    )
    for ours, torchs in zip(gradients(conv_pool, inputs), gradients(in_torch, inputs), strict=True):
        torch.testing.assert_close(ours, torchs)


def test_gradients_of_gradients() -> None:
    assert torch.autograd.gradcheck(conv_pool, layer(2, 2, 6, 5, 3))
    assert torch.autograd.gradgradcheck(conv_pool, layer(2, 2, 6, 5, 3))


def test_ties() -> None:
    inputs = tuple(torch.ones_like(x).requires_grad_() for x in layer(2, 3, 8, 8, 4))
    for ours, torchs in zip(gradients(conv_pool, inputs), gradients(in_torch, inputs), strict=True):
        torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_nonfinite_inputs(value: float, part: int) -> None:
    inputs = layer(3, 2, 8, 8, 5)
    with torch.no_grad():
        inputs[part].flatten()[7 % inputs[part].numel()] = value
    torch.testing.assert_close(conv_pool(*inputs), in_torch(*inputs), equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_nonfinite_stays_local(value: float, part: int) -> None:
    inputs = layer(3, 9, 8, 8, 5)
    clean = conv_pool(*inputs)
    with torch.no_grad():
        inputs[part].flatten()[7 % inputs[part].numel()] = value
    ours = conv_pool(*inputs)
    torchs = in_torch(*inputs)
    finite = ours.isfinite()
    assert torchs.isfinite()[finite].all()
    torch.testing.assert_close(ours[finite], torchs[finite])
    touched = {
        0: (slice(0, 1), slice(None)),
        1: (slice(None), slice(0, 1)),
        2: (slice(None), slice(2, 3)),
    }[part]
    clean[touched] = ours[touched]
    assert torch.equal(clean.nan_to_num(), ours.nan_to_num())


def test_nonfinite_gradients() -> None:
    inputs = layer(2, 2, 8, 8, 5)
    out = conv_pool(*inputs)
    for gradient in torch.autograd.grad(out, inputs, torch.full_like(out, torch.nan)):
        assert gradient.isnan().any()
    broken = conv_pool(inputs[0], torch.full_like(inputs[1], torch.nan).requires_grad_(), inputs[2])
    assert broken.isnan().all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads: int) -> None:
    inputs = layer(5 * IMAGES_PER_PART + 1, 3, 12, 12, 20)
    alone = gradients(conv_pool, inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again = gradients(conv_pool, inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(alone, again, strict=True))


def test_in_place_changes() -> None:
    inputs = layer(2, 3, 8, 9, 5)
    ours = gradients(lambda *x: conv_pool(*x).mul_(2), inputs)
    for changed, expected in zip(ours, gradients(lambda *x: in_torch(*x) * 2, inputs), strict=True):
        torch.testing.assert_close(changed, expected)


def test_no_images() -> None:
    x, weight, bias = layer(1, 2, 8, 8, 5)
    assert conv_pool(x[:0], weight, bias).shape == (0, 5, 3, 3)
    assert gradients(conv_pool, (x.detach()[:0].requires_grad_(), weight, bias))[1].abs().sum() == 0


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_memory_formats(order: torch.memory_format) -> None:
    x, weight, bias = layer(2, 3, 8, 10, 5)
    inputs = (
        x.detach().contiguous(memory_format=order),
        weight.detach().contiguous(memory_format=order),
        bias.detach(),
    )
    torch.testing.assert_close(conv_pool(*inputs), in_torch(*inputs))


@pytest.mark.parametrize(
    "shape", [(-1, 4, 4, 1, 1), (1, 3, 4, 1, 1), (1, 4, 3, 1, 1), (1, 4, 4, 0, 1), (1, 4, 4, 1, 0)]
)
def test_impossible_shapes(shape: tuple[int, ...]) -> None:
    """C refuses them before it reads a tensor."""
    sizes = (ctypes.c_int64 * 5)(*shape)
    for name, pointers in (("conv_pool", 5), ("conv_pool_back", 7)):
        call = native.function(name, torch.ones(1), _convolution.CONVOLUTION_LIBRARY)
        assert call(sizes, *[None] * pointers) == -2
