"""Malicious clients are placed as documented, reproducibly."""

from __future__ import annotations

import re

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise import Topology
from tests.digraphs import Edges, digraphs

PLACEMENTS = ("random", "degree", "betweenness", "cut")


def connected_pairs(graph: nx.Graph) -> int:
    return sum(len(part) * (len(part) - 1) // 2 for part in nx.connected_components(graph))


@given(digraphs(), st.sampled_from(PLACEMENTS), st.floats(0, 1), st.integers(0, 9))
def test_ids_ascend_and_repeat(graph: tuple[int, Edges], placement, share: float, seed: int):
    n, edges = graph
    topology = Topology.from_edges(n, edges)
    drawn = eq.draw_malicious(topology, share, seed=seed, placement=placement)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert len(drawn) == int(share * n + 1e-9)
    again = eq.draw_malicious(topology, share, seed=seed, placement=placement)
    assert drawn.equal(again)


@given(st.integers(1, 30), st.floats(0, 1))
def test_topology_stands_for_its_number(n: int, share: float):
    assert eq.draw_malicious(Topology.ring(n), share).equal(eq.draw_malicious(n, share))


@given(digraphs(), st.integers(1, 3))
def test_degree_takes_the_largest(graph: tuple[int, Edges], count: int):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    sends = [len({b for a, b in edges if a == i != b}) for i in range(n)]
    drawn = eq.draw_malicious(topology, min(count / n, 1), placement="degree")
    assert sorted(sends[i] for i in drawn) == sorted(sends)[n - len(drawn) :]


@given(digraphs())
def test_betweenness_takes_the_largest(graph: tuple[int, Edges]):
    n, edges = graph
    centrality = nx.betweenness_centrality(Topology.from_edges(n, edges).to_networkx())
    [drawn] = eq.draw_malicious(
        Topology.from_edges(n, edges), 1 / n, placement="betweenness"
    ).tolist()
    assert centrality[drawn] == pytest.approx(max(centrality.values()))


@given(digraphs())
def test_cut_leaves_the_fewest_pairs(graph: tuple[int, Edges]):
    n, edges = graph
    topology = Topology.from_edges(n, edges)
    whole = nx.Graph(topology.to_networkx())
    left = {}
    for client in range(n):
        rest = whole.copy()
        rest.remove_node(client)
        left[client] = connected_pairs(rest)
    [drawn] = eq.draw_malicious(topology, 1 / n, placement="cut").tolist()
    assert left[drawn] == min(left.values())


def test_cut_vertices_of_known_graphs():
    assert eq.draw_malicious(Topology.star(10), 0.1, placement="cut").tolist() == [0]
    path = Topology.from_edges(9, [(i, i + 1) for i in range(8)])
    assert eq.draw_malicious(path, 1 / 9, placement="cut").tolist() == [4]
    [bridge] = eq.draw_malicious(Topology.dumbbell(20), 0.05, placement="cut").tolist()
    assert bridge in (0, 19)


def test_seeds_break_ties():
    ring = Topology.ring(12)
    for placement in PLACEMENTS:
        drawn = {
            str(eq.draw_malicious(ring, 0.25, seed=seed, placement=placement)) for seed in range(8)
        }
        assert len(drawn) > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: eq.draw_malicious(10, 0.2, placement="degree"),
            "placement='degree' must have a Topology as n, found int",
        ),
        (
            lambda: eq.draw_malicious(10, 0.2, placement="center"),  # type: ignore[arg-type]
            "placement must be 'random', 'degree', 'betweenness' or 'cut', found 'center'",
        ),
    ],
)
def test_errors(make, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
