"""Graphs of the field's papers have the documented degrees and edges."""

from __future__ import annotations

import re

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Topology
from tests.digraphs import both_ways, edge_list

HALVES = st.integers(1, 9)


@given(st.integers(1, 20))
def test_star(n: int):
    assert edge_list(Topology.star(n)) == both_ways([(0, i) for i in range(1, n)])


@given(st.integers(1, 6), st.integers(1, 6))
def test_torus_is_a_product_of_rings(rows: int, columns: int):
    grid = nx.cartesian_product(nx.cycle_graph(rows), nx.cycle_graph(columns))
    grid.remove_edges_from(list(nx.selfloop_edges(grid)))  # a cycle of one client has a loop
    expected = [(a * columns + b, c * columns + d) for (a, b), (c, d) in grid.edges]
    topology = Topology.torus(rows, columns)
    assert topology.n == rows * columns
    assert edge_list(topology) == both_ways(expected)


def test_torus_has_four_neighbors():
    assert Topology.torus(3, 7).degrees.unique().tolist() == [4]


@given(st.integers(1, 40))
def test_exponential(n: int):
    topology = Topology.exponential(n)
    hops = {2**power for power in range(10) if 2**power < n}
    assert edge_list(topology) == sorted((i, (i + hop) % n) for i in range(n) for hop in hops)
    assert topology.degrees.tolist() == [len(hops)] * n
    assert topology.is_connected()


@given(HALVES)
def test_dumbbell(half: int):
    topology = Topology.dumbbell(2 * half)
    expected = nx.disjoint_union(nx.complete_graph(half), nx.complete_graph(half))
    expected.add_edge(0, 2 * half - 1)
    assert edge_list(topology) == both_ways(list(expected.edges))


@given(HALVES, st.data())
def test_two_worlds(half: int, data: st.DataObject):
    bridges = data.draw(st.integers(0, half))
    topology = Topology.two_worlds(2 * half, bridges)
    assert topology.degrees.tolist() == [half - 1 + bridges] * (2 * half)
    across = [(a, b - half) for a, b in edge_list(topology) if a < half <= b]
    expected = [(i, (i + step) % half) for i in range(half) for step in range(bridges)]
    assert across == sorted(expected)


@given(HALVES)
def test_two_castle(half: int):
    topology = Topology.two_castle(2 * half)
    complete = edge_list(Topology.complete(2 * half))
    assert edge_list(topology) == [(a, b) for a, b in complete if abs(a - b) != half]


@given(HALVES)
def test_octopus(half: int):
    topology = Topology.octopus(2 * half)
    assert topology.degrees.tolist() == [half] * half + [1] * half
    assert [topology.neighbors(i).tolist() for i in range(half, 2 * half)] == [
        [arm] for arm in range(half)
    ]


@pytest.mark.parametrize(
    "make", [Topology.dumbbell, Topology.two_worlds, Topology.two_castle, Topology.octopus]
)
def test_odd_numbers_are_errors(make):
    with pytest.raises(ValueError, match="n must be even, found 5"):
        make(5)
    with pytest.raises(ValueError, match="n must be an integer at least 2, found 0"):
        make(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology.two_worlds(6, 4), "bridges must be an integer from 0 to 3, found 4"),
        (lambda: Topology.torus(0, 3), "rows must be an integer at least 1, found 0"),
        (lambda: Topology.torus(3, 2.0), "columns must be an integer at least 1, found 2.0"),
        (lambda: Topology.star(0), "n must be an integer at least 1, found 0"),
        (lambda: Topology.exponential(-1), "n must be an integer at least 1, found -1"),
        (lambda: Topology.ring(3).with_malicious(-1), "count must be an integer at least 0"),
    ],
)
def test_errors(make, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@given(st.integers(1, 8), st.integers(0, 4))
def test_with_malicious_adds_neighbors_of_all(n: int, count: int):
    before = Topology.ring(n)
    after = before.with_malicious(count)
    malicious = range(n, n + count)
    assert after.n == n + count
    assert after.malicious_neighbors(malicious).tolist() == [count] * n + [0] * count
    assert after.degrees[:n].tolist() == (before.degrees + count).tolist()
    benign = [(a, b) for a, b in edge_list(after) if max(a, b) < n]
    assert benign == edge_list(before)
