"""Random graphs as undirected edges (e, 2): one draw, draws until connected, and graphs of a given FEMB."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from equipoise._utils.validation import Clients, as_mask, check_count, check_probability

TRIES = 1000

Draw = Callable[[int], Tensor]  # from a seed to edges


class Wanted(TypedDict):
    """What is asked of a draw: see :class:`equipoise.Topology`."""

    seed: int | None
    malicious: Clients | None
    connected: bool


def regular(n: int, degree: int, **wanted: Unpack[Wanted]) -> Tensor:
    """Every client has ``degree`` neighbours."""
    check_count("n", n, 1)
    check_count("degree", degree, 0, n - 1)
    if n * degree % 2:
        raise ValueError(f"n * degree must be even, found {n} * {degree} = {n * degree}")
    import networkx as nx

    def draw(seed: int) -> Tensor:
        # Pairing up ends takes forever on dense graphs. Their complements are sparse, regular and just as random.
        if 2 * degree >= n:
            return _edges_of(nx.complement(nx.random_regular_graph(n - 1 - degree, n, seed=seed)))
        return _edges_of(nx.random_regular_graph(degree, n, seed=seed))

    return _first_wanted(draw, n, f"regular graph with n={n}, degree={degree}", **wanted)


def erdos_renyi(n: int, p: float, **wanted: Unpack[Wanted]) -> Tensor:
    """Every pair of clients is joined with probability ``p``."""
    check_count("n", n, 1)
    check_probability("p", p)
    import networkx as nx

    def draw(seed: int) -> Tensor:
        return _edges_of(nx.fast_gnp_random_graph(n, p if 1 - p < 1 else 0, seed=seed))

    return _first_wanted(draw, n, f"Erdős-Rényi graph with n={n}, p={p}", **wanted)


def small_world(n: int, degree: int, rewire: float, **wanted: Unpack[Wanted]) -> Tensor:
    """A ring of the ``degree`` nearest clients, every edge moved with probability ``rewire``."""
    check_count("n", n, 1)
    check_count("degree", degree, 0, n - 1)
    if degree % 2:
        raise ValueError(f"degree must be even, half of it on either side of a client, found {degree}")
    check_probability("rewire", rewire)
    import networkx as nx

    def draw(seed: int) -> Tensor:
        return _edges_of(nx.watts_strogatz_graph(n, degree, rewire, seed=seed))

    return _first_wanted(draw, n, f"small-world graph with n={n}, degree={degree}, rewire={rewire}", **wanted)


def _edges_of(graph: Any) -> Tensor:
    return torch.tensor(list(graph.edges()), dtype=torch.int64, device="cpu").reshape(-1, 2)


def _first_wanted(
    draw: Draw, n: int, what: str, *, seed: int | None, malicious: Clients | None, connected: bool
) -> Tensor:
    """The first draw that is connected, and whose benign clients are connected among themselves."""
    liars, seeds = as_mask(malicious, n).cpu(), source(seed)
    for _ in range(TRIES):
        edges = draw(seeds.getrandbits(32))
        both = torch.cat([edges, edges.flip(1)])
        if not connected or (strongly_connected(n, both) and strongly_connected(*subgraph(both, ~liars))):
            return edges
    benign = f" with its {int((~liars).sum())} benign clients connected among themselves" if liars.any() else ""
    raise ValueError(f"found no connected {what}{benign} in {TRIES} draws; ask for more edges, or for connected=False")


def source(seed: int | None) -> random.Random:
    """A source of randomness; without a seed it follows ``torch.manual_seed``."""
    if seed is None:
        return random.Random(int(torch.randint(2**62, (), device="cpu")))
    check_count("seed", seed, 0)
    return random.Random(int(seed))


def subgraph(edges: Tensor, chosen: Tensor) -> tuple[int, Tensor]:
    """The number of chosen clients, and the edges among them in a numbering of their own."""
    numbers = chosen.cumsum(0) - 1
    return int(chosen.sum()), numbers[edges[chosen[edges].all(1)]]


def strongly_connected(n: int, edges: Tensor) -> bool:
    """Whether every client reaches every other one along directed edges."""
    import networkx as nx

    graph = nx.DiGraph(edges.tolist())
    return n < 2 or (len(graph) == n and bool(nx.is_strongly_connected(graph)))


def with_femb(
    n: int, femb: float, malicious: Clients, edges: int | None, *, seed: int | None, connected: bool
) -> Tensor:
    """``edges`` edges, ``round(femb * edges)`` of them between a malicious and a benign client.

    A connected graph is grown from a random tree and filled up uniformly at random, so no draw is ever in vain.
    """
    check_count("n", n, 1)
    check_probability("femb", femb)
    mask = as_mask(malicious, n).cpu()
    benign, liars = int((~mask).sum()), int(mask.sum())
    if edges is None:
        edges = _most_edges(femb, benign, liars, connected)
    check_count("edges", edges, 0)
    obstacle = _obstacle(edges, femb, benign, liars, connected)
    if obstacle:
        raise ValueError(f"femb={femb} with {edges} edges of {benign} benign and {liars} malicious clients {obstacle}")
    rng, cross = source(seed), round(femb * edges)
    cross_tree, inner_tree = _tree(benign, liars, cross, rng) if connected else ([], [])
    across = _fill(cross_tree, cross, benign * liars, rng)
    within = _fill(inner_tree, edges - cross, _pairs(benign) + _pairs(liars), rng)
    places = torch.cat([_cross_edges(across, benign), _inner_edges(within, benign)])
    return _shuffled(mask, rng)[places]


def _most_edges(femb: float, benign: int, liars: int, connected: bool) -> int:
    """As many edges as ten neighbours for everybody, or as many fewer as it takes to make the graph possible."""
    n = benign + liars
    most = n * min(10, n - 1) // 2
    return next((e for e in range(most, 0, -1) if not _obstacle(e, femb, benign, liars, connected)), most)


def _obstacle(edges: int, femb: float, benign: int, liars: int, connected: bool) -> str | None:
    """Why there is no such graph."""
    cross = round(femb * edges)
    inner, possible = edges - cross, _pairs(benign) + _pairs(liars)
    if cross > benign * liars:
        return f"needs {cross} edges between malicious and benign clients, found {benign * liars} pairs of them"
    if inner > possible:
        return f"needs {inner} edges on either side, found {possible} pairs"
    if connected and not cross and 1 in (benign, liars) and benign + liars > 1:
        return "needs an edge between malicious and benign clients to give every client a neighbour, found 0"
    needed = max(benign - 1, 0) + max(liars - max(cross, 1), 0)
    if connected and inner < needed:
        return f"needs at least {needed} edges on either side to be connected, found {inner}"
    return None


# Benign clients are the places 0 to benign - 1, malicious ones the places after that. An edge across has the code
# liar * benign + place; an edge within has the code of a pair i > j, i * (i - 1) / 2 + j, those of malicious clients
# after those of benign ones. So a set of edges is a set of integers, and drawing edges is drawing integers.


def _tree(benign: int, liars: int, cross: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Codes of edges across and within that join the benign clients, then the malicious ones to these if possible."""
    attached = min(cross, liars)
    across = [liar * benign + rng.randrange(benign) for liar in range(attached)]
    within = [_pairs(i) + rng.randrange(i) for i in range(1, benign)]
    within += [_pairs(benign) + _pairs(i) + rng.randrange(i) for i in range(max(attached, 1), liars)]
    return across, within


def _fill(taken: list[int], count: int, end: int, rng: random.Random) -> Tensor:
    """``count`` different codes below ``end``: the taken ones and others, all of these equally likely."""
    first = torch.tensor(sorted(taken), dtype=torch.int64, device="cpu")
    free = rng.sample(range(end - len(taken)), count - len(taken))
    others = torch.tensor(free, dtype=torch.int64, device="cpu")
    # The code of the x-th free one is x plus the number of taken codes before it.
    skipped = torch.searchsorted(first - torch.arange(len(first), device="cpu"), others, right=True)
    return torch.cat([first, others + skipped])


def _cross_edges(codes: Tensor, benign: int) -> Tensor:
    liars = codes // max(benign, 1)
    return torch.stack([codes - liars * benign, liars + benign], dim=1)


def _inner_edges(codes: Tensor, benign: int) -> Tensor:
    malicious = codes >= _pairs(benign)
    codes = codes - malicious * _pairs(benign)
    high = ((1 + (1 + 8 * codes.double()).sqrt()) / 2).long()
    low = codes - high * (high - 1) // 2
    return torch.stack([low, high], dim=1) + benign * malicious[:, None]


def _shuffled(malicious: Tensor, rng: random.Random) -> Tensor:
    """The client at every place: the benign ones, then the malicious ones, both in random order."""
    sides = [(~malicious).nonzero().flatten().tolist(), malicious.nonzero().flatten().tolist()]
    return torch.tensor([client for side in sides for client in rng.sample(side, len(side))], device="cpu")


def _pairs(count: int) -> int:
    return count * (count - 1) // 2
