"""Distances between messages against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from equipoise import Krum, Topology, kernels
from equipoise.kernels import _message_distances, native
from tests.kernel_cases import near_consensus


@pytest.mark.usefixtures("fast_or_small")
@pytest.mark.parametrize("spread", [1.0, 1e-4])
@pytest.mark.parametrize("outlier", [1.0, 1e4, 1e20, 0.0])
@pytest.mark.parametrize("own_is_bank", [True, False])
def test_message_distances(
    graph: Topology, spread: float, outlier: float, own_is_bank: bool
) -> None:
    models = near_consensus(graph.n, 5000, spread)
    models[1] *= outlier
    models[3] = models[2]
    inbox = graph.deliver(models)
    own = models if own_is_bank else models.clone()
    for group, squares in kernels.message_distances(own, inbox):
        messages = models.double()[group.rows]
        truth = (messages[:, :, None] - messages[:, None, :]).square().sum(3)
        torch.testing.assert_close(squares, truth, rtol=1e-6, atol=0)
        assert torch.equal(squares, squares.mT)
        assert torch.equal(group.rows, inbox.slots[group.receivers[:, None], group.columns])
    assert sorted(
        torch.cat([g.receivers for g, _ in kernels.message_distances(own, inbox)]).unique().tolist()
    ) == ((inbox.counts > 0).nonzero().flatten().tolist())


def test_message_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_message_distances, "BUDGET", 1000)
    graph = Topology.regular(200, 4, seed=0)
    models = near_consensus(200, 5000, 1e-2)
    groups = list(kernels.message_distances(models, graph.deliver(models)))
    assert len(groups) > 1  # more than one piece
    for group, squares in groups:
        messages = models.double()[group.rows]
        truth = (messages[:, :, None] - messages[:, None, :]).square().sum(3)
        torch.testing.assert_close(squares, truth, rtol=1e-6, atol=0)


def test_copied_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    squared_distances_of_each = _message_distances.squared_distances_of_each

    def count_calls(centers: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        copied.append(centers.numel())
        return squared_distances_of_each(centers, *others)

    monkeypatch.setattr(_message_distances, "squared_distances_of_each", count_calls)
    monkeypatch.setattr(_message_distances, "BUDGET", 25_000)
    models = near_consensus(80, 100_000, 1e-2)
    inbox = Topology.ring(80).deliver(models)
    with native.disabled():
        served = sum(len(group.receivers) for group, _ in kernels.message_distances(models, inbox))
    assert (served, sum(copied)) == (80, models.numel())
    assert max(copied) <= 8 * _message_distances.BUDGET


@pytest.mark.parametrize("remembered", [1 << 21, 0])
@pytest.mark.parametrize("budget", [1 << 19, 1000])
def test_near_tie_is_cheap(budget: int, remembered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All receivers share the distances of the two rivals to all clients."""
    computed = []
    careful_squares = _message_distances.careful_squares

    def count_calls(bank: Tensor, left: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        computed.append(len(left))
        return careful_squares(bank, left, *others)

    monkeypatch.setattr(_message_distances, "careful_squares", count_calls)
    monkeypatch.setattr(_message_distances, "SMALL", -1)
    monkeypatch.setattr(_message_distances, "BUDGET", budget)
    monkeypatch.setattr(_message_distances, "REMEMBERED", remembered)
    models = near_consensus(30, 5000, 1e-2)
    graph = Topology.complete(30)
    models[7] = 1.001 * models.mean(0)
    models[4] = models[7]
    models[4, 0] = torch.nextafter(models[4, 0], torch.tensor(9.0))
    weights = Krum(tolerated=5)(models, graph.deliver(models)).weights
    squares = torch.cdist(
        models.double(), models.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).square()
    for receiver in range(30):
        heard = graph.senders[receiver]
        scores = squares[heard][:, heard].sort(1).values[:, : 29 - 5 - 1].sum(1)
        assert weights[receiver].argmax() == scores.argmin()
    assert len(computed) > 0
    assert remembered == 0 or sum(computed) <= 2 * 30 + 1


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
def test_distances_to_own_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Topology.regular(20, 10, seed=0)
    models = near_consensus(20, 5000, 1e-2)
    expected, _ = kernels.distances(models, graph.deliver(models))
    inbox = graph.deliver(models)
    list(kernels.message_distances(models, inbox))
    monkeypatch.setattr(native, "measure", None)  # another measurement would fail
    found, _ = kernels.distances(models, inbox)
    assert torch.equal(found, expected)
