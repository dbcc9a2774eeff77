"""Results do not depend on what was computed from the same inbox before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.testing._rounds import Distance
from tests.cases import RULES

TOUCHES: dict[str, Callable[[Tensor, eq.Inbox], object]] = {
    "bank_norms": lambda own, inbox: inbox.bank_norms,
    "finite": lambda own, inbox: inbox.finite,
    "balance": lambda own, inbox: _call(RULES["balance"], own, inbox),
    "krum": lambda own, inbox: _call(RULES["krum"], own, inbox),
    "fltrust": lambda own, inbox: _call(RULES["fltrust"], own, inbox),
    "median": lambda own, inbox: _call(RULES["median"], own, inbox),
}
# Few rows are compared in place, more in strips of 192 and of 64 columns, dense ones in tiles.
GRAPHS = {
    "few": (eq.Topology.ring(6), 5003),
    "complete": (eq.Topology.complete(30), 3001),
    "wide strips": (eq.Topology.ring(36), 9001),
    "narrow strips": (eq.Topology.regular(130, 4), 1503),
    "long": (eq.Topology.ring(5), 70_001),
}


def _call(rule: Any, own: Tensor, inbox: eq.Inbox) -> eq.Aggregated:
    inputs = {
        "samples": torch.arange(1, len(own) + 1),
        "loss_of": Distance(torch.zeros(len(own), 100)),
    }
    return rule(own, inbox, t=1, total=10, tolerated=0, **inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("apart", [False, True], ids=["own is the bank", "own is apart"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_same_bits(graph: str, apart: bool, dtype: torch.dtype) -> None:
    topology, d = GRAPHS[graph]
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(1, d, generator=generator) + 0.4 * torch.randn(
        topology.n, d, generator=generator
    )
    models = models.to(dtype)
    own = models.clone() if apart else models
    for name, rule in RULES.items():
        fresh = _call(rule, own, topology.deliver(models))
        for what, touch in TOUCHES.items():
            inbox = topology.deliver(models)
            touch(own, inbox)
            again = _call(rule, own, inbox)
            assert torch.equal(again.model, fresh.model), f"{name} after {what}"
            if fresh.weights is not None:
                assert torch.equal(again.weights, fresh.weights), f"weights of {name} after {what}"
