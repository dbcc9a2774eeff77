"""Random graphs as edges (e, 2): connected ones, ones with a given FEMB, and random pulls."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from equipoise._utils.rng import device_of
from equipoise._utils.validation import Clients, as_mask, check_count, check_probability

MAX_DRAWS = 1000  # a bound, because some parameters never yield a connected graph

Draw = Callable[[int], Tensor]  # from a seed to edges


class DrawOptions(TypedDict):
    """Options of a draw: see :class:`equipoise.Topology`."""

    seed: int | None
    malicious: Clients | None
    connected: bool


def complete_senders(n: int) -> Tensor:
    """(n, n - 1) the senders of each client of a complete graph: its many edges need no sorting."""
    check_count("n", n, 1)
    # Row i is 0 to n - 1 without i: from i on, ids are one higher than their column.
    clients = torch.arange(n, device="cpu")
    return clients[:-1] + (clients[:-1] >= clients[:, None])


def regular(n: int, degree: int, **options: Unpack[DrawOptions]) -> Tensor:
    """Each client has ``degree`` neighbors."""
    check_count("n", n, 1)
    check_count("degree", degree, 0, n - 1)
    if n * degree % 2:
        raise ValueError(f"n * degree must be even, found {n} * {degree} = {n * degree}")
    import networkx as nx

    def draw(seed: int) -> Tensor:
        # Random pairing rarely ends on dense graphs. The complement of a dense regular graph is
        # sparse and regular, and uniformly distributed if the graph is.
        if 2 * degree >= n:
            sparse = nx.random_regular_graph(n - 1 - degree, n, seed=seed)
            return _as_edges(nx.complement(sparse))
        return _as_edges(nx.random_regular_graph(degree, n, seed=seed))

    return _first_connected(draw, n, f"regular graph with n={n}, degree={degree}", **options)


def erdos_renyi(n: int, p: float, **options: Unpack[DrawOptions]) -> Tensor:
    """Each pair of clients is connected with probability ``p``."""
    check_count("n", n, 1)
    check_probability("p", p)
    import networkx as nx

    def draw(seed: int) -> Tensor:
        # networkx divides by log(1 - p), which is 0 for the smallest p.
        rounded = p if 1 - p < 1 else 0
        return _as_edges(nx.fast_gnp_random_graph(n, rounded, seed=seed))

    return _first_connected(draw, n, f"Erdős-Rényi graph with n={n}, p={p}", **options)


def small_world(n: int, degree: int, rewire: float, **options: Unpack[DrawOptions]) -> Tensor:
    """A ring of the ``degree`` nearest clients, each edge rewired with probability ``rewire``."""
    check_count("n", n, 1)
    check_count("degree", degree, 0, n - 1)
    if degree % 2:
        expected = "even, half of it on either side of a client"
        raise ValueError(f"degree must be {expected}, found {degree}")
    check_probability("rewire", rewire)
    import networkx as nx

    def draw(seed: int) -> Tensor:
        return _as_edges(nx.watts_strogatz_graph(n, degree, rewire, seed=seed))

    what = f"small-world graph with n={n}, degree={degree}, rewire={rewire}"
    return _first_connected(draw, n, what, **options)


def scale_free(n: int, links: int, **options: Unpack[DrawOptions]) -> Tensor:
    """Each client joins with ``links`` edges, with preference for clients that have many."""
    check_count("n", n, 2)
    check_count("links", links, 1, n - 1)
    import networkx as nx

    def draw(seed: int) -> Tensor:
        return _as_edges(nx.barabasi_albert_graph(n, links, seed=seed))

    return _first_connected(draw, n, f"scale-free graph with n={n}, links={links}", **options)


def pulls(n: int, count: int, generator: torch.Generator | None) -> Tensor:
    """(n * count, 2) directed edges: each client pulls from ``count`` distinct random others."""
    check_count("n", n, 1)
    check_count("count", count, 0, n - 1)
    device = device_of(generator)
    drawn = torch.empty(n, 0, dtype=torch.int64, device=device)
    # Floyd's algorithm draws a set without listing all n clients: in each step a random number up
    # to the last one, or the last one itself if that number was drawn before.
    for last in range(n - 1 - count, n - 1):
        number = torch.randint(last + 1, (n, 1), generator=generator, device=device)
        repeated = (drawn == number).any(1, keepdim=True)
        drawn = torch.cat([drawn, number.masked_fill(repeated, last)], dim=1)
    # The others of client i are 0 to n - 1 without i: from i on, ids are one higher.
    receivers = torch.arange(n, device=device)[:, None].expand(-1, count)
    senders = drawn + (drawn >= receivers)
    return torch.stack([senders, receivers], dim=-1).view(-1, 2).cpu()


def _as_edges(graph: Any) -> Tensor:
    return torch.tensor(list(graph.edges()), dtype=torch.int64, device="cpu").reshape(-1, 2)


def _first_connected(
    draw: Draw, n: int, what: str, *, seed: int | None, malicious: Clients | None, connected: bool
) -> Tensor:
    """The first draw that is connected, and whose benign subgraph is."""
    is_malicious = as_mask(malicious, n).cpu()
    seeds = source(seed)
    # Rejection sampling: the distribution is that of a draw, given that it is connected.
    for _ in range(MAX_DRAWS):
        edges = draw(seeds.getrandbits(32))
        directed = torch.cat([edges, edges.flip(1)])
        if not connected or (
            strongly_connected(n, directed)
            and strongly_connected(*subgraph(directed, ~is_malicious))
        ):
            return edges
    benign = int((~is_malicious).sum())
    if benign < n:
        what += f" with its {benign} benign clients connected among themselves"
    raise ValueError(
        f"found no connected {what} in {MAX_DRAWS} draws; "
        "ask for more edges, or for connected=False"
    )


def source(seed: int | None) -> random.Random:
    """A random number generator; without a seed it follows ``torch.manual_seed``."""
    if seed is None:
        # torch seeds a generator of Python, because networkx draws with that one.
        return random.Random(int(torch.randint(2**62, (), device="cpu")))
    check_count("seed", seed, 0)
    return random.Random(int(seed))


def subgraph(edges: Tensor, chosen: Tensor) -> tuple[int, Tensor]:
    """The number of chosen clients, and the edges among them, renumbered."""
    numbers = chosen.cumsum(0) - 1
    return int(chosen.sum()), numbers[edges[chosen[edges].all(1)]]


def strongly_connected(n: int, edges: Tensor) -> bool:
    """Whether each client reaches all others along directed edges."""
    import networkx as nx

    # Clients without edges are not in this graph, hence the comparison of sizes.
    graph = nx.DiGraph(edges.tolist())
    return n < 2 or (len(graph) == n and bool(nx.is_strongly_connected(graph)))


def with_femb(
    n: int,
    femb: float,
    malicious: Clients,
    edges: int | None,
    *,
    seed: int | None,
    connected: bool,
) -> Tensor:
    """``edges`` edges, ``round(femb * edges)`` of them between a malicious and a benign client.

    A connected graph is a random tree, filled up uniformly at random, so that every draw succeeds.
    """
    check_count("n", n, 1)
    check_probability("femb", femb)
    mask = as_mask(malicious, n).cpu()
    benign = int((~mask).sum())
    bad = n - benign
    if edges is None:
        edges = _default_edges(femb, benign, bad, connected)
    check_count("edges", edges, 0)
    obstacle = _obstacle(edges, femb, benign, bad, connected)
    if obstacle:
        clients = f"{benign} benign and {bad} malicious clients"
        raise ValueError(f"femb={femb} with {edges} edges of {clients} {obstacle}")
    rng = source(seed)
    cross = round(femb * edges)
    cross_tree, inner_tree = _tree(benign, bad, cross, rng) if connected else ([], [])
    cross_codes = _fill_codes(cross_tree, cross, benign * bad, rng)
    inner_pairs = _count_pairs(benign) + _count_pairs(bad)
    inner_codes = _fill_codes(inner_tree, edges - cross, inner_pairs, rng)
    places = torch.cat([_cross_edges(cross_codes, benign), _inner_edges(inner_codes, benign)])
    return _shuffled_clients(mask, rng)[places]


def _default_edges(femb: float, benign: int, bad: int, connected: bool) -> int:
    """As many edges as for ten neighbors per client, or the largest possible number below."""
    n = benign + bad
    most = n * min(10, n - 1) // 2
    possible = (e for e in range(most, 0, -1) if not _obstacle(e, femb, benign, bad, connected))
    return next(possible, most)


def _obstacle(edges: int, femb: float, benign: int, bad: int, connected: bool) -> str | None:
    """The reason why no such graph exists, or None."""
    cross = round(femb * edges)
    inner = edges - cross
    inner_pairs = _count_pairs(benign) + _count_pairs(bad)
    if cross > benign * bad:
        return (
            f"needs {cross} edges between malicious and benign clients, "
            f"found {benign * bad} pairs of them"
        )
    if inner > inner_pairs:
        return f"needs {inner} edges on either side, found {inner_pairs} pairs"
    if connected and not cross and 1 in (benign, bad) and benign + bad > 1:
        return (
            "needs an edge between malicious and benign clients "
            "to give every client a neighbor, found 0"
        )
    # A tree of the benign clients, and an edge for each malicious client without a cross edge. With
    # no cross edge at all, the malicious clients form a tree of their own.
    needed = max(benign - 1, 0) + max(bad - max(cross, 1), 0)
    if connected and inner < needed:
        return f"needs at least {needed} edges on either side to be connected, found {inner}"
    return None


# Benign clients have the places 0 to benign - 1, malicious clients the places after these. A cross
# edge has the code ``m * benign + place``, where m counts the malicious clients from 0. An inner
# edge between i > j has the code ``i * (i - 1) / 2 + j``, counted from 0 on each side; the codes of
# malicious clients follow those of benign ones. So a set of edges is a set of integers, and drawing
# edges is drawing integers.


def _tree(benign: int, bad: int, cross: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Codes of cross and inner edges of a spanning tree; of two trees without cross edges."""
    # Cross edges attach malicious clients to the benign tree; the others attach to earlier ones.
    attached = min(cross, bad)
    across = [m * benign + rng.randrange(benign) for m in range(attached)]
    within = [_count_pairs(i) + rng.randrange(i) for i in range(1, benign)]
    start = _count_pairs(benign)
    within += [start + _count_pairs(i) + rng.randrange(i) for i in range(max(attached, 1), bad)]
    return across, within


def _fill_codes(taken: list[int], count: int, end: int, rng: random.Random) -> Tensor:
    """``count`` distinct codes below ``end``: the taken ones, and others uniformly at random."""
    first = torch.tensor(sorted(taken), dtype=torch.int64, device="cpu")
    free = rng.sample(range(end - len(taken)), count - len(taken))
    others = torch.tensor(free, dtype=torch.int64, device="cpu")
    # The x-th free code is x plus the number of taken codes before it.
    before = first - torch.arange(len(first), device="cpu")
    skipped = torch.searchsorted(before, others, right=True)
    return torch.cat([first, others + skipped])


def _cross_edges(codes: Tensor, benign: int) -> Tensor:
    bad = codes // max(benign, 1)
    return torch.stack([codes - bad * benign, bad + benign], dim=1)


def _inner_edges(codes: Tensor, benign: int) -> Tensor:
    is_malicious = codes >= _count_pairs(benign)
    codes = codes - is_malicious * _count_pairs(benign)
    # The largest i with i * (i - 1) / 2 <= code, by the quadratic formula. It is exact: where i
    # begins, 1 + 8 * code is the square of 2 * i - 1, and sqrt rounds correctly.
    high = ((1 + (1 + 8 * codes.double()).sqrt()) / 2).long()
    low = codes - high * (high - 1) // 2
    return torch.stack([low, high], dim=1) + benign * is_malicious[:, None]


def _shuffled_clients(malicious: Tensor, rng: random.Random) -> Tensor:
    """The client at each place: the benign ones, then the malicious ones, both shuffled."""
    benign_ids = (~malicious).nonzero().flatten().tolist()
    malicious_ids = malicious.nonzero().flatten().tolist()
    shuffled = rng.sample(benign_ids, len(benign_ids))
    shuffled += rng.sample(malicious_ids, len(malicious_ids))
    return torch.tensor(shuffled, device="cpu")


def _count_pairs(count: int) -> int:
    return count * (count - 1) // 2
