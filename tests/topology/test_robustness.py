"""r-robustness: equal to brute force, and within its bounds."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from equipoise import Topology
from equipoise.topology import Robustness
from equipoise.topology.robustness import robustness_of
from tests.digraphs import Edges, digraphs


def reach(sends: Tensor, members: set[int]) -> int:
    """The most clients outside of the set from which one of its members receives."""
    n = len(sends)
    return max(sum(bool(sends[j, i]) for j in range(n) if j not in members) for i in members)


def by_brute_force(sends: Tensor) -> int:
    """The definition: over all pairs of disjoint nonempty sets."""
    n = len(sends)
    smallest = (n + 1) // 2
    for labels in itertools.product((0, 1, 2), repeat=n):
        first = {i for i in range(n) if labels[i] == 1}
        second = {i for i in range(n) if labels[i] == 2}
        if first and second:
            smallest = min(smallest, max(reach(sends, first), reach(sends, second)))
    return smallest


def without_loops(topology: Topology) -> Tensor:
    return topology.adjacency().fill_diagonal_(False)


@settings(max_examples=60, deadline=None)
@given(digraphs(max_n=6))
def test_exact_equals_brute_force(graph: tuple[int, Edges]):
    pytest.importorskip("scipy")
    n, edges = graph
    for topology in (Topology.from_edges(n, edges, directed=True), Topology.from_edges(n, edges)):
        expected = by_brute_force(without_loops(topology))
        assert robustness_of(topology.adjacency(), time_limit=10) == Robustness(expected, expected)


@settings(max_examples=60, deadline=None)
@given(digraphs(max_n=6))
def test_bounds_contain_brute_force(graph: tuple[int, Edges]):
    n, edges = graph
    for topology in (Topology.from_edges(n, edges, directed=True), Topology.from_edges(n, edges)):
        bounds = robustness_of(topology.adjacency(), time_limit=0)
        assert bounds.lower <= by_brute_force(without_loops(topology)) <= bounds.upper


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (Topology.regular(20, 10, seed=0), 5),
        (Topology.complete(9), 5),
        (Topology.ring(10), 1),
        (Topology.star(6), 1),
        (Topology.two_castle(10), 4),
        (Topology.octopus(10), 1),
        (Topology.two_worlds(12, 2), 2),
        (Topology.dumbbell(8), 1),
        (Topology.from_edges(4, [(0, 1), (2, 3)]), 0),
    ],
    ids=str,
)
def test_known_graphs(topology: Topology, expected: int):
    pytest.importorskip("scipy")
    assert str(robustness_of(topology.adjacency(), time_limit=30)) == str(expected)


def test_large_graphs_have_bounds():
    found = robustness_of(Topology.regular(300, 10, seed=0).adjacency(), time_limit=30)
    assert not found.is_exact
    assert str(found) == f"{found.lower} to {found.upper}"


def test_input_keeps_its_loops():
    sends = Topology.ring(4).with_self_loops().adjacency()
    before = sends.clone()
    robustness_of(sends, time_limit=0)
    assert torch.equal(sends, before)
