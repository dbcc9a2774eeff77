"""Random graphs: connected, reproducible, with a given FEMB."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise import Topology
from tests.digraphs import both_ways, edge_list, subsets

RANDOM = {
    "regular": lambda **wanted: Topology.regular(12, 3, **wanted),
    "dense": lambda **wanted: Topology.regular(9, 6, **wanted),
    "erdos_renyi": lambda **wanted: Topology.erdos_renyi(12, 0.3, **wanted),
    "small_world": lambda **wanted: Topology.small_world(12, 4, 0.4, **wanted),
    "scale_free": lambda **wanted: Topology.scale_free(12, 2, **wanted),
    "femb": lambda **wanted: Topology.random_with_femb(
        12, 0.3, wanted.pop("malicious", [0, 5]), edges=20, **wanted
    ),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("seed", range(5))
def test_connected_and_reproducible(name: str, seed: int):
    topology = RANDOM[name](seed=seed, malicious=[0, 5])
    again = RANDOM[name](seed=seed, malicious=[0, 5])
    assert torch.equal(topology.senders, again.senders)
    matrix = topology.adjacency()
    assert torch.equal(matrix, matrix.T)
    assert not matrix.diagonal().any()
    assert topology.is_connected()
    assert topology.is_connected(malicious=[0, 5])


@pytest.mark.parametrize("name", RANDOM)
def test_seeds(name: str):
    assert len({str(edge_list(RANDOM[name](seed=seed))) for seed in range(5)}) > 1
    torch.manual_seed(7)
    first = RANDOM[name]()
    second = RANDOM[name]()
    torch.manual_seed(7)
    assert edge_list(RANDOM[name]()) == edge_list(first)
    assert edge_list(RANDOM[name]()) == edge_list(second)


@pytest.mark.parametrize(
    ("n", "degree"), [(1, 0), (2, 1), (5, 2), (20, 10), (20, 19), (9, 8), (100, 90)]
)
def test_regular_degrees(n: int, degree: int):
    assert Topology.regular(n, degree, seed=1).degrees.tolist() == [degree] * n


def test_unconnected_draw():
    unconnected = Topology.regular(6, 1, seed=0, connected=False)
    assert unconnected.degrees.tolist() == [1] * 6
    assert not unconnected.is_connected()
    assert Topology.erdos_renyi(5, 0.0, seed=0, connected=False).k == 0


def test_erdos_renyi_density():
    pairs = 300 * 299
    assert abs(len(Topology.erdos_renyi(300, 0.2, seed=3).edges()) / pairs - 0.2) < 0.01
    assert edge_list(Topology.erdos_renyi(6, 1.0)) == edge_list(Topology.complete(6))


def test_small_world_without_rewiring():
    nearest = [(i, (i + step) % 10) for i in range(10) for step in (1, 2)]
    assert edge_list(Topology.small_world(10, 4, 0.0)) == both_ways(nearest)
    rewired = edge_list(Topology.small_world(10, 4, 1.0, seed=0))
    assert len(rewired) == 40
    assert rewired != both_ways(nearest)


def test_benign_connected():
    draws = [Topology.erdos_renyi(8, 0.3, seed=seed) for seed in range(20)]
    assert not all(graph.is_connected(malicious=[1, 2]) for graph in draws)
    asked = [Topology.erdos_renyi(8, 0.3, seed=seed, malicious=[1, 2]) for seed in range(20)]
    assert all(graph.is_connected(malicious=[1, 2]) and graph.is_connected() for graph in asked)


@pytest.mark.parametrize("femb", [0.16, 0.22, 0.32])
@pytest.mark.parametrize("seed", range(3))
def test_femb_of_paper(femb: float, seed: int):
    topology = Topology.random_with_femb(20, femb, malicious=range(4), seed=seed)
    assert len(topology.edges()) == 2 * 100
    assert abs(topology.femb(range(4)) - femb) <= 1 / (2 * 100)
    assert (topology.degrees > 0).all()
    assert topology.is_connected(malicious=range(4))


@given(st.data(), st.integers(1, 9), st.booleans())
def test_femb_exact_or_impossible(data: st.DataObject, n: int, connected: bool):
    """The graph exists exactly when the counts allow it, as counted by hand here."""
    malicious = data.draw(subsets(n))
    femb = data.draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]))
    edges = data.draw(st.integers(0, n * (n - 1) // 2))
    bad = len(malicious)
    benign = n - len(malicious)
    cross = round(femb * edges)
    within = bad * (bad - 1) // 2 + benign * (benign - 1) // 2
    possible = cross <= bad * benign and edges - cross <= within
    if connected and bad and benign and cross == 0:
        possible &= min(bad, benign) > 1 and edges >= n - 2
    elif connected:
        possible &= edges - cross >= max(benign - 1, 0) and edges - cross >= benign - 1 + max(
            bad - cross, 0
        )
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
        (20, 0.3, 4, 100),  # ten neighbors each
        (
            7,
            0.2,
            2,
            14,
        ),  # not 21, all pairs, since only 11 of them are within a side: round(0.2 * 14) + 11 = 14
        (
            30,
            0.3,
            1,
            98,
        ),  # not 150, since the malicious client can have 29 edges: round(0.3 * 98) = 29
        (1, 0.0, 0, 0),
    ],
)
def test_default_edges(n: int, femb: float, malicious: int, edges: int):
    topology = Topology.random_with_femb(n, femb, range(malicious), seed=0)
    assert len(topology.edges()) == 2 * edges
    assert topology.femb(range(malicious)) == pytest.approx(round(femb * edges) / max(edges, 1))


def test_femb_pairs_uniform():
    """Pairs of a kind are equally frequent, even in a graph with few more edges than a tree."""
    malicious = [1, 4]
    draws = 400
    graphs = [
        Topology.random_with_femb(8, 0.25, malicious, edges=9, seed=seed) for seed in range(draws)
    ]
    rates = torch.stack([graph.adjacency() for graph in graphs]).float().mean(0)
    is_malicious = torch.zeros(8, dtype=torch.bool).index_fill(0, torch.tensor(malicious), True)
    across = rates[is_malicious][:, ~is_malicious]
    among_benign = rates[~is_malicious][:, ~is_malicious][~torch.eye(6, dtype=torch.bool)]
    assert across.mean().item() == pytest.approx(2 / 12)  # two of the nine edges, on twelve pairs
    assert (across - across.mean()).abs().max() < 0.08  # four standard deviations
    assert (among_benign - among_benign.mean()).abs().max() < 0.1


pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def test_tiny_probability() -> None:
    assert eq.Topology.erdos_renyi(5, 1e-17, connected=False, seed=0).degrees.sum() == 0


@given(st.integers(2, 15), st.data())
def test_scale_free_edges(n: int, data: st.DataObject):
    links = data.draw(st.integers(1, n - 1))
    topology = Topology.scale_free(n, links, seed=0)
    # networkx starts with a star of the first links + 1 clients.
    assert len(topology.edges()) == 2 * links * (n - links)
    assert topology.is_connected()


@given(st.integers(1, 12), st.data())
def test_peer_sampling_degrees(n: int, data: st.DataObject):
    count = data.draw(st.integers(0, n - 1))
    topology = Topology.peer_sampling(n, count, torch.Generator().manual_seed(1))
    assert topology.degrees.tolist() == [count] * n
    assert all(sender != receiver for sender, receiver in topology.edges().tolist())


def test_peer_sampling_by_seed_and_round():
    draw = eq.EachRound(lambda t, generator: Topology.peer_sampling(20, 4, generator))
    graphs = {
        (seed, t): str(draw.at(t, seed=seed, name="topology").senders.tolist())
        for seed in range(3)
        for t in range(3)
    }
    assert len(set(graphs.values())) == 9
    again = draw.at(2, seed=1, name="topology").senders
    assert str(again.tolist()) == graphs[1, 2]


def test_peer_sampling_is_uniform():
    source = torch.Generator().manual_seed(0)
    counts = sum(Topology.peer_sampling(5, 2, source).adjacency().long() for _ in range(2000))
    # Each of 4 others with probability one half: 1000 times, with a deviation of 22.
    others = counts[~torch.eye(5, dtype=torch.bool)]
    assert ((others - 1000).abs() < 5 * 22.4).all()
