"""Weighted sums against float64."""

from __future__ import annotations

import pytest
import torch

from benchmarks.host_waits import Waits
from equipoise import Inbox, Topology, kernels
from equipoise.kernels import _weighted_sums


@pytest.mark.parametrize("dense", [0, 1 << 60], ids=["sparse", "dense"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 9000])
def test_combine(
    graph: Topology, dense: int, dtype: torch.dtype, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_weighted_sums, "PRODUCTS_PER_SUM", dense)
    generator = torch.Generator().manual_seed(d)
    models = torch.randn(graph.n, d, generator=generator).to(dtype)
    inbox = graph.deliver(models)
    weights = torch.rand(inbox.slots.shape, generator=generator, dtype=torch.float64)
    weights = weights.where(inbox.present & (weights > 0.3), 0) / inbox.k
    own_weights = torch.rand(graph.n, generator=generator, dtype=torch.float64).round()
    truth = (weights[:, :, None] * models.double()[inbox.slots]).sum(1) + own_weights[
        :, None
    ] * models.double()
    found = kernels.combine(models, own_weights, inbox, weights)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), truth, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("dense", [0, 1 << 60], ids=["sparse", "dense"])
def test_zero_weights_are_ignored(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weighted_sums, "PRODUCTS_PER_SUM", dense)
    bank = torch.tensor([[1.0], [torch.nan], [torch.inf], [3e38]])
    inbox = Inbox(bank, torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]]), keep_nonfinite=True)
    weights = torch.tensor([[0.5, 0, 0, 0], [0, 0, 0, 1e-38]], dtype=torch.float64)
    own = torch.tensor([[4.0], [torch.nan]])
    found = kernels.combine(own, torch.tensor([0.5, 0], dtype=torch.float64), inbox, weights)
    torch.testing.assert_close(found, torch.tensor([[2.5], [3.0]]))


def test_huge_messages() -> None:
    bank = torch.tensor([[3e38], [3e38], [-3e38], [5.0]])
    inbox = Inbox(bank, torch.tensor([[0, 1, 2, 3]]))
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    found = kernels.combine(torch.zeros(1, 1), torch.zeros(1, dtype=torch.float64), inbox, weights)
    torch.testing.assert_close(found, torch.tensor([[0.75e38]]))


def test_clients_that_keep_own_are_served_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the host would wait for each of them."""
    monkeypatch.setattr(_weighted_sums.native, "serves", lambda *_: False)
    counts = []
    for n in (10, 100):
        models = torch.rand(n, 3)
        inbox = Topology.complete(n).deliver(models)
        keeps = (torch.arange(n) % 2).double()
        weights = ((1 - keeps) / inbox.k)[:, None].expand(-1, inbox.k)
        with Waits() as waits:
            found = kernels.combine(models, keeps, inbox, weights)
        counts.append(waits.count)
        assert torch.equal(found[1::2], models[1::2])
    assert counts[0] == counts[1]
