"""Random directed graphs for tests of topologies."""

from __future__ import annotations

from hypothesis import strategies as st

from equipoise import Topology

Edges = list[tuple[int, int]]


def edge_list(topology: Topology) -> Edges:
    return [(sender, receiver) for sender, receiver in topology.edges().tolist()]


def both_ways(edges: Edges) -> Edges:
    return sorted({edge for a, b in edges for edge in ((a, b), (b, a))})


@st.composite
def digraphs(draw: st.DrawFn, max_n: int = 7) -> tuple[int, Edges]:
    """A number of clients and directed edges among them, with self-loops and duplicates."""
    n = draw(st.integers(1, max_n))
    client = st.integers(0, n - 1)
    return n, draw(st.lists(st.tuples(client, client), max_size=20))


def subsets(n: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, n - 1), unique=True, max_size=n)
