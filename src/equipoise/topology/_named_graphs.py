"""Constructors of graphs without randomness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from equipoise._utils.validation import check_count


class FromEdges(ABC):
    """A class of graphs that can be made of edges."""

    @classmethod
    @abstractmethod
    def from_edges(
        cls, n: int, edges: Tensor | Iterable[tuple[int, int]], *, directed: bool = False
    ) -> Self:
        """The graph of pairs of clients; ``directed`` ones are (sender, receiver)."""


class NamedGraphs(FromEdges):
    """Graphs that a name and the number of clients determine; `Topology` inherits them."""

    @classmethod
    def ring(cls, n: int) -> Self:
        """Each client is connected to the previous and the next one.

        >>> eq.Topology.ring(5).neighbors(0)
        tensor([1, 4])
        """
        check_count("n", n, 1)
        return cls.from_edges(n, _ring(torch.arange(n, device="cpu")))

    @classmethod
    def star(cls, n: int) -> Self:
        """Client 0 is connected to all others, which are not connected to each other.

        >>> eq.Topology.star(5).degrees
        tensor([4, 1, 1, 1, 1])
        """
        check_count("n", n, 1)
        clients = torch.arange(1, n, device="cpu")
        return cls.from_edges(n, torch.stack([torch.zeros_like(clients), clients], dim=1))

    @classmethod
    def torus(cls, rows: int, columns: int) -> Self:
        """A grid whose opposite borders are joined: each client has the four next to it.

        Client ``row * columns + column`` is at that place. With two rows or columns, both
        directions lead to the same client, which is one neighbor.

        >>> eq.Topology.torus(4, 5).neighbors(0)
        tensor([ 1,  4,  5, 15])
        """
        check_count("rows", rows, 1)
        check_count("columns", columns, 1)
        clients = torch.arange(rows * columns, device="cpu").view(rows, columns)
        edges = [_ring(line) for line in (*clients, *clients.T)]
        return cls.from_edges(rows * columns, torch.cat(edges))

    @classmethod
    def exponential(cls, n: int) -> Self:
        """Client i sends to the clients i + 1, i + 2, i + 4, ..., counted modulo n.

        The static exponential graph of Ying et al., *Exponential Graph is Provably Efficient for
        Decentralized Deep Training*, NeurIPS 2021. It is directed: use uniform gossip weights,
        which are doubly stochastic here.

        >>> eq.Topology.exponential(8).neighbors(0)
        tensor([4, 6, 7])
        """
        check_count("n", n, 1)
        clients = torch.arange(n, device="cpu")
        # As many hops as powers of two below n.
        hops = [2**power for power in range((n - 1).bit_length())]
        edges = [torch.stack([clients, (clients + hop) % n], dim=1) for hop in hops]
        return cls.from_edges(n, torch.cat(edges) if edges else [], directed=True)

    @classmethod
    def dumbbell(cls, n: int) -> Self:
        """Two cliques of n / 2 clients, joined by one edge between clients 0 and n - 1.

        From He, Karimireddy and Jaggi, *Byzantine-Robust Decentralized Learning via
        ClippedGossip*, 2022.

        >>> eq.Topology.dumbbell(6).degrees
        tensor([3, 2, 2, 2, 2, 3])
        """
        first, second = _halves(n)
        bridge = torch.tensor([[0, n - 1]], device="cpu")
        return cls.from_edges(n, torch.cat([_clique(first), _clique(second), bridge]))

    @classmethod
    def two_worlds(cls, n: int, bridges: int = 1) -> Self:
        """Two cliques of n / 2 clients; each client has ``bridges`` neighbors in the other one.

        Client i of the first half is connected to the clients i, i + 1, ... of the second half,
        counted modulo n / 2. With one bridge, the cliques are joined by a matching. From Gaucher,
        Dieuleveut and Hendrikx, *Unified Breakdown Analysis for Byzantine Robust Gossip*, ICML
        2025, in the construction of its code.

        >>> eq.Topology.two_worlds(6).neighbors(0)
        tensor([1, 2, 3])
        """
        first, second = _halves(n)
        check_count("bridges", bridges, 0, n // 2)
        edges = [_clique(first), _clique(second)]
        edges += [torch.stack([first, second.roll(-step)], dim=1) for step in range(bridges)]
        return cls.from_edges(n, torch.cat(edges))

    @classmethod
    def two_castle(cls, n: int) -> Self:
        """Two cliques of n / 2 clients; each client has all but one neighbor in the other one.

        Client i is not connected to client i + n / 2: the graph is a complete graph without a
        perfect matching. From Wu, Chen and Ling, *Byzantine-Resilient Decentralized Stochastic
        Optimization with Robust Aggregation Rules*, IEEE TSP 2023, in the construction of its code.

        >>> eq.Topology.two_castle(6).neighbors(0)
        tensor([1, 2, 4, 5])
        """
        first, second = _halves(n)
        edges = [_clique(first), _clique(second)]
        edges += [torch.stack([first, second.roll(-step)], dim=1) for step in range(1, n // 2)]
        return cls.from_edges(n, torch.cat(edges))

    @classmethod
    def octopus(cls, n: int) -> Self:
        """A clique of n / 2 clients, the head, each with one further client, an arm.

        Client i of the head has the arm i + n / 2. From Wu, Chen and Ling (2023), as `two_castle`.

        >>> eq.Topology.octopus(6).degrees
        tensor([3, 3, 3, 1, 1, 1])
        """
        head, arms = _halves(n)
        return cls.from_edges(n, torch.cat([_clique(head), torch.stack([head, arms], dim=1)]))


def _ring(clients: Tensor) -> Tensor:
    """(e, 2) edges from each client to the next; none for one client."""
    # One client has no edge: the next client would be the client itself.
    return torch.stack([clients, clients.roll(-1)], dim=1)[: 0 if len(clients) == 1 else None]


def _clique(clients: Tensor) -> Tensor:
    """(e, 2) edges between all pairs of clients."""
    return torch.combinations(clients)


def _halves(n: int) -> tuple[Tensor, Tensor]:
    """The first and the second half of n clients."""
    check_count("n", n, 2)
    if n % 2:
        raise ValueError(f"n must be even, found {n}")
    first, second = torch.arange(n, device="cpu").view(2, -1)
    return first, second
