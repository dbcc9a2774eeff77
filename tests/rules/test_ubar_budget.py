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
