"""flatten and unflatten: modules to vectors and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from tests.modules import FLOATS, network, same, values


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(2, 2, bias=False)
        self.decode = nn.Linear(2, 2)
        self.decode.weight = self.encode.weight


class Buffers(nn.Module):
    """One buffer of every kind, one of them shared."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("mean", torch.tensor([2.0, 3.0]))
        self.register_buffer("again", self.mean)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("allowed", torch.tensor([True]))
        self.register_buffer("table", torch.tensor([4.0]), persistent=False)
        self.register_buffer("absent", None)


def numbered(module: nn.Module) -> nn.Module:
    """Parameters 0, 1, 2, ... in row-major order, written without the code under test."""
    start = 0
    for x in module.parameters():
        x.data.copy_(torch.arange(start, start + x.numel()).view(x.shape))
        start += x.numel()
    return module


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    """Modules with random parameters: shapes, dtypes, memory formats, frozen or not."""
    module = nn.ParameterDict()
    for i in range(draw(st.integers(1, 4))):
        x = torch.randn(draw(st.lists(st.integers(0, 4), max_size=4))).to(
            draw(st.sampled_from(FLOATS))
        )
        order = draw(st.permutations(range(x.dim())))
        module[f"p{i}"] = nn.Parameter(
            x.permute(*order) if order else x, requires_grad=draw(st.booleans())
        )
    return module


class TestFlatten:
    def test_order(self) -> None:
        module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
        assert torch.equal(eq.flatten(numbered(module)), torch.arange(11.0))

    def test_shared_parameters(self) -> None:
        vector = eq.flatten(numbered(Tied()))
        assert torch.equal(vector, torch.arange(6.0))

    def test_memory_format(self) -> None:
        module = numbered(nn.Conv2d(3, 2, 2))
        expected = eq.flatten(module)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert not module.weight.is_contiguous()
        assert torch.equal(eq.flatten(module), expected)

    def test_frozen_parameters(self) -> None:
        module = numbered(nn.Linear(3, 2))
        module.weight.requires_grad_(False)
        assert torch.equal(eq.flatten(module), torch.arange(8.0))

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_dtype_is_kept(self, dtype: torch.dtype) -> None:
        assert eq.flatten(nn.Linear(2, 1).to(dtype)).dtype == dtype

    @pytest.mark.parametrize(
        ("dtypes", "widest"),
        [
            ((torch.float32, torch.float16), torch.float32),
            ((torch.bfloat16, torch.float64), torch.float64),
            ((torch.float16, torch.bfloat16), torch.float32),
        ],
    )
    def test_mixed_dtypes(
        self, dtypes: tuple[torch.dtype, torch.dtype], widest: torch.dtype
    ) -> None:
        module = nn.Sequential(*(nn.Linear(3, 2).to(dtype) for dtype in dtypes))
        vector = eq.flatten(module)
        assert vector.dtype == widest
        assert torch.equal(
            vector, torch.cat([x.detach().flatten().to(widest) for x in module.parameters()])
        )

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
    def test_device_is_kept(self) -> None:
        assert eq.flatten(nn.Linear(2, 1, device="cuda")).device.type == "cuda"

    def test_copy_without_gradient(self) -> None:
        module = numbered(nn.Linear(3, 2))
        vector = eq.flatten(module)
        assert not vector.requires_grad
        vector.fill_(-1.0)
        assert torch.equal(eq.flatten(module), torch.arange(8.0))

    def test_buffers_only_on_request(self) -> None:
        assert torch.equal(eq.flatten(Buffers()), torch.tensor([1.0]))

    def test_persistent_buffers_once(self) -> None:
        assert torch.equal(eq.flatten(Buffers(), buffers=True), torch.tensor([1.0, 2.0, 3.0]))

    def test_batch_norm_statistics(self) -> None:
        module = nn.BatchNorm1d(2)
        module(torch.tensor([[0.0, 10.0], [2.0, 30.0]]))
        expected = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.1, 2.0, 0.9 + 0.2, 0.9 + 20.0])
        torch.testing.assert_close(eq.flatten(module, buffers=True), expected)

    def test_no_elements(self) -> None:
        assert eq.flatten(nn.ParameterList([torch.zeros(0, 2)])).shape == (0,)


class TestUnflatten:
    def test_writes_in_order(self) -> None:
        module = nn.Linear(3, 2)
        assert eq.unflatten(torch.arange(8.0), module) is module
        assert torch.equal(module.weight, torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
        assert torch.equal(module.bias, torch.tensor([6.0, 7.0]))

    @given(modules())
    def test_undoes_flatten(self, module: nn.Module) -> None:
        before = values(module)
        vector = eq.flatten(module)
        assert len(vector) == sum(x.numel() for x in before)
        with torch.no_grad():
            for x in module.parameters():
                x.fill_(7.0)
        eq.unflatten(vector, module)
        assert same(values(module), before)

    @given(modules())
    def test_is_undone_by_flatten(self, module: nn.Module) -> None:
        vector = (
            torch.arange(sum(x.numel() for x in module.parameters())) % 128
        )  # exact in every dtype
        flat = eq.flatten(eq.unflatten(vector.double(), module))
        assert torch.equal(flat, vector.to(flat.dtype))

    def test_round_trip_with_buffers(self) -> None:
        source = network()
        target = network()
        source(torch.randn(4, 2, 2, 2))
        eq.unflatten(eq.flatten(source, buffers=True), target, buffers=True)
        source.eval(), target.eval()
        x = torch.randn(5, 2, 2, 2)
        assert torch.equal(source(x), target(x))
        assert target[1].num_batches_tracked == 0  # an integer: not part of the vector

    def test_buffers_stay(self) -> None:
        module = network()
        module(torch.randn(4, 2, 2, 2))
        before = [x.clone() for x in module.buffers()]
        eq.unflatten(torch.zeros_like(eq.flatten(module)), module)
        assert same(list(module.buffers()), before)

    def test_shared_parameters_stay_shared(self) -> None:
        module = eq.unflatten(torch.arange(6.0), Tied())
        assert module.decode.weight is module.encode.weight
        assert torch.equal(module.decode.weight, torch.tensor([[0.0, 1.0], [2.0, 3.0]]))

    def test_memory_format_is_kept(self) -> None:
        module = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        eq.unflatten(torch.arange(26.0), module)
        assert torch.equal(module.weight, torch.arange(24.0).view(2, 3, 2, 2))
        assert module.weight.is_contiguous(memory_format=torch.channels_last)

    def test_cast_to_parameter_dtype(self) -> None:
        module = nn.Sequential(nn.Linear(1, 1).half(), nn.Linear(1, 1).double())
        eq.unflatten(torch.full((4,), 0.1, dtype=torch.float64), module)
        assert [x.dtype for x in module.parameters()] == [torch.float16] * 2 + [torch.float64] * 2
        assert module[0].weight.item() == torch.tensor(0.1).half().item()
        assert module[1].weight.item() == 0.1

    def test_strided_vector(self) -> None:
        module = eq.unflatten(torch.arange(16.0)[::2], nn.Linear(3, 2))
        assert torch.equal(eq.flatten(module), torch.arange(0.0, 16.0, 2))
        assert torch.equal(eq.flatten(eq.unflatten(torch.ones(1).expand(8), module)), torch.ones(8))

    def test_vector_is_copied(self) -> None:
        vector = torch.arange(8.0)
        module = eq.unflatten(vector, nn.Linear(3, 2))
        with torch.no_grad():
            module.weight.fill_(-1.0)
        assert torch.equal(vector, torch.arange(8.0))

    def test_vector_with_gradient(self) -> None:
        module = eq.unflatten(torch.arange(8.0, requires_grad=True) * 2, nn.Linear(3, 2))
        assert all(x.is_leaf for x in module.parameters())

    def test_gradient_and_flags_stay(self) -> None:
        module = nn.Linear(3, 2)
        module.bias.requires_grad_(False)
        module(torch.ones(3)).sum().backward()
        before = list(module.parameters())
        eq.unflatten(torch.zeros(8), module)
        assert all(x is y for x, y in zip(module.parameters(), before, strict=True))
        assert [x.requires_grad for x in module.parameters()] == [True, False]
        assert torch.equal(module.weight.grad, torch.ones(2, 3))  # type: ignore[arg-type]

    def test_optimizer(self) -> None:
        module = eq.unflatten(torch.zeros(3), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        for start, expected in (
            (10.0, 9.9),
            (20.0, 19.85),
        ):  # momentum: a step of 0.1, then of 0.15
            eq.unflatten(torch.full((3,), start), module)
            optimizer.zero_grad()
            module(torch.ones(2)).sum().backward()
            optimizer.step()
            torch.testing.assert_close(eq.flatten(module), torch.full((3,), expected))


pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
