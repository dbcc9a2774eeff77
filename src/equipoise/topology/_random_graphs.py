"""Constructors of random graphs."""

from __future__ import annotations

from typing import Self

import torch

from equipoise._utils.validation import Clients
from equipoise.topology import generators
from equipoise.topology._named_graphs import FromEdges


class RandomGraphs(FromEdges):
    """Graphs that are drawn; `Topology` inherits them."""

    @classmethod
    def regular(
        cls,
        n: int,
        degree: int,
        *,
        seed: int | None = None,
        malicious: Clients | None = None,
        connected: bool = True,
    ) -> Self:
        """A random graph in which each client has ``degree`` neighbors.

        >>> eq.Topology.regular(20, 10, seed=0, malicious=range(4)).degrees.unique()
        tensor([10])
        """
        drawn = generators.regular(n, degree, seed=seed, malicious=malicious, connected=connected)
        return cls.from_edges(n, drawn)

    @classmethod
    def erdos_renyi(
        cls,
        n: int,
        p: float,
        *,
        seed: int | None = None,
        malicious: Clients | None = None,
        connected: bool = True,
    ) -> Self:
        """A random graph in which each pair of clients is connected with probability ``p``.

        >>> eq.Topology.erdos_renyi(20, 0.5, seed=0).is_connected()
        True
        """
        drawn = generators.erdos_renyi(n, p, seed=seed, malicious=malicious, connected=connected)
        return cls.from_edges(n, drawn)

    @classmethod
    def small_world(
        cls,
        n: int,
        degree: int,
        rewire: float,
        *,
        seed: int | None = None,
        malicious: Clients | None = None,
        connected: bool = True,
    ) -> Self:
        """A ring of the ``degree`` nearest clients, each edge rewired with probability ``rewire``.

        The construction of Watts and Strogatz (1998).

        >>> eq.Topology.small_world(20, 10, rewire=0.3, seed=0).degrees.sum()
        tensor(200)
        """
        drawn = generators.small_world(
            n, degree, rewire, seed=seed, malicious=malicious, connected=connected
        )
        return cls.from_edges(n, drawn)

    @classmethod
    def random_with_femb(
        cls,
        n: int,
        femb: float,
        malicious: Clients,
        *,
        edges: int | None = None,
        seed: int | None = None,
        connected: bool = True,
    ) -> Self:
        """A random graph with ``round(femb * edges)`` edges between malicious and benign clients.

        The other edges are among the benign or among the malicious clients, at random. The default
        number of undirected ``edges`` is that of ten neighbors for each client,
        ``n * min(10, n - 1) // 2``, or the largest number below it for which such a graph exists.
        Each client has a neighbor, and the subgraph of the benign clients is connected. So is the
        whole graph, if ``femb`` leaves an edge between the two sides; otherwise each side is.
        ``connected=False`` guarantees only the numbers of edges.

        >>> eq.Topology.random_with_femb(20, 0.16, malicious=range(4), seed=0).femb(range(4))
        0.16
        """
        chosen = generators.with_femb(n, femb, malicious, edges, seed=seed, connected=connected)
        return cls.from_edges(n, chosen)

    @classmethod
    def scale_free(
        cls,
        n: int,
        links: int,
        *,
        seed: int | None = None,
        malicious: Clients | None = None,
        connected: bool = True,
    ) -> Self:
        """Clients join one by one, each with ``links`` edges, rather to clients that have many.

        The construction of Barabási and Albert (1999): an edge leads to a client with a probability
        proportional to its degree.

        >>> eq.Topology.scale_free(20, 2, seed=0).edges().shape  # 2 * 18 edges in both directions
        torch.Size([72, 2])
        """
        drawn = generators.scale_free(n, links, seed=seed, malicious=malicious, connected=connected)
        return cls.from_edges(n, drawn)

    @classmethod
    def peer_sampling(cls, n: int, count: int, generator: torch.Generator | None = None) -> Self:
        """The directed graph of a round in which each client pulls from ``count`` random others.

        All sets of ``count`` others are equally probable, and drawn anew in every round by
        ``EachRound(lambda t, generator: Topology.peer_sampling(n, count, generator))``. Without a
        generator, ``torch.manual_seed`` determines the graph. Pulling bounds the influence of
        malicious clients, which could otherwise push to all others.

        >>> source = torch.Generator().manual_seed(0)
        >>> eq.Topology.peer_sampling(100, 5, source).degrees.unique()
        tensor([5])
        """
        return cls.from_edges(n, generators.pulls(n, count, generator), directed=True)
