"""stack_models and unstack_models: the modules of many clients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from tests.modules import FLOATS, network, same, values


class TestStackModels:
    @pytest.mark.parametrize("buffers", [False, True])
    def test_rows_are_the_models(self, buffers: bool) -> None:
        clients = [network() for _ in range(3)]
        for client in clients:
            client(torch.randn(4, 2, 2, 2))
        models = eq.stack_models(clients, buffers=buffers)
        assert models.shape == (3, 27 + 6 + 8 + 6 * buffers)
        assert not models.requires_grad
        for row, client in zip(models, clients, strict=True):
            assert torch.equal(row, eq.flatten(client, buffers=buffers))

    def test_takes_any_iterable(self) -> None:
        clients = [nn.Linear(2, 1) for _ in range(2)]
        assert torch.equal(eq.stack_models(iter(clients)), eq.stack_models(nn.ModuleList(clients)))

    def test_memory_formats_may_differ(self) -> None:
        plain = nn.Conv2d(3, 2, 2)
        strided = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        first, second = eq.stack_models([plain, strided])
        assert torch.equal(first, second)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_dtype_is_kept(self, dtype: torch.dtype) -> None:
        assert eq.stack_models([nn.Linear(2, 1).to(dtype)]).dtype == dtype

    def test_no_second_copy_is_made(self) -> None:
        clients = [nn.Linear(1000, 100) for _ in range(5)]
        with torch.profiler.profile(profile_memory=True) as profile:
            models = eq.stack_models(clients)
        allocated = [event.self_cpu_memory_usage for event in profile.events()]
        assert [size for size in allocated if size > 10_000] == [models.nbytes]

    def test_no_modules(self) -> None:
        with pytest.raises(ValueError, match="modules must hold at least one module, found none"):
            eq.stack_models([])

    @pytest.mark.parametrize(
        ("other", "text"),
        [
            (
                nn.Linear(3, 4),
                r"modules\[1\] must have the parameters of modules\[0\], expected "
                r"parameter 'weight', float32 \(2, 3\) "
                r"on cpu, found parameter 'weight', float32 \(4, 3\) on cpu",
            ),
            (
                nn.Linear(3, 2).double(),
                r"expected parameter 'weight', float32 .*, found parameter "
                r"'weight', float64 \(2, 3\)",
            ),
            (
                nn.Linear(3, 2, bias=False),
                r"expected parameter 'bias', float32 \(2,\) on cpu, found no more",
            ),
            (
                nn.Sequential(nn.Linear(3, 2)),
                "expected parameter 'weight', .* found parameter '0.weight'",
            ),
            (nn.ReLU(), r"modules\[1\] must have parameters, found none in ReLU"),
            (None, r"modules\[1\] must be a torch.nn.Module, found NoneType"),
        ],
    )
    def test_other_architecture(self, other: Any, text: str) -> None:
        with pytest.raises(ValueError, match=text):
            eq.stack_models([nn.Linear(3, 2), other])

    def test_one_parameter_more(self) -> None:
        text = (
            r"modules\[2\] must have .*, expected no more, found parameter 'bias', "
            r"float32 \(2,\) on cpu"
        )
        with pytest.raises(ValueError, match=text):
            eq.stack_models(
                [nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False), nn.Linear(3, 2)]
            )

    def test_buffers_on_request(self) -> None:
        clients = [nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)]
        assert eq.stack_models(clients).shape == (2, 4)
        with pytest.raises(
            ValueError,
            match=r"expected buffer 'running_mean', float32 \(2,\) on cpu, found no more",
        ):
            eq.stack_models(clients, buffers=True)


class TestUnstackModels:
    @pytest.mark.parametrize("buffers", [False, True])
    def test_undoes_stack_models(self, buffers: bool) -> None:
        clients = [network() for _ in range(3)]
        models = torch.randn_like(eq.stack_models(clients, buffers=buffers))
        parameters = [id(x) for client in clients for x in client.parameters()]
        found = eq.unstack_models(models, iter(clients), buffers=buffers)
        assert all(a is b for a, b in zip(found, clients, strict=True))
        assert [id(x) for client in clients for x in client.parameters()] == parameters
        assert torch.equal(eq.stack_models(clients, buffers=buffers), models)

    def test_layouts_may_differ(self) -> None:
        first = nn.Linear(3, 2)
        second = nn.Linear(7, 1, dtype=torch.float64)
        eq.unstack_models(torch.arange(16.0).view(2, 8), [first, second])
        assert eq.flatten(first).tolist() == [*range(8)]
        assert eq.flatten(second).tolist() == [*range(8, 16)]

    @pytest.mark.parametrize(
        ("models", "make", "text"),
        [
            (
                [[0.0] * 8],
                lambda: [nn.Linear(3, 2)],
                r"models must be .* shape \(n, d\), found list",
            ),
            (torch.zeros(8), lambda: [nn.Linear(3, 2)], r"found float32 \(8,\)"),
            (
                torch.zeros(1, 8, dtype=torch.int64),
                lambda: [nn.Linear(3, 2)],
                r"found int64 \(1, 8\)",
            ),
            (
                torch.zeros(1, 8),
                lambda: nn.Linear(3, 2),
                "several modules, found Linear; unflatten takes one",
            ),
            (torch.zeros(0, 8), list, "at least one module, found none"),
            (
                torch.zeros(3, 8),
                lambda: [nn.Linear(3, 2), nn.Linear(3, 2)],
                "modules must be one per row of models, expected 3, found 2",
            ),
            (
                torch.zeros(2, 8),
                lambda: [nn.Linear(3, 2)] * 2,
                r"must not share parameters, found parameter 'weight' of "
                r"modules\[1\] in modules\[0\]; copy.deepcopy",
            ),
        ],
    )
    def test_errors(self, models: Any, make: Any, text: str) -> None:
        with pytest.raises(ValueError, match=text):
            eq.unstack_models(models, make())

    def test_checked_before_written(self) -> None:
        clients = [nn.Linear(3, 2), nn.Linear(3, 3)]
        before = values(clients[0])
        text = (
            r"row of models must have 12 elements, one per parameter of modules\[1\], "
            r"found 8: it ends at"
        )
        with pytest.raises(ValueError, match=text):
            eq.unstack_models(torch.full((2, 8), 9.0), clients)
        assert same(values(clients[0]), before)


pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def test_shared_memory() -> None:
    first = torch.nn.Linear(2, 1)
    second = torch.nn.Linear(2, 1)
    second.weight = torch.nn.Parameter(first.weight.data)
    with pytest.raises(
        ValueError, match="modules must not share parameters, found parameter 'weight' of modules"
    ):
        eq.unstack_models(torch.zeros(2, 3), [first, second])
