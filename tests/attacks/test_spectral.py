"""The attack along the slowest mode of a graph."""

from __future__ import annotations

import torch

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_rounds import knowledge, received_lies
from tests.graphs import Graph, both_ways


def test_disconnected_graph() -> None:
    """Malicious client 2 is all that joins 0 and 1 to 3 and 4: these are driven away from those."""
    graph = eq.Topology.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    models = torch.tensor([[10.0], [11.0], [0.0], [30.0], [32.0]])
    lies = attacks.Spectral().forge(Knowledge(models, graph, [2]))
    assert lies is not None
    mode = 0.5 * (10 + 11 - 30 - 32)  # of the vector (1, 1, -1, -1) / 2
    torch.testing.assert_close(lies.rows, torch.tensor([[11 + 0.5 * mode], [30 - 0.5 * mode]]))


def two_clusters() -> Graph:
    """Clients 0 to 3 and 4 to 7 hear each other, 3 and 4 too, and all hear client 8."""
    cliques = [(a + base, b + base) for base in (0, 4) for a in range(4) for b in range(a)]
    return both_ways("two-clusters", 9, [*cliques, (3, 4), *((i, 8) for i in range(8))])


def test_clusters_move_apart() -> None:
    """Lies to the two sides of the benign graph's bottleneck are opposite, and cancel over all
    benign clients.
    """
    known = knowledge(two_clusters(), 6, torch.float64, [8])
    pushes = {
        i: lie - known.models[i] for (_, i), lie in received_lies(known, attacks.Spectral()).items()
    }
    assert sorted(pushes) == list(range(8))
    assert all(push.isfinite().all() and push.norm() > 0 for push in pushes.values())
    for left in range(4):
        for right in range(4, 8):
            assert float(pushes[left] @ pushes[right]) < 0
    assert torch.stack(list(pushes.values())).sum(0).abs().max() < 1e-9
    again = received_lies(known, attacks.Spectral())
    assert all(torch.equal(again[8, i] - known.models[i], push) for i, push in pushes.items())
