"""Topology: constructors, measures and deliveries, against loops over single edges."""

from __future__ import annotations

import re

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import Lies, Topology
from equipoise.messages.inbox import Inbox

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


# Constructors


@given(digraphs())
def test_from_edges_lists_every_sender_once_in_order(graph: tuple[int, Edges]):
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
def test_undirected_edges_go_both_ways(graph: tuple[int, Edges]):
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
def test_from_edges_takes_many_kinds_of_pairs(edges):
    assert edge_list(Topology.from_edges(3, edges, directed=True)) == [(0, 1), (2, 1)]


@pytest.mark.parametrize("edges", [[], set(), torch.zeros(0, 2), torch.zeros(0), np.zeros((0, 2))], ids=str)
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
    assert matrix.tolist() == [[(sender, receiver) in edges for receiver in range(n)] for sender in range(n)]
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
    assert exported.number_of_edges() == (len({frozenset(edge) for edge in edges}) if mutual else len(set(edges)))
    assert torch.equal(Topology.from_networkx(exported).senders, topology.senders)


def test_from_networkx_numbers_nodes_in_sorted_order():
    graph = nx.Graph([(30, 10), (10, 20)])
    assert edge_list(Topology.from_networkx(graph)) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    graph = nx.DiGraph([("c", "a"), ("b", "b")])
    assert edge_list(Topology.from_networkx(graph)) == [(1, 1), (2, 0)]


def test_from_networkx_numbers_nodes_as_asked():
    path = [f"c{i}" for i in range(12)]
    graph = nx.path_graph(path, create_using=nx.DiGraph)
    expected = [(i, i + 1) for i in range(11)]
    assert edge_list(Topology.from_networkx(graph, nodes=graph.nodes)) == expected
    assert edge_list(Topology.from_networkx(graph, nodes=path[::-1])) == sorted((11 - a, 11 - b) for a, b in expected)
    assert edge_list(Topology.from_networkx(graph)) != expected
    mixed = nx.DiGraph([(2, "a"), ("a", 0)])  # cannot be sorted, and some names are those of clients
    assert edge_list(Topology.from_networkx(mixed, nodes=iter([2, 0, "a"]))) == [(0, 2), (2, 1)]
    assert list(mixed) == [2, "a", 0]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_ring_and_complete(n: int):
    assert edge_list(Topology.ring(n)) == both_ways([(i, (i + 1) % n) for i in range(n) if n > 1])
    assert edge_list(Topology.complete(n)) == [(i, j) for i in range(n) for j in range(n) if i != j]
    assert Topology.ring(n).is_connected()
    assert Topology.complete(n).is_connected()


def test_large_graphs_are_built_without_loops():
    n = 100_000
    clients = torch.arange(n)
    edges = torch.cat([torch.stack([clients, (clients + step) % n], dim=1) for step in range(1, 11)])
    topology = Topology.from_edges(n, edges)
    assert (topology.degrees == 20).all()
    assert topology.neighbors(50).tolist() == [i for i in range(40, 61) if i != 50]
    assert Topology.complete(1000).senders.shape == (1000, 999)


# Random graphs

RANDOM = {
    "regular": lambda **wanted: Topology.regular(12, 3, **wanted),
    "dense": lambda **wanted: Topology.regular(9, 6, **wanted),
    "erdos_renyi": lambda **wanted: Topology.erdos_renyi(12, 0.3, **wanted),
    "small_world": lambda **wanted: Topology.small_world(12, 4, 0.4, **wanted),
    "femb": lambda **wanted: Topology.random_with_femb(12, 0.3, wanted.pop("malicious", [0, 5]), edges=20, **wanted),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_are_connected_simple_and_reproducible(name: str, seed: int):
    topology = RANDOM[name](seed=seed, malicious=[0, 5])
    again = RANDOM[name](seed=seed, malicious=[0, 5])
    assert torch.equal(topology.senders, again.senders)
    matrix = topology.adjacency()
    assert torch.equal(matrix, matrix.T)
    assert not matrix.diagonal().any()
    assert topology.is_connected()
    assert topology.is_connected(malicious=[0, 5])


@pytest.mark.parametrize("name", RANDOM)
def test_seeds_matter_and_torch_seeds_what_has_none(name: str):
    assert len({str(edge_list(RANDOM[name](seed=seed))) for seed in range(5)}) > 1
    torch.manual_seed(7)
    first, second = RANDOM[name](), RANDOM[name]()
    torch.manual_seed(7)
    assert edge_list(RANDOM[name]()) == edge_list(first)
    assert edge_list(RANDOM[name]()) == edge_list(second)


@pytest.mark.parametrize(("n", "degree"), [(1, 0), (2, 1), (5, 2), (20, 10), (20, 19), (9, 8), (100, 90)])
def test_regular_degrees(n: int, degree: int):
    assert Topology.regular(n, degree, seed=1).degrees.tolist() == [degree] * n


def test_first_draw_need_not_be_connected():
    unconnected = Topology.regular(6, 1, seed=0, connected=False)
    assert unconnected.degrees.tolist() == [1] * 6
    assert not unconnected.is_connected()
    assert Topology.erdos_renyi(5, 0.0, seed=0, connected=False).k == 0


def test_erdos_renyi_density_and_extremes():
    pairs = 300 * 299
    assert abs(len(Topology.erdos_renyi(300, 0.2, seed=3).edges()) / pairs - 0.2) < 0.01
    assert edge_list(Topology.erdos_renyi(6, 1.0)) == edge_list(Topology.complete(6))


def test_small_world_starts_as_a_ring_of_nearest_clients():
    nearest = [(i, (i + step) % 10) for i in range(10) for step in (1, 2)]
    assert edge_list(Topology.small_world(10, 4, 0.0)) == both_ways(nearest)
    rewired = edge_list(Topology.small_world(10, 4, 1.0, seed=0))
    assert len(rewired) == 40
    assert rewired != both_ways(nearest)


def test_benign_subgraph_is_connected_only_if_malicious_is_given():
    draws = [Topology.erdos_renyi(8, 0.3, seed=seed) for seed in range(20)]
    assert not all(graph.is_connected(malicious=[1, 2]) for graph in draws)
    asked = [Topology.erdos_renyi(8, 0.3, seed=seed, malicious=[1, 2]) for seed in range(20)]
    assert all(graph.is_connected(malicious=[1, 2]) and graph.is_connected() for graph in asked)


# FEMB: the fraction of edges between malicious and benign clients


@pytest.mark.parametrize("femb", [0.16, 0.22, 0.32])
@pytest.mark.parametrize("seed", range(3))
def test_femb_of_the_paper_is_met(femb: float, seed: int):
    topology = Topology.random_with_femb(20, femb, malicious=range(4), seed=seed)
    assert len(topology.edges()) == 2 * 100
    assert abs(topology.femb(range(4)) - femb) <= 1 / (2 * 100)
    assert (topology.degrees > 0).all()
    assert topology.is_connected(malicious=range(4))


@given(st.data(), st.integers(1, 9), st.booleans())
def test_femb_is_exact_or_impossible(data: st.DataObject, n: int, connected: bool):
    """The graph exists exactly when the counts allow it, as counted by hand here."""
    malicious = data.draw(subsets(n))
    femb = data.draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]))
    edges = data.draw(st.integers(0, n * (n - 1) // 2))
    liars, benign, cross = len(malicious), n - len(malicious), round(femb * edges)
    within = liars * (liars - 1) // 2 + benign * (benign - 1) // 2
    possible = cross <= liars * benign and edges - cross <= within
    if connected and liars and benign and cross == 0:
        possible &= min(liars, benign) > 1 and edges >= n - 2
    elif connected:
        possible &= edges - cross >= max(benign - 1, 0) and edges - cross >= benign - 1 + max(liars - cross, 0)
    if not possible:
        with pytest.raises(ValueError, match=rf"femb={femb} with {edges} edges of {benign} benign"):
            Topology.random_with_femb(n, femb, malicious, edges=edges, connected=connected)
        return
    topology = Topology.random_with_femb(n, femb, malicious, edges=edges, connected=connected)
    assert len(topology.edges()) == 2 * edges
    assert not topology.adjacency().diagonal().any()
    assert topology.femb(malicious) == pytest.approx(cross / max(edges, 1))
    if connected:
        assert topology.is_connected(malicious)
        assert topology.is_connected() or cross == 0
        assert (topology.degrees > 0).all() or n == 1


@pytest.mark.parametrize(
    ("n", "femb", "malicious", "edges"),
    [
        (20, 0.3, 4, 100),  # ten neighbours each
        (7, 0.2, 2, 14),  # not 21, all pairs, since only 11 of them are within a side: round(0.2 * 14) + 11 = 14
        (30, 0.3, 1, 98),  # not 150, since the malicious client can have 29 edges: round(0.3 * 98) = 29
        (1, 0.0, 0, 0),
    ],
)
def test_default_number_of_edges_is_as_large_as_possible(n: int, femb: float, malicious: int, edges: int):
    topology = Topology.random_with_femb(n, femb, range(malicious), seed=0)
    assert len(topology.edges()) == 2 * edges
    assert topology.femb(range(malicious)) == pytest.approx(round(femb * edges) / max(edges, 1))


def test_no_pair_of_clients_is_preferred_in_a_graph_with_femb():
    """Each pair turns up about as often as every other pair of its kind, even in little more than a tree."""
    malicious, draws = [1, 4], 400
    graphs = [Topology.random_with_femb(8, 0.25, malicious, edges=9, seed=seed) for seed in range(draws)]
    rates = torch.stack([graph.adjacency() for graph in graphs]).float().mean(0)
    liars = torch.zeros(8, dtype=torch.bool).index_fill(0, torch.tensor(malicious), True)
    across = rates[liars][:, ~liars]
    among_benign = rates[~liars][:, ~liars][~torch.eye(6, dtype=torch.bool)]
    assert across.mean().item() == pytest.approx(2 / 12)  # two of the nine edges, on twelve pairs
    assert (across - across.mean()).abs().max() < 0.08  # four standard deviations
    assert (among_benign - among_benign.mean()).abs().max() < 0.1


@given(st.data(), digraphs())
def test_femb_counts_edges_between_the_sides(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    malicious = data.draw(subsets(n))
    different = {(a, b) for a, b in edges if a != b}
    cross = [(a in malicious) != (b in malicious) for a, b in different]
    topology = Topology.from_edges(n, edges, directed=True)
    assert topology.femb(malicious) == (sum(cross) / len(cross) if cross else 0.0)
    assert topology.with_self_loops().femb(malicious) == topology.femb(malicious)


# What a graph is like


@given(st.data(), digraphs())
def test_connectivity_like_networkx(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    malicious = data.draw(subsets(n))
    topology = Topology.from_edges(n, edges, directed=True)
    reference = nx.DiGraph(edges)
    reference.add_nodes_from(range(n))
    assert topology.is_connected() == nx.is_strongly_connected(reference)
    reference.remove_nodes_from(malicious)
    assert topology.is_connected(malicious) == (len(reference) == 0 or nx.is_strongly_connected(reference))


@given(st.data(), digraphs())
def test_malicious_neighbors_are_counted(data: st.DataObject, graph: tuple[int, Edges]):
    n, edges = graph
    malicious = data.draw(subsets(n))
    counts = Topology.from_edges(n, edges, directed=True).malicious_neighbors(malicious)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [len({a for a, b in edges if b == i and a in malicious}) for i in range(n)]


def test_repr_is_short():
    assert repr(Topology.complete(1000)) == "Topology(n=1000, k=999, e=999000)"


# Other graphs


@given(digraphs(), st.floats(0, 1), st.integers(0, 2**31))
def test_dropped_edges_are_those_of_dropped_clients(graph: tuple[int, Edges], p: float, seed: int):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True).with_self_loops()
    dropped = topology.drop(p, torch.Generator().manual_seed(seed))
    alive = {client for client, other in edge_list(dropped) if client == other}  # whoever keeps hearing itself
    assert dropped.n == n
    assert edge_list(dropped) == [(a, b) for a, b in edge_list(topology) if a in alive and b in alive]
    assert dropped.k == int(dropped.degrees.max())
    again = topology.drop(p, torch.Generator().manual_seed(seed))
    assert torch.equal(again.senders, dropped.senders)


@given(digraphs())
def test_nobody_or_everybody_drops(graph: tuple[int, Edges]):
    topology = Topology.from_edges(*graph, directed=True)
    assert torch.equal(topology.drop(0.0).senders, topology.senders)
    assert topology.drop(1.0).senders.shape == (topology.n, 0)


def test_clients_drop_at_the_given_rate():
    loops = Topology.from_edges(20_000, []).with_self_loops()
    assert abs(int(loops.drop(0.2).degrees.sum()) / 20_000 - 0.8) < 0.02
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(loops.drop(0.2, generator).senders, loops.drop(0.2, generator).senders)


@given(digraphs())
def test_self_loops_are_added_once(graph: tuple[int, Edges]):
    n, edges = graph
    looped = Topology.from_edges(n, edges, directed=True).with_self_loops()
    assert edge_list(looped) == sorted({*edges, *((i, i) for i in range(n))})
    assert torch.equal(looped.with_self_loops().senders, looped.senders)


def test_to_a_device():
    ring = Topology.ring(4)
    assert torch.equal(ring.to("cpu").senders, ring.senders)


# Sending


def messages(inbox: Inbox) -> dict[tuple[int, int], Tensor]:
    """Every message by (sender, receiver)."""
    return {(int(inbox.senders[i, s]), int(i)): inbox.bank[inbox.slots[i, s]] for i, s in inbox.mask.nonzero().tolist()}


def expected_messages(topology: Topology, models: Tensor, lies: Lies, malicious: list[int]) -> dict:
    """The obvious way: one dictionary of addressed lies, asked from the most to the least specific address."""
    told = {}
    for sender, receiver, row in zip(lies.senders, lies.receivers, lies.rows[lies.which], strict=True):
        told[int(sender), int(receiver)] = row
    heard = {}
    for a, b in edge_list(topology):
        heard[a, b] = models[a]
        if a in malicious and a != b:
            addresses = ((a, b), (-1, b), (a, -1), (-1, -1))
            heard[a, b] = next((told[address] for address in addresses if address in told), models[a])
    return heard


KINDS = ("per_sender", "per_receiver", "per_edge", "to_all")


@st.composite
def lies_of_a_kind(draw: st.DrawFn, kind: str, n: int) -> Lies:
    if kind == "to_all":
        return Lies.to_all(torch.randn(3))
    if kind == "per_edge":
        client = st.integers(0, n - 1)
        edges = draw(st.lists(st.tuples(client, client), max_size=8))
        return Lies.per_edge(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2), torch.randn(len(edges), 3))
    only = draw(st.none() | subsets(n))
    if kind == "per_sender":
        return Lies.per_sender(torch.randn(n, 3), only=only)
    return Lies.per_receiver(torch.randn(n, 3), only=only, senders=draw(st.none() | subsets(n)))


@given(st.data(), digraphs(), st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
def test_lies_arrive_where_they_are_addressed(data: st.DataObject, graph: tuple[int, Edges], kinds: list[str]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    malicious = data.draw(st.just([]) | st.just(list(range(n))) | subsets(n))
    lies = Lies.join(*(data.draw(lies_of_a_kind(kind, n)) for kind in kinds))
    models = torch.randn(n, 3)
    before = models.clone()
    inbox = topology.deliver(models, lies, malicious)

    expected = expected_messages(topology, models, lies, malicious)
    found = messages(inbox)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[edge], expected[edge]) for edge in expected)
    assert torch.equal(inbox.mask, topology.mask)
    assert torch.equal(inbox.senders[inbox.mask], topology.senders[topology.mask])
    assert torch.equal(models, before)

    rows_used = {tuple(message.tolist()) for message in expected.values()}
    if inbox.bank is not models:
        assert len(inbox.bank) == len(rows_used)
    else:
        assert all(torch.equal(expected[a, b], models[a]) for a, b in expected)


def test_without_lies_nothing_is_copied():
    models = torch.randn(5, 3)
    topology = Topology.from_edges(5, [(0, 1), (1, 2), (1, 4)])
    inbox = topology.deliver(models)
    assert inbox.bank is models
    assert torch.equal(inbox.slots[inbox.mask], topology.senders[topology.mask])
    assert (inbox.slots[~inbox.mask] == 0).all()
    assert topology.deliver(models, torch.zeros(5, 3), malicious=[]).bank is models


def test_a_tensor_of_lies_is_what_every_malicious_client_says():
    models = torch.tensor([[0.0], [1.0], [2.0]])
    inbox = Topology.complete(3).deliver(models, models + 10, malicious=torch.tensor([False, True, False]))
    assert {edge: message.item() for edge, message in messages(inbox).items()} == {
        (0, 1): 0.0,
        (0, 2): 0.0,
        (1, 0): 11.0,
        (1, 2): 11.0,
        (2, 0): 2.0,
        (2, 1): 2.0,
    }
    assert len(inbox.bank) == 3  # two models and one lie


def test_nonfinite_lies_are_absent_unless_kept():
    models, lie = torch.zeros(3, 1), Lies.to_all(torch.tensor([torch.nan]))
    topology = Topology.complete(3)
    assert topology.deliver(models, lie, [0]).counts.tolist() == [2, 1, 1]
    assert topology.deliver(models, lie, [0], keep_nonfinite=True).counts.tolist() == [2, 2, 2]
    assert topology.deliver(lie.rows.expand(3, 1)).counts.tolist() == [0, 0, 0]
    assert topology.deliver(lie.rows.expand(3, 1), keep_nonfinite=True).counts.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_deliveries_keep_the_dtype(dtype: torch.dtype):
    models = torch.ones(3, 2, dtype=dtype)
    inbox = Topology.ring(3).deliver(models, torch.zeros_like(models), malicious=[0])
    assert inbox.bank.dtype == dtype
    assert inbox.bank.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_models_that_require_grad_can_be_replaced():
    models = torch.ones(3, 2, requires_grad=True)
    inbox = Topology.ring(3).deliver(models, torch.zeros(3, 2), malicious=[0, 1, 2])
    assert inbox.bank.tolist() == [[0, 0]] * 3
    assert not inbox.bank.requires_grad


@pytest.mark.parametrize("lies", [None, torch.zeros(1, 2)], ids=["truth", "lies"])
def test_one_client_hears_nothing_but_its_self_loop(lies: Tensor | None):
    models, alone = torch.ones(1, 2), Topology.ring(1)
    assert alone.deliver(models, lies, malicious=[0]).counts.tolist() == [0]
    inbox = alone.with_self_loops().deliver(models, lies, malicious=[0])
    assert inbox.bank[inbox.slots].tolist() == [[[1.0, 1.0]]]  # whatever it tells others


# Errors

RING, MODELS = Topology.ring(3), torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Topology(torch.zeros(3)),
            "senders must be an int64 tensor of shape (n, k), n > 0, found float32 (3,)",
        ),
        (lambda: Topology(torch.zeros(0, 2).long()), "n > 0, found int64 (0, 2)"),
        (
            lambda: Topology(torch.tensor([[1], [2]])),
            "senders must be clients from 0 to 1, or -1 for none, found 1 to 2",
        ),
        (lambda: Topology(torch.tensor([[-2], [0]])), "or -1 for none, found -2 to 0"),
        (
            lambda: Topology(torch.tensor([[0, 1], [1, 0]])),
            "senders must ascend for every receiver, then be -1, found [1, 0]",
        ),
        (lambda: Topology(torch.tensor([[0, 1], [1, 1]])), "then be -1, found [1, 1]"),
        (lambda: Topology(torch.tensor([[-1, 1], [0, 1]])), "then be -1, found [-1, 1]"),
        (lambda: Topology.ring(0), "n must be an integer at least 1, found 0"),
        (lambda: Topology.complete(2.0), "n must be an integer at least 1, found 2.0"),
        (lambda: Topology.regular(0, 0), "n must be an integer at least 1, found 0"),
        (lambda: Topology.regular(4, 4), "degree must be an integer from 0 to 3, found 4"),
        (lambda: Topology.regular(4, -1), "degree must be an integer from 0 to 3, found -1"),
        (lambda: Topology.regular(5, 3), "n * degree must be even, found 5 * 3 = 15"),
        (lambda: Topology.regular(6, 3, seed=-1), "seed must be an integer at least 0, found -1"),
        (lambda: Topology.regular(6, 3, malicious=[6]), "malicious must be from 0 to 5, found 6"),
        (
            lambda: Topology.regular(6, 1, seed=0),
            "found no connected regular graph with n=6, degree=1 in 1000 draws; ask for more edges, or for connected=",
        ),
        (lambda: Topology.erdos_renyi(0, 0.5), "n must be an integer at least 1, found 0"),
        (lambda: Topology.erdos_renyi(4, 1.5), "p must be a number from 0 to 1, found 1.5"),
        (lambda: Topology.erdos_renyi(4, float("nan")), "p must be a number from 0 to 1, found nan"),
        (lambda: Topology.erdos_renyi(3, 0.0), "found no connected Erdős-Rényi graph with n=3, p=0.0 in 1000 draws"),
        (lambda: Topology.small_world(0, 2, 0.1), "n must be an integer at least 1, found 0"),
        (lambda: Topology.small_world(4, 4, 0.1), "degree must be an integer from 0 to 3, found 4"),
        (
            lambda: Topology.small_world(6, 3, 0.1),
            "degree must be even, half of it on either side of a client, found 3",
        ),
        (lambda: Topology.small_world(6, 2, -0.1), "rewire must be a number from 0 to 1, found -0.1"),
        (
            lambda: Topology.small_world(6, 2, 0.0, malicious=[0, 3]),
            "found no connected small-world graph with n=6, degree=2, rewire=0.0 with its 4 benign clients connected "
            "among themselves in 1000 draws",
        ),
        (lambda: Topology.random_with_femb(0, 0.1, []), "n must be an integer at least 1, found 0"),
        (lambda: Topology.random_with_femb(4, 1.1, [0]), "femb must be a number from 0 to 1, found 1.1"),
        (lambda: Topology.random_with_femb(4, 0.1, [4]), "malicious must be from 0 to 3, found 4"),
        (lambda: Topology.random_with_femb(4, 0.1, [0], edges=-1), "edges must be an integer at least 0, found -1"),
        (
            lambda: Topology.random_with_femb(4, 1.0, [0], edges=4),
            "femb=1.0 with 4 edges of 3 benign and 1 malicious clients needs 4 edges between malicious and benign "
            "clients, found 3 pairs of them",
        ),
        (lambda: Topology.random_with_femb(4, 0.0, [0], edges=4), "needs 4 edges on either side, found 3 pairs"),
        (
            lambda: Topology.random_with_femb(4, 0.0, [0], edges=3),
            "needs an edge between malicious and benign clients to give every client a neighbor, found 0",
        ),
        (
            lambda: Topology.random_with_femb(4, 1.0, [0], edges=3),
            "needs at least 2 edges on either side to be connected, found 0",
        ),
        (lambda: Topology.random_with_femb(4, 1.0, [0]), "femb=1.0 with 6 edges of 3 benign and 1 malicious"),
        (lambda: Topology.from_networkx(nx.MultiGraph()), "graph must be a Graph or a DiGraph, found MultiGraph"),
        (lambda: Topology.from_networkx([(0, 1)]), "graph must be a Graph or a DiGraph, found list"),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, "a")])),
            "graph must have nodes that can be sorted, found [0, 'a']",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0]),
            "nodes must hold every node of the graph once, found 1 0 times",
        ),
        (lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0, 1, 0]), "once, found 0 2 times"),
        (lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0, "1"]), "once, found '1' that is not in it"),
        (lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0, [1]]), "once, found [1] that is not in it"),
        (lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=2), "every node of the graph once, found int"),
        (lambda: Topology.from_networkx([(0, 1)], nodes=[0, 1]), "graph must be a Graph or a DiGraph, found list"),
        (lambda: Topology.from_networkx(nx.Graph()), "n must be an integer at least 1, found 0"),
        (lambda: Topology.from_edges(0, []), "n must be an integer at least 1, found 0"),
        (lambda: Topology.from_edges(3, [(0, 3)]), "edges must join clients 0 to 2, found 0 to 3"),
        (lambda: Topology.from_edges(3, [(-1, 2)]), "edges must join clients 0 to 2, found -1 to 2"),
        (lambda: Topology.from_edges(3, [(0, 1, 2)]), "edges must be integers of shape (e, 2), found int64 (1, 3)"),
        (lambda: Topology.from_edges(3, [(0.0, 1.0)]), "edges must be integers of shape (e, 2), found float64 (1, 2)"),
        (lambda: Topology.from_edges(3, [(True, False)]), "edges must be integers of shape (e, 2), found bool (1, 2)"),
        (
            lambda: Topology.from_edges(3, torch.tensor([0, 1])),
            "edges must be integers of shape (e, 2), found int64 (2,)",
        ),
        (lambda: Topology.from_edges(3, [(0, 1), (2,)]), "edges must be pairs of clients, found [(0, 1), (2,)]"),
        (lambda: Topology.from_edges(3, 5), "edges must be pairs of clients, found 5"),
        (lambda: Topology.from_adjacency(torch.zeros(2, 3)), "matrix must be of shape (n, n), found float32 (2, 3)"),
        (lambda: Topology.from_adjacency(torch.zeros(4)), "matrix must be of shape (n, n), found float32 (4,)"),
        (lambda: Topology.from_adjacency([[0, 1], [2, 0]]), "matrix must hold nothing but 0 and 1, found 2"),
        (lambda: Topology.from_adjacency(np.full((1, 1), np.nan)), "matrix must hold nothing but 0 and 1, found nan"),
        (lambda: Topology.from_adjacency(np.zeros((0, 0))), "n must be an integer at least 1, found 0"),
        (lambda: RING.neighbors(3), "i must be an integer from 0 to 2, found 3"),
        (lambda: RING.neighbors(-1), "i must be an integer from 0 to 2, found -1"),
        (lambda: RING.drop(1.2), "p must be a number from 0 to 1, found 1.2"),
        (lambda: RING.drop(0.2, 3), "generator must be a torch.Generator, found int"),
        (lambda: RING.femb([5]), "malicious must be from 0 to 2, found 5"),
        (lambda: RING.is_connected([1, 1]), "malicious must name every client once, found client 1 more than once"),
        (
            lambda: RING.deliver(torch.zeros(4, 2)),
            "models must be a floating-point tensor of shape (n, d) with n = 3 clients, found float32 (4, 2)",
        ),
        (lambda: RING.deliver(torch.zeros(3)), "with n = 3 clients, found float32 (3,)"),
        (lambda: RING.deliver(torch.zeros(3, 2).long()), "with n = 3 clients, found int64 (3, 2)"),
        (lambda: RING.deliver(MODELS, MODELS), "malicious must say which clients may tell the lies, found None"),
        (lambda: RING.deliver(MODELS, torch.zeros(4, 2), [0]), "lies must be shaped like models, (3, 2), found (4, 2)"),
        (lambda: RING.deliver(MODELS, [1.0], [0]), "lies must be Lies or a tensor shaped like models, found list"),
        (
            lambda: RING.deliver(MODELS, Lies.to_all(torch.zeros(5)), [0]),
            "lies must have d = 2 parameters like models, found 5",
        ),
        (
            lambda: RING.deliver(MODELS, MODELS.double(), [0]),
            "lies must have the dtype and device of models, torch.float32 on cpu, found torch.float64 on cpu",
        ),
        (
            lambda: RING.deliver(MODELS, MODELS.to("meta"), [0]),
            "lies must have the dtype and device of models, torch.float32 on cpu, found torch.float32 on meta",
        ),
        (
            lambda: RING.deliver(MODELS, Lies.per_receiver(torch.zeros(4, 2)), [0]),
            "receivers of lies must be from -1 to 2, found 0 to 3",
        ),
    ],
)
def test_bad_input_says_what_was_expected(make, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_nobody_lies_to_itself() -> None:
    models, lie = torch.tensor([[0.0], [1.0], [2.0]]), Lies.to_all(torch.tensor([9.0]))
    inbox = Topology.complete(3).with_self_loops().deliver(models, lie, malicious=[1, 2])
    heard = {
        (int(sender), receiver): float(inbox.bank[slot])
        for receiver in range(3)
        for sender, slot in zip(inbox.senders[receiver], inbox.slots[receiver], strict=True)
    }
    assert heard == {(0, i): 0.0 for i in range(3)} | {(s, r): s if r == s else 9.0 for s in (1, 2) for r in range(3)}
