"""UBAR shows models to its judges in pieces."""

from __future__ import annotations

import pytest
import torch

from equipoise import UBAR, Topology
from equipoise.rules import _candidate_losses


@pytest.mark.parametrize("budget", [1, 30, 200, 5000])
def test_ubar_budget(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    graph = Topology.regular(20, 10, seed=0)
    targets = torch.randn(20, 10, generator=torch.Generator().manual_seed(1))
    models = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    inputs = dict(
        tolerated=2, loss_of=lambda models, clients: (models - targets[clients]).square().sum(1)
    )
    expected = UBAR()(models, graph.deliver(models), **inputs)
    monkeypatch.setattr(_candidate_losses, "COPIED_CANDIDATES", budget)
    found = UBAR()(models, graph.deliver(models), **inputs)
    assert torch.equal(found.weights, expected.weights)
    alone = UBAR()(
        models[3],
        models[graph.neighbors(3)],
        **inputs | {"loss_of": lambda x: inputs["loss_of"](x, [3])},
    )
    assert torch.equal(alone.weights, expected.weights[3])


# With 10 parameters, a budget of 400 elements fits 40 models, and one of 200 fits 20, a small
# batch. In the regular graph each model has ten receivers, on the ring two.
@pytest.mark.parametrize(
    ("graph", "budget", "size", "is_copied"),
    [
        (Topology.regular(20, 10, seed=0), 400, 40, True),
        (Topology.regular(20, 10, seed=0), 200, 10, False),
        (Topology.ring(20), 200, 20, True),
    ],
    ids=["large batches", "shared models", "few receivers"],
)
def test_batches_fit_budget(
    monkeypatch: pytest.MonkeyPatch, graph: Topology, budget: int, size: int, is_copied: bool
) -> None:
    monkeypatch.setattr(_candidate_losses, "COPIED_CANDIDATES", budget)
    models = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    batches = []

    def loss_of(candidates: torch.Tensor, clients: torch.Tensor) -> torch.Tensor:
        # An expanded model has stride 0. Batches of own models are slices of them, not copies.
        if candidates.untyped_storage().data_ptr() != models.untyped_storage().data_ptr():
            batches.append((len(candidates), True))
        elif candidates.stride(0) == 0:
            batches.append((len(candidates), False))
        return candidates.square().sum(1)

    UBAR()(models, graph.deliver(models), tolerated=0, loss_of=loss_of)
    assert set(batches) == {(size, is_copied)}
