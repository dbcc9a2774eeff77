"""Topology: constructors, properties and derived graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Topology
from tests.digraphs import Edges, both_ways, digraphs, edge_list, subsets


@given(digraphs())
def test_from_edges(graph: tuple[int, Edges]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    heard = [sorted({sender for sender, receiver in edges if receiver == i}) for i in range(n)]
    k = max(map(len, heard))
    assert (topology.n, topology.k) == (n, k)
    assert topology.senders.tolist() == [row + [-1] * (k - len(row)) for row in heard]
    assert topology.mask.tolist() == [[True] * len(row) + [False] * (k - len(row)) for row in heard]
    assert topology.degrees.tolist() == [len(row) for row in heard]
    assert [topology.neighbors(i).tolist() for i in range(n)] == heard
    assert edge_list(topology) == sorted(set(edges))


@given(digraphs())
def test_undirected_edges(graph: tuple[int, Edges]):
    n, edges = graph
    assert edge_list(Topology.from_edges(n, edges)) == both_ways(edges)


@pytest.mark.parametrize(
    "edges",
    [
        [(0, 1), (2, 1)],
        {(0, 1), (2, 1)},
        pytest.param(((a, 1) for a in (0, 2)), id="generator"),
        [[0, 1], [2, 1]],
        torch.tensor([[0, 1], [2, 1]]),
        torch.tensor([[0, 1], [2, 1]], dtype=torch.int32),
        np.array([[2, 1], [0, 1]])[::-1],
    ],
    ids=str,
)
def test_from_edges_types(edges):
    assert edge_list(Topology.from_edges(3, edges, directed=True)) == [(0, 1), (2, 1)]


@pytest.mark.parametrize(
    "edges", [[], set(), torch.zeros(0, 2), torch.zeros(0), np.zeros((0, 2))], ids=str
)
def test_graph_without_edges(edges):
    topology = Topology.from_edges(3, edges)
    assert topology.senders.shape == topology.mask.shape == (3, 0)
    assert topology.degrees.tolist() == [0, 0, 0]
    assert topology.edges().shape == (0, 2)
    assert topology.neighbors(2).tolist() == []
    assert topology.femb([0]) == 0.0
    assert topology.malicious_neighbors([0]).tolist() == [0, 0, 0]
    assert not topology.is_connected()
    assert topology.drop(0.5).senders.shape == (3, 0)
    assert topology.with_self_loops().senders.tolist() == [[0], [1], [2]]
    assert topology.to_networkx().number_of_nodes() == 3


@given(digraphs())
def test_adjacency_round_trip(graph: tuple[int, Edges]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    matrix = topology.adjacency()
    assert matrix.tolist() == [
        [(sender, receiver) in edges for receiver in range(n)] for sender in range(n)
    ]
    for same in (matrix, matrix.float(), matrix.long().numpy(), matrix.int().tolist()):
        assert torch.equal(Topology.from_adjacency(same).senders, topology.senders)


@given(digraphs())
def test_networkx_round_trip(graph: tuple[int, Edges]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    exported = topology.to_networkx()
    mutual = sorted(set(edges)) == both_ways(edges)
    assert exported.is_directed() != mutual
    assert list(exported) == list(range(n))
    assert exported.number_of_edges() == (
        len({frozenset(edge) for edge in edges}) if mutual else len(set(edges))
    )
    assert torch.equal(Topology.from_networkx(exported).senders, topology.senders)


def test_networkx_sorted_nodes():
    graph = nx.Graph([(30, 10), (10, 20)])
    assert edge_list(Topology.from_networkx(graph)) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    graph = nx.DiGraph([("c", "a"), ("b", "b")])
    assert edge_list(Topology.from_networkx(graph)) == [(1, 1), (2, 0)]


def test_networkx_given_nodes():
    path = [f"c{i}" for i in range(12)]
    graph = nx.path_graph(path, create_using=nx.DiGraph)
    expected = [(i, i + 1) for i in range(11)]
    assert edge_list(Topology.from_networkx(graph, nodes=graph.nodes)) == expected
    assert edge_list(Topology.from_networkx(graph, nodes=path[::-1])) == sorted(
        (11 - a, 11 - b) for a, b in expected
    )
    assert edge_list(Topology.from_networkx(graph)) != expected
    mixed = nx.DiGraph(
        [(2, "a"), ("a", 0)]
    )  # cannot be sorted, and some names are those of clients
    assert edge_list(Topology.from_networkx(mixed, nodes=iter([2, 0, "a"]))) == [(0, 2), (2, 1)]
    assert list(mixed) == [2, "a", 0]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_ring_and_complete(n: int):
    assert edge_list(Topology.ring(n)) == both_ways([(i, (i + 1) % n) for i in range(n) if n > 1])
    assert edge_list(Topology.complete(n)) == [(i, j) for i in range(n) for j in range(n) if i != j]
    assert Topology.ring(n).is_connected()
    assert Topology.complete(n).is_connected()


def test_large_graphs():
    n = 100_000
    clients = torch.arange(n)
    edges = torch.cat(
        [torch.stack([clients, (clients + step) % n], dim=1) for step in range(1, 11)]
    )
    topology = Topology.from_edges(n, edges)
    assert (topology.degrees == 20).all()
    assert topology.neighbors(50).tolist() == [i for i in range(40, 61) if i != 50]
    assert Topology.complete(1000).senders.shape == (1000, 999)


@given(st.data(), digraphs())
def test_femb(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    malicious = data.draw(subsets(n))
    different = {(a, b) for a, b in edges if a != b}
    cross = [(a in malicious) != (b in malicious) for a, b in different]
    topology = Topology.from_edges(n, edges, directed=True)
    assert topology.femb(malicious) == (sum(cross) / len(cross) if cross else 0.0)
    assert topology.with_self_loops().femb(malicious) == topology.femb(malicious)


@given(st.data(), digraphs())
def test_connectivity(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    malicious = data.draw(subsets(n))
    topology = Topology.from_edges(n, edges, directed=True)
    reference = nx.DiGraph(edges)
    reference.add_nodes_from(range(n))
    assert topology.is_connected() == nx.is_strongly_connected(reference)
    reference.remove_nodes_from(malicious)
    assert topology.is_connected(malicious) == (
        len(reference) == 0 or nx.is_strongly_connected(reference)
    )


@given(st.data(), digraphs())
def test_malicious_neighbors(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    malicious = data.draw(subsets(n))
    counts = Topology.from_edges(n, edges, directed=True).malicious_neighbors(malicious)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [
        len({a for a, b in edges if b == i and a in malicious}) for i in range(n)
    ]


def test_repr_is_short():
    assert repr(Topology.complete(1000)) == "Topology(n=1000, k=999, e=999000)"


@given(digraphs(), st.floats(0, 1), st.integers(0, 2**31))
def test_drop_clients(graph: tuple[int, Edges], p: float, seed: int):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True).with_self_loops()
    dropped = topology.drop(p, torch.Generator().manual_seed(seed))
    alive = {
        client for client, other in edge_list(dropped) if client == other
    }  # whoever keeps hearing itself
    assert dropped.n == n
    assert edge_list(dropped) == [
        (a, b) for a, b in edge_list(topology) if a in alive and b in alive
    ]
    assert dropped.k == int(dropped.degrees.max())
    again = topology.drop(p, torch.Generator().manual_seed(seed))
    assert torch.equal(again.senders, dropped.senders)


@given(digraphs())
def test_drop_none_or_all(graph: tuple[int, Edges]):
    topology = Topology.from_edges(*graph, directed=True)
    assert torch.equal(topology.drop(0.0).senders, topology.senders)
    assert topology.drop(1.0).senders.shape == (topology.n, 0)


def test_drop_rate():
    loops = Topology.from_edges(20_000, []).with_self_loops()
    assert abs(int(loops.drop(0.2).degrees.sum()) / 20_000 - 0.8) < 0.02
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(loops.drop(0.2, generator).senders, loops.drop(0.2, generator).senders)


@given(st.data(), digraphs())
def test_without_receivers(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    deaf = data.draw(subsets(n))
    expected = Topology.from_edges(n, [(a, b) for a, b in edges if b not in deaf], directed=True)
    is_deaf = torch.tensor([i in deaf for i in range(n)])
    for clients in (deaf, is_deaf):
        assert torch.equal(topology.without_receivers(clients).senders, expected.senders)
    assert edge_list(topology) == sorted(set(edges))


@given(digraphs())
def test_without_all_or_no_receivers(graph: tuple[int, Edges]):
    topology = Topology.from_edges(*graph, directed=True)
    assert torch.equal(topology.without_receivers([]).senders, topology.senders)
    assert topology.without_receivers(range(topology.n)).senders.shape == (topology.n, 0)


def test_without_receivers_delivers_the_same():
    """The others receive the same messages, also from clients that receive nothing."""
    topology = Topology.complete(5)
    models = torch.randn(5, 3)
    inbox = topology.without_receivers([0, 4]).deliver(models)
    assert inbox.counts.tolist() == [0, 4, 4, 4, 0]
    everything = topology.deliver(models)
    assert torch.equal(inbox.bank[inbox.slots[1:4]], everything.bank[everything.slots[1:4]])


@given(digraphs())
def test_self_loops_once(graph: tuple[int, Edges]):
    n, edges = graph
    looped = Topology.from_edges(n, edges, directed=True).with_self_loops()
    assert edge_list(looped) == sorted({*edges, *((i, i) for i in range(n))})
    assert torch.equal(looped.with_self_loops().senders, looped.senders)


def test_to_a_device():
    ring = Topology.ring(4)
    assert torch.equal(ring.to("cpu").senders, ring.senders)
