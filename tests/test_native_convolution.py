"""Convolution, pooling and ReLU in one step, and in three."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import conv2d, max_pool2d, relu
from torch.utils.flop_counter import FlopCounterMode

import equipoise as eq
from equipoise.kernels import native
from equipoise.training._fused._convolution import TOGETHER, conv_pool, serves
from equipoise.training._fused._layers import FusedSequential
from tests.instruction_sets import instructions  # noqa: F401

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-13}


def in_torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return relu(max_pool2d(conv2d(x, weight, bias), 2))


def layer(
    images: int, channels: int, height: int, width: int, outputs: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((images, channels, height, width), (outputs, channels, 3, 3), (outputs,))
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], seed: int = 0) -> tuple[Tensor, ...]:
    out = function(*inputs)
    step = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.dtype)
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
def test_one_step_is_three(
    images: int, channels: int, height: int, width: int, outputs: int, dtype: torch.dtype, seed: int
) -> None:
    inputs = layer(images, channels, height, width, outputs, dtype, seed)
    scale = 3.0 * channels**0.5
    torch.testing.assert_close(conv_pool(*inputs), in_torch(*inputs), rtol=0, atol=DTYPES[dtype] * scale)
    # In double precision, where no two sums are so close that rounding decides which is the largest.
    inputs = tuple(x.detach().double().requires_grad_() for x in inputs)
    for ours, torchs in zip(gradients(conv_pool, inputs), gradients(in_torch, inputs), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("channels", "outputs"), [(1, 30), (30, 50)])
def test_gradients_in_single_precision(channels: int, outputs: int) -> None:
    inputs = layer(TOGETHER + 3, channels, 13, 13, outputs, torch.float32)
    exact = gradients(in_torch, tuple(x.detach().double().requires_grad_() for x in inputs))
    for ours, expected in zip(gradients(conv_pool, inputs), exact, strict=True):
        error = (ours - expected).norm() / expected.norm()
        assert error < 1e-4  # where two sums are almost equal, another one may be the largest


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)])
def test_only_wanted_gradients(wanted: tuple[int, int, int]) -> None:
    inputs = tuple(x.detach().requires_grad_(bool(need)) for x, need in zip(layer(2, 3, 8, 9, 5), wanted, strict=True))
    for ours, torchs in zip(gradients(conv_pool, inputs), gradients(in_torch, inputs), strict=True):
        torch.testing.assert_close(ours, torchs)


def test_gradients_of_gradients() -> None:
    assert torch.autograd.gradcheck(conv_pool, layer(2, 2, 6, 5, 3))
    assert torch.autograd.gradgradcheck(conv_pool, layer(2, 2, 6, 5, 3))


def test_the_first_of_equal_sums_gets_the_gradient() -> None:
    inputs = tuple(torch.ones_like(x).requires_grad_() for x in layer(2, 3, 8, 8, 4))
    for ours, torchs in zip(gradients(conv_pool, inputs), gradients(in_torch, inputs), strict=True):
        torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_not_finite_stays_so(value: float, part: int) -> None:
    inputs = layer(3, 2, 8, 8, 5)
    with torch.no_grad():
        inputs[part].flatten()[7 % inputs[part].numel()] = value
    torch.testing.assert_close(conv_pool(*inputs), in_torch(*inputs), equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_is_not_finite_spreads_no_further_than_its_square_and_output(value: float, part: int) -> None:
    """With many channels sums have terms that cancel out, and infinities do not."""
    inputs = layer(3, 9, 8, 8, 5)
    clean = conv_pool(*inputs)
    with torch.no_grad():
        inputs[part].flatten()[7 % inputs[part].numel()] = value
    ours, torchs = conv_pool(*inputs), in_torch(*inputs)
    finite = ours.isfinite()
    assert torchs.isfinite()[finite].all()
    torch.testing.assert_close(ours[finite], torchs[finite])
    touched = {0: (slice(0, 1), slice(None)), 1: (slice(None), slice(0, 1)), 2: (slice(None), slice(2, 3))}[part]
    clean[touched] = ours[touched]
    assert torch.equal(clean.nan_to_num(), ours.nan_to_num())


def test_a_gradient_that_is_not_finite_reaches_the_weights() -> None:
    inputs = layer(2, 2, 8, 8, 5)
    out = conv_pool(*inputs)
    for gradient in torch.autograd.grad(out, inputs, torch.full_like(out, torch.nan)):
        assert gradient.isnan().any()
    broken = conv_pool(inputs[0], torch.full_like(inputs[1], torch.nan).requires_grad_(), inputs[2])
    assert broken.isnan().all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_matter(threads: int) -> None:
    inputs = layer(5 * TOGETHER + 1, 3, 12, 12, 20)
    alone, before = gradients(conv_pool, inputs), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again = gradients(conv_pool, inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(alone, again, strict=True))


def test_the_result_can_be_changed_in_place() -> None:
    inputs = layer(2, 3, 8, 9, 5)
    ours = gradients(lambda *x: conv_pool(*x).mul_(2), inputs)
    for changed, expected in zip(ours, gradients(lambda *x: in_torch(*x) * 2, inputs), strict=True):
        torch.testing.assert_close(changed, expected)


def test_no_images_are_no_images() -> None:
    x, weight, bias = layer(1, 2, 8, 8, 5)
    assert conv_pool(x[:0], weight, bias).shape == (0, 5, 3, 3)
    assert gradients(conv_pool, (x.detach()[:0].requires_grad_(), weight, bias))[1].abs().sum() == 0


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_channels_may_be_anywhere(order: torch.memory_format) -> None:
    x, weight, bias = layer(2, 3, 8, 10, 5)
    inputs = x.detach().contiguous(memory_format=order), weight.detach().contiguous(memory_format=order), bias.detach()
    torch.testing.assert_close(conv_pool(*inputs), in_torch(*inputs))


# In a network


def network(**options: int | tuple[int, int] | bool) -> FusedSequential:
    torch.manual_seed(0)
    pooling = {name.removeprefix("pool_"): x for name, x in options.items() if name.startswith("pool_")}
    conv = {name: x for name, x in options.items() if not name.startswith("pool_")}
    return FusedSequential(
        nn.Conv2d(2, 4, **{"kernel_size": 3, **conv}),  # type: ignore[arg-type]
        nn.MaxPool2d(**{"kernel_size": 2, **pooling}),  # type: ignore[arg-type]
        nn.ReLU(),
        nn.Flatten(),
    )


def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often layers were done in one step."""
    calls: list[int] = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        calls.append(len(weight))
        return conv_pool(x, weight, bias)

    monkeypatch.setattr("equipoise.training._fused._layers.conv_pool", counted)
    return calls


def test_the_papers_network_is_done_in_two_steps_and_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = called(monkeypatch)
    eq.models.cnn()(torch.rand(2, 1, 28, 28))
    assert calls == [30, 50]


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"stride": 2},
        {"padding": 1},
        {"dilation": 2},
        {"groups": 2},
        {"bias": False},
        {"pool_kernel_size": 3},
        {"pool_stride": 1},
        {"pool_padding": 1},
        {"pool_dilation": 2},
        {"pool_ceil_mode": True},
    ],
)
def test_layers_with_other_options_are_done_one_by_one(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fused = called(monkeypatch), network(**options)
    x = torch.rand(3, 2, 9, 9)
    torch.testing.assert_close(fused(x), nn.Sequential(*fused)(x))
    assert not calls


@pytest.mark.parametrize("pair", [{"pool_kernel_size": (2, 2)}, {"pool_stride": (2, 2)}, {}])
def test_sizes_may_be_given_as_pairs(pair: dict[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fused = called(monkeypatch), network(**pair)
    x = torch.rand(3, 2, 9, 9)
    torch.testing.assert_close(fused(x), nn.Sequential(*fused)(x))
    assert calls == [4]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_hooks_are_called(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fused = called(monkeypatch), network()
    seen: list[torch.Size] = []
    hook = fused[place].register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    fused(torch.rand(3, 2, 9, 9))
    assert len(seen) == 1
    assert not calls
    hook.remove()
    fused(torch.rand(3, 2, 9, 9))
    assert calls == [4]


def test_without_the_library_layers_are_done_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fused, x = called(monkeypatch), network(), torch.rand(3, 2, 9, 9)
    ours = fused(x)
    with native.disabled():
        torch.testing.assert_close(fused(x), ours)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_transforms_and_traces_see_single_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fused, x = called(monkeypatch), network(), torch.rand(3, 2, 9, 9)
    parameters = dict(fused.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(fused, parameters, (x,))
        return out.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    traced = torch.jit.trace(fused, x, check_trace=False)  # type: ignore[no-untyped-call]
    exported = torch.export.export(fused, (x,))
    assert not calls
    torch.testing.assert_close(traced(x), fused(x))
    torch.testing.assert_close(exported.module()(x), fused(x))
    fused(x).square().sum().backward()
    torch.testing.assert_close(each["0.weight"].sum(0), fused[0].weight.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, for forward-mode gradients
def test_whoever_looks_at_single_operations_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fused, x = called(monkeypatch), network(), torch.rand(3, 2, 9, 9)
    with FlopCounterMode(display=False) as counter:
        fused(x)
    assert counter.get_total_flops() == 2 * 3 * 4 * 2 * 9 * 7 * 7
    with forward_ad.dual_level():
        out = fused(forward_ad.make_dual(x, torch.ones_like(x)))
        assert forward_ad.unpack_dual(out).tangent is not None
    assert not calls
    layers = torch.rand(4, 2, 3, 3), torch.rand(4)
    assert serves(x, *layers)
    with torch.autocast("cpu"):
        assert not serves(x, *layers)


def test_images_that_are_too_small_are_left_to_torch() -> None:
    assert not serves(torch.rand(1, 2, 3, 9), torch.rand(4, 2, 3, 3), torch.rand(4))
    assert serves(torch.rand(1, 2, 4, 9), torch.rand(4, 2, 3, 3), torch.rand(4))


def test_training_is_the_same_but_for_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.rand(40, 1, 28, 28, generator=generator), torch.randint(10, (40,), generator=generator))
        for _ in range(2)
    ]
    model = eq.models.cnn().double()
    clients = [(x.double(), y) for x, y in clients]
    train = eq.LocalSGD(model, nn.functional.cross_entropy, clients, lr=0.1, steps=3)
    start = eq.flatten(model).repeat(2, 1)
    ours = train(start, t=0)
    with native.disabled():
        torch.testing.assert_close(ours, train(start, t=0), rtol=0, atol=1e-12)


def test_a_network_can_be_copied_and_saved(tmp_path: Path) -> None:
    fused = network()
    torch.save(fused, tmp_path / "network.pt")
    x = torch.rand(3, 2, 9, 9)
    for again in (deepcopy(fused), torch.load(tmp_path / "network.pt", weights_only=False)):
        torch.testing.assert_close(again(x), fused(x))
