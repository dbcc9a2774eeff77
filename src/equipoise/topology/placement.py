"""Which clients are malicious: drawn at random, or at the places where they can do most harm."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_choice, check_count, check_probability, describe
from equipoise.topology.topology import Topology

Placement: TypeAlias = Literal["random", "degree", "betweenness", "cut"]
PLACEMENTS = ("random", "degree", "betweenness", "cut")

# Betweenness is a sum of fractions, equal for equivalent clients only up to rounding: numbers that
# agree to twelve decimals count as equal, and ties are broken at random.
DECIMALS = 12


def draw_malicious(
    n: int | Topology, share: float, *, seed: int = 0, placement: Placement = "random"
) -> Tensor:
    """Ids of a share of all clients, ascending. The number of clients is rounded down.

    By default they are drawn at random from n clients, or from those of a topology. The other
    placements need a `Topology` and take

    - ``"degree"``: the clients that send to most others;
    - ``"betweenness"``: the clients on most shortest paths, by their betweenness centrality;
    - ``"cut"``: one after the other, the client without which most pairs of the remaining clients
      are disconnected, that is, a cut vertex if there is one; among equals, the one of the largest
      betweenness.

    Ties are broken at random, from ``seed``. Edges count in both directions, except for
    ``"degree"``.

    >>> eq.draw_malicious(20, 0.2).shape
    torch.Size([4])
    >>> eq.draw_malicious(eq.Topology.star(10), 0.1, placement="degree")
    tensor([0])
    """
    size = n.n if isinstance(n, Topology) else n
    check_count("n", size, 1)
    check_probability("share", share)
    check_choice("placement", placement, PLACEMENTS)
    count = int(share * size + 1e-9)  # 0.29 * 100 is a little less than 29
    shuffled = torch.randperm(size, generator=stream(seed, "malicious"), device="cpu")
    if placement == "random":
        return shuffled[:count].sort().values
    if not isinstance(n, Topology):
        raise ValueError(f"placement={placement!r} must have a Topology as n, found {describe(n)}")
    # The place of each client in the shuffled order breaks ties.
    tie_break = shuffled.argsort().tolist()
    if placement == "cut":
        return torch.tensor(sorted(_cut(n, count, tie_break)), dtype=torch.int64, device="cpu")
    scores = _out_degrees(n) if placement == "degree" else _betweenness(_undirected(n))
    ranked = sorted(scores, key=lambda client: (-scores[client], tie_break[client]))
    return torch.tensor(sorted(ranked[:count]), dtype=torch.int64, device="cpu")


def _out_degrees(topology: Topology) -> dict[int, float]:
    sends = topology.adjacency().cpu().fill_diagonal_(False)
    return dict(enumerate(sends.sum(1).tolist()))


def _undirected(topology: Topology) -> Any:
    """A networkx graph without self-loops."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(topology.n))
    graph.add_edges_from((a, b) for a, b in topology.edges().tolist() if a != b)
    return graph


def _betweenness(graph: Any) -> dict[int, float]:
    import networkx as nx

    centrality = nx.betweenness_centrality(graph)
    return {client: round(value, DECIMALS) for client, value in centrality.items()}


def _cut(topology: Topology, count: int, tie_break: list[int]) -> list[int]:
    """Greedily remove the client without which the fewest pairs of clients are connected."""
    graph = _undirected(topology)
    removed: list[int] = []
    for _ in range(count):
        harm = _pairs_without(graph)
        betweenness = _betweenness(graph)
        ranks = {
            client: (-harm[client], -betweenness[client], tie_break[client]) for client in graph
        }
        removed.append(min(graph, key=ranks.__getitem__))
        graph.remove_node(removed[-1])
    return removed


def _pairs_without(graph: Any) -> dict[int, int]:
    """For each client, the number of pairs of clients that are disconnected without it."""
    import networkx as nx

    pairs = {}
    cut_vertices = set(nx.articulation_points(graph))
    for component in nx.connected_components(graph):
        for client in component:
            # The pairs of the client itself, and those that only it connects.
            pairs[client] = len(component) - 1
            if client in cut_vertices:
                others = component - {client}
                parts = nx.connected_components(graph.subgraph(others))
                pairs[client] += _count_pairs(others) - sum(map(_count_pairs, parts))
    return pairs


def _count_pairs(clients: set[int]) -> int:
    return len(clients) * (len(clients) - 1) // 2
