"""Norms, distances and cosines against float64, on every path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import Inbox, Topology, kernels
from equipoise.kernels import _distances
from tests.kernel_cases import direct, near_consensus


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("d", [3, 5000, 20001])
@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-6])
def test_near_consensus(graph: Topology, d: int, spread: float) -> None:
    models = near_consensus(graph.n, d, spread)
    inbox = graph.deliver(models)
    measured = kernels.distances(models, inbox)[0].square()
    truth = direct(models, inbox).square()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("outlier", [1e4, 1e20, 3e38, 1e-30, 0.0])
def test_one_outlier(graph: Topology, outlier: float) -> None:
    models = near_consensus(graph.n, 5000, 1e-4)
    models[1] = outlier * torch.ones(5000) if outlier > 1e30 else outlier * models[1]
    inbox = graph.deliver(models)
    measured = kernels.distances(models, inbox)[0].square()
    truth = direct(models, inbox).square()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("fast_or_small")
def test_two_clusters(graph: Topology) -> None:
    models = near_consensus(graph.n, 5000, 1e-4)
    models[::2] += 7
    inbox = graph.deliver(models)
    measured = kernels.distances(models, inbox)[0].square()
    truth = direct(models, inbox).square()
    torch.testing.assert_close(measured, truth, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("outlier", [-1.0, 1e20, 1e-30, 0.0])
@pytest.mark.parametrize("d", [5000, 70001])
def test_cosines(graph: Topology, outlier: float, d: int) -> None:
    models = torch.randn(graph.n, d, generator=torch.Generator().manual_seed(3))
    models[1] *= outlier
    inbox = graph.deliver(models)
    unit = torch.nn.functional.normalize(models.double(), dim=1, eps=0).nan_to_num()
    truth = (unit @ unit.T).gather(1, inbox.slots).where(inbox.present, 0)
    torch.testing.assert_close(kernels.cosines(models, inbox)[0], truth, rtol=1e-6, atol=5e-7)


@pytest.mark.usefixtures("fast_or_small")
def test_orthogonal_cosines() -> None:
    bank = torch.zeros(2, 6000)
    bank[0, ::2] = 3
    bank[1, 1::2] = 7
    inbox = Inbox(bank, torch.tensor([[1], [0]]))
    assert torch.equal(kernels.cosines(bank, inbox)[0], torch.zeros(2, 1, dtype=torch.float64))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.sampled_from([5, 9000]))
def test_threshold_in_float64(seed: int, ulps: int, d: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(2, d, generator=generator)
    message = own[0] + 0.3 * torch.randn(d, generator=generator)
    inbox = Inbox(torch.stack([message, message]), torch.tensor([[0], [1]]))
    apart = (message.double() - own.double()).norm(dim=1)
    factor = float(apart[0] / own[0].double().norm()) * (1 + ulps * 1e-9)
    expected = (apart <= factor * own.double().norm(dim=1))[:, None]
    apart, sizes = kernels.distances(own, inbox)
    accepted = kernels.within(own, inbox, sizes, apart, factor)
    assert torch.equal(accepted, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 7, 4096, 9000])
def test_norms(dtype: torch.dtype, d: int) -> None:
    x = torch.randn(6, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    x[1] = 0
    x[2, -1] = torch.nan
    x[3, 0] = -torch.inf
    x[4] = torch.finfo(dtype).max
    x[5] = torch.finfo(dtype).tiny
    truth = x.double().norm(dim=1)
    if dtype == torch.float64:
        truth[4] = torch.finfo(dtype).max if d == 1 else torch.nan
        truth[5] = torch.finfo(dtype).tiny * d**0.5
    truth = truth.where(truth.isfinite(), torch.nan)
    torch.testing.assert_close(kernels.norms(x), truth, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("lie", ["none", "noise", "nan", "huge", "copies", "on the limit"])
@pytest.mark.parametrize("spread", [1e-4, 0.1, 0.3, 3.0])
@pytest.mark.parametrize("diverged", [(), (0,), (0, 9, 19)], ids=str)
def test_pivots_decide_alike(
    lie: str, spread: float, diverged: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(1, 3000, generator=generator)
    models = models + spread * torch.randn(20, 3000, generator=generator)
    models[list(diverged)] *= 1e20
    rows = models + torch.randn(20, 3000, generator=generator)
    rows[3] = {"nan": torch.nan, "huge": 1e30}.get(lie, 1.0) * rows[3]
    if lie == "copies":
        rows = models[7].expand(20, -1).contiguous()
    if lie == "on the limit":  # of client 7
        rows = (models[7] * 1.3).expand(20, -1).contiguous()
    malicious = [] if lie == "none" else [3, 4, 5]
    graph = Topology.complete(20)
    limits = (0.0, 0.1, 0.3, 1.0)

    def accepted() -> list[torch.Tensor]:
        inboxes = [graph.deliver(models, rows, malicious) for _ in limits]
        pairs = zip(inboxes, limits, strict=True)
        return [kernels.close_messages(models, inbox, limit) for inbox, limit in pairs]

    monkeypatch.setattr(_distances, "PIVOTS_WORTH", 1 << 60)
    expected = accepted()
    monkeypatch.setattr(_distances, "PIVOTS_WORTH", 0)
    assert all(map(torch.equal, accepted(), expected))
