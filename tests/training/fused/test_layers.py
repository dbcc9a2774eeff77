"""Layers that are fused, and those that are called one by one."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import equipoise as eq
from equipoise.kernels import native
from equipoise.training._fused import FusedSequential
from equipoise.training._fused._convolution import can_fuse, conv_pool
from tests.instruction_sets import instructions  # noqa: F401


def network(**options: int | tuple[int, int] | bool) -> FusedSequential:
    torch.manual_seed(0)
    pooling = {
        name.removeprefix("pool_"): x for name, x in options.items() if name.startswith("pool_")
    }
    conv = {name: x for name, x in options.items() if not name.startswith("pool_")}
    return FusedSequential(
        nn.Conv2d(2, 4, **{"kernel_size": 3, **conv}),  # type: ignore[arg-type]
        nn.MaxPool2d(**{"kernel_size": 2, **pooling}),  # type: ignore[arg-type]
        nn.ReLU(),
        nn.Flatten(),
    )


def count_fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often layers were done in one step."""
    calls: list[int] = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        calls.append(len(weight))
        return conv_pool(x, weight, bias)

    monkeypatch.setattr("equipoise.training._fused._convolution.conv_pool", counted)
    return calls


def test_paper_network(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
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
def test_other_options(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
    fused = network(**options)
    x = torch.rand(3, 2, 9, 9)
    torch.testing.assert_close(fused(x), nn.Sequential(*fused)(x))
    assert not calls


@pytest.mark.parametrize("pair", [{"pool_kernel_size": (2, 2)}, {"pool_stride": (2, 2)}, {}])
def test_sizes_as_pairs(pair: dict[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
    fused = network(**pair)
    x = torch.rand(3, 2, 9, 9)
    torch.testing.assert_close(fused(x), nn.Sequential(*fused)(x))
    assert calls == [4]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_hooks(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
    fused = network()
    seen: list[torch.Size] = []
    hook = fused[place].register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    fused(torch.rand(3, 2, 9, 9))
    assert len(seen) == 1
    assert not calls
    hook.remove()
    fused(torch.rand(3, 2, 9, 9))
    assert calls == [4]


def test_without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
    fused = network()
    x = torch.rand(3, 2, 9, 9)
    ours = fused(x)
    with native.disabled():
        torch.testing.assert_close(fused(x), ours)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_transforms_and_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
    fused = network()
    x = torch.rand(3, 2, 9, 9)
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


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning"
)  # torch's own, for forward-mode gradients
def test_observed_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_fused(monkeypatch)
    fused = network()
    x = torch.rand(3, 2, 9, 9)
    with FlopCounterMode(display=False) as counter:
        fused(x)
    assert counter.get_total_flops() == 2 * 3 * 4 * 2 * 9 * 7 * 7
    with forward_ad.dual_level():
        out = fused(forward_ad.make_dual(x, torch.ones_like(x)))
        assert forward_ad.unpack_dual(out).tangent is not None
    assert not calls
    layers = torch.rand(4, 2, 3, 3), torch.rand(4)
    assert can_fuse(x, *layers)
    with torch.autocast("cpu"):
        assert not can_fuse(x, *layers)


def test_small_images() -> None:
    assert not can_fuse(torch.rand(1, 2, 3, 9), torch.rand(4, 2, 3, 3), torch.rand(4))
    assert can_fuse(torch.rand(1, 2, 4, 9), torch.rand(4, 2, 3, 3), torch.rand(4))


def test_training() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.rand(40, 1, 28, 28, generator=generator),
            torch.randint(10, (40,), generator=generator),
        )
        for _ in range(2)
    ]
    model = eq.models.cnn().double()
    clients = [(x.double(), y) for x, y in clients]
    train = eq.LocalSGD(model, nn.functional.cross_entropy, clients, lr=0.1, steps=3)
    start = eq.flatten(model).repeat(2, 1)
    ours = train(start, t=0)
    with native.disabled():
        torch.testing.assert_close(ours, train(start, t=0), rtol=0, atol=1e-12)


def test_copy_and_save(tmp_path: Path) -> None:
    fused = network()
    torch.save(fused, tmp_path / "network.pt")
    x = torch.rand(3, 2, 9, 9)
    for again in (deepcopy(fused), torch.load(tmp_path / "network.pt", weights_only=False)):
        torch.testing.assert_close(again(x), fused(x))
