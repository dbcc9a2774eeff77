"""Graphs, and the paths of small and of large problems."""

from __future__ import annotations

import pytest

from equipoise import Topology
from equipoise.kernels import _distances, _message_distances

GRAPHS = {
    "dense": Topology.regular(20, 10, seed=1),
    "complete": Topology.complete(12),
    "sparse": Topology.regular(60, 2, seed=2),
    "star": Topology.from_edges(30, [(0, i) for i in range(1, 30)]),
    "directed": Topology.from_edges(
        9, [(i, j) for i in range(9) for j in range(9) if (i * j + i) % 4 == 1], directed=True
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> Topology:
    return GRAPHS[request.param]


@pytest.fixture(params=["fast", "small"])
def fast_or_small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of small problems, and that of large ones, for any size."""
    for module in (_distances, _message_distances):
        monkeypatch.setattr(module, "SMALL", -1 if request.param == "fast" else 1 << 60)
