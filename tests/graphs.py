"""Test graphs of all shapes, models of their clients, and inboxes with a lie per edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import networkx as nx
import torch
from torch import Tensor

import equipoise as eq
from equipoise.testing._rounds import Distance


class Graph(NamedTuple):
    """A graph with directed edges (sender, receiver)."""

    name: str
    n: int
    edges: tuple[tuple[int, int], ...]

    def senders_to(self, i: int) -> list[int]:
        """The senders of client ``i``, ascending."""
        return sorted(sender for sender, receiver in self.edges if receiver == i)


def both_ways(name: str, n: int, edges: Iterable[tuple[int, int]]) -> Graph:
    """An undirected graph: every edge carries messages both ways."""
    return Graph(name, n, tuple(sorted({(a, b) for edge in edges for a, b in (edge, edge[::-1])})))


def regular(n: int, degree: int, seed: int = 0) -> Graph:
    """A random graph where every client has ``degree`` neighbors."""
    return both_ways(
        f"regular-{n}-{degree}", n, nx.random_regular_graph(degree, n, seed=seed).edges
    )


def complete(n: int) -> Graph:
    """The complete graph."""
    return both_ways(f"complete-{n}", n, nx.complete_graph(n).edges)


def every_degree(n: int) -> Graph:
    """Client i receives from the i clients after it: all degrees from 0 to n - 1 in one graph."""
    return Graph(
        "every-degree", n, tuple(((i + step) % n, i) for i in range(n) for step in range(1, i + 1))
    )


GRAPHS = [
    regular(10, 4),
    complete(7),
    both_ways("ring", 8, nx.cycle_graph(8).edges),
    both_ways("star", 7, nx.star_graph(6).edges),
    both_ways("scale-free", 12, nx.barabasi_albert_graph(12, 2, seed=3).edges),
    both_ways("disconnected", 9, [(0, 1), (1, 2), (0, 2), (4, 5), (5, 6), (6, 7), (4, 7), (4, 6)]),
    Graph("directed", 9, tuple(nx.gnp_random_graph(9, 0.4, seed=5, directed=True).edges)),
    every_degree(9),
    Graph("empty", 4, ()),
    Graph("single", 1, ()),
]

# Large enough for each switch between algorithms; only some receivers of these are compared.
LARGE_GRAPHS = [regular(20, 10), complete(100), regular(200, 4)]

HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda model: torch.full_like(model, torch.nan),
    "one nan": lambda model: _with_last(model, torch.nan),
    "inf": lambda model: torch.full_like(model, torch.inf),
    "one -inf": lambda model: _with_last(model, -torch.inf),
    "1e30": lambda model: torch.full_like(model, 1e30),
    "3e38": lambda model: torch.full_like(model, 3e38),
    "one -3e38": lambda model: _with_last(model, -3e38),
    "zeros": torch.zeros_like,
    "negated": torch.neg,
    "copy": torch.clone,
}


def _with_last(model: Tensor, value: float) -> Tensor:
    changed = model.clone()
    changed[-1] = value
    return changed


def models_of(graph: Graph, d: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """(n, d) models around a common one, some near and some far, on both sides of thresholds."""
    generator = torch.Generator().manual_seed(1000 * seed + d)
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    spread = 0.02 + 0.5 * torch.rand(graph.n, 1, generator=generator, dtype=torch.float64)
    return (common + spread * torch.randn(graph.n, d, generator=generator, dtype=torch.float64)).to(
        dtype
    )


def random_lies(graph: Graph, models: Tensor, seed: int = 0) -> dict[tuple[int, int], Tensor]:
    """Each third sender lies on all edges: noise, a hostile message, or a neighbor's message."""
    generator = torch.Generator().manual_seed(seed)
    kinds = list(HOSTILE)
    lies = {}
    for position, (sender, receiver) in enumerate(graph.edges):
        if sender % 3 == 0:
            pick = int(torch.randint(len(kinds) + 2, (), generator=generator))
            if pick < len(kinds):
                lies[sender, receiver] = HOSTILE[kinds[pick]](models[receiver])
            elif pick == len(kinds):
                lies[sender, receiver] = models[graph.senders_to(receiver)[-1]]
            else:
                noise = torch.randn(models.shape[1], generator=generator, dtype=torch.float64)
                lies[sender, receiver] = noise.to(models.dtype) * (1 + position % 3)
    return lies


def deliver(
    graph: Graph, models: Tensor, lies: dict[tuple[int, int], Tensor] | None = None, seed: int = 0
) -> eq.Inbox:
    """The inbox of a graph: models in the first n rows of the bank, lies after them.

    Slots are shuffled, so that only ``senders`` identifies messages, and padding is arbitrary.
    """
    lies = {} if lies is None else lies
    row_of = {edge: graph.n + position for position, edge in enumerate(lies)}
    generator = torch.Generator().manual_seed(seed)
    k = max((len(graph.senders_to(i)) for i in range(graph.n)), default=0)
    slots = torch.randint(graph.n + len(lies), (graph.n, k), generator=generator)
    senders = torch.full((graph.n, k), -1)
    for i in range(graph.n):
        places = torch.randperm(k, generator=generator).tolist()
        for place, sender in zip(places, graph.senders_to(i), strict=False):
            slots[i, place] = row_of.get((sender, i), sender)
            senders[i, place] = sender
    return eq.Inbox(torch.stack([*models, *lies.values()]), slots, senders >= 0, senders)


def degrees(graph: Graph) -> Tensor:
    """(n,) how many messages every client is sent."""
    return torch.tensor([len(graph.senders_to(i)) for i in range(graph.n)])


def tolerances(graph: Graph, seed: int = 0) -> Tensor:
    """(n,) numbers to tolerate, from 0 to two more than the degree, so too large ones too."""
    limits = degrees(graph) + 3
    return (torch.rand(graph.n, generator=torch.Generator().manual_seed(seed)) * limits).long()


def round_inputs(graph: Graph, models: Tensor, seed: int = 0) -> dict[str, object]:
    """Everything that any rule may ask for in a round."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(models.shape, generator=generator, dtype=torch.float64)
    return {
        "t": 3,
        "total": 10,
        "tolerated": tolerances(graph, seed),
        "samples": 1 + (torch.rand(graph.n, generator=generator) * 100).long(),
        "loss_of": Distance(models.double().mean(0) + 0.3 * noise),
        "update": (0.1 * noise).to(models.dtype),
    }
