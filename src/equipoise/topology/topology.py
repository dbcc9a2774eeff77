"""Who hears whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.rng import device_of
from equipoise._utils.validation import Clients, as_mask, check_count, check_probability, describe, is_floating
from equipoise.messages import Inbox, Lies, as_lies, substitute_lies
from equipoise.topology import generators as random_graphs
from equipoise.topology._edge_formats import by_receiver, check_senders, from_matrix, from_networkx, from_pairs


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A graph of n clients: client i hears the clients ``senders[i]``.

    ``senders (n, k)`` is int64, ascending for every receiver, and -1 in the slots that are left over; ``k`` is the
    largest in-degree. Edges are (sender, receiver). Self-loops are never implicit. Two topologies are equal only if
    they are the same object; compare :meth:`edges` to compare graphs.

    The random constructors draw again, reproducibly from ``seed``, until the graph is connected and, if ``malicious``
    is given, until the benign clients are connected among themselves too, which robust rules need to reach a consensus
    (Assumption 5 of BALANCE, Fang et al., CCS 2024). ``connected=False`` takes the first draw. Without a seed,
    ``torch.manual_seed`` decides. Wherever ``malicious`` is asked for, it is a bool mask (n,) or client ids.

    >>> ring = eq.Topology.ring(4)
    >>> ring
    Topology(n=4, k=2, e=8)
    >>> ring.senders
    tensor([[1, 3],
            [0, 2],
            [1, 3],
            [0, 2]])
    """

    senders: Tensor

    def __post_init__(self) -> None:
        check_senders(self.senders)

    def __repr__(self) -> str:
        return f"Topology(n={self.n}, k={self.k}, e={int(self.mask.sum())})"

    @property
    def n(self) -> int:
        """Number of clients."""
        return self.senders.shape[0]

    @property
    def k(self) -> int:
        """Number of slots: the largest in-degree."""
        return self.senders.shape[1]

    @cached_property
    def mask(self) -> Tensor:
        """(n, k) bool: which slots hold a sender."""
        return self.senders >= 0

    @cached_property
    def degrees(self) -> Tensor:
        """(n,) int64: how many clients each client hears."""
        return self.mask.sum(1)

    # Constructors

    @classmethod
    def ring(cls, n: int) -> Topology:
        """Every client hears the one before and the one after it.

        >>> eq.Topology.ring(5).neighbors(0)
        tensor([1, 4])
        """
        check_count("n", n, 1)
        clients = torch.arange(n if n > 1 else 0, device="cpu")
        return cls.from_edges(n, torch.stack([clients, (clients + 1) % n], dim=1))

    @classmethod
    def complete(cls, n: int) -> Topology:
        """Everybody hears everybody else.

        >>> eq.Topology.complete(3).senders
        tensor([[1, 2],
                [0, 2],
                [0, 1]])
        """
        check_count("n", n, 1)
        clients = torch.arange(n, device="cpu")
        return cls(clients[:-1] + (clients[:-1] >= clients[:, None]))

    @classmethod
    def regular(
        cls, n: int, degree: int, *, seed: int | None = None, malicious: Clients | None = None, connected: bool = True
    ) -> Topology:
        """A random graph in which every client has ``degree`` neighbours.

        >>> eq.Topology.regular(20, 10, seed=0, malicious=range(4)).degrees.unique()
        tensor([10])
        """
        return cls.from_edges(n, random_graphs.regular(n, degree, seed=seed, malicious=malicious, connected=connected))

    @classmethod
    def erdos_renyi(
        cls, n: int, p: float, *, seed: int | None = None, malicious: Clients | None = None, connected: bool = True
    ) -> Topology:
        """A random graph in which every pair of clients is joined with probability ``p``.

        >>> eq.Topology.erdos_renyi(20, 0.5, seed=0).is_connected()
        True
        """
        return cls.from_edges(n, random_graphs.erdos_renyi(n, p, seed=seed, malicious=malicious, connected=connected))

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
    ) -> Topology:
        """A ring of the ``degree`` nearest clients, every edge moved with probability ``rewire``.

        The construction of Watts and Strogatz (1998).

        >>> eq.Topology.small_world(20, 10, rewire=0.3, seed=0).degrees.sum()
        tensor(200)
        """
        edges = random_graphs.small_world(n, degree, rewire, seed=seed, malicious=malicious, connected=connected)
        return cls.from_edges(n, edges)

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
    ) -> Topology:
        """A random graph with ``round(femb * edges)`` of its edges between a malicious and a benign client.

        The other edges are among the benign or among the malicious clients, at random. By default there are as many
        ``edges`` (undirected) as if everybody had ten neighbours, ``n * min(10, n - 1) // 2``, or the largest
        number below that for which there is such a graph. Every client has a neighbour, the benign clients are
        connected among themselves, and so are all clients if ``femb`` leaves an edge between the two sides; without
        one, either side is. ``connected=False`` promises nothing but the numbers of edges.

        >>> eq.Topology.random_with_femb(20, 0.16, malicious=range(4), seed=0).femb(range(4))
        0.16
        """
        chosen = random_graphs.with_femb(n, femb, malicious, edges, seed=seed, connected=connected)
        return cls.from_edges(n, chosen)

    @classmethod
    def from_networkx(cls, graph: Any, *, nodes: Iterable[Any] | None = None) -> Topology:
        """The graph of a ``networkx.Graph``, or of a ``DiGraph`` in which u -> v says that u sends to v.

        Client i is ``nodes[i]``. If not given, the nodes are numbered in sorted order, in which "c10" comes before
        "c2"; for models in the order of ``graph.nodes``, give these.

        >>> import networkx as nx
        >>> graph = nx.DiGraph([("c", "b"), ("a", "b")])
        >>> eq.Topology.from_networkx(graph).neighbors(1)
        tensor([0, 2])
        >>> eq.Topology.from_networkx(graph, nodes=["b", "c", "a"]).neighbors(0)
        tensor([1, 2])
        """
        n, pairs = from_networkx(graph, nodes)
        return cls.from_edges(n, pairs, directed=graph.is_directed())

    @classmethod
    def from_edges(cls, n: int, edges: Tensor | Iterable[tuple[int, int]], *, directed: bool = False) -> Topology:
        """The graph of some pairs of clients; ``directed`` ones are (sender, receiver). Duplicates are merged.

        >>> eq.Topology.from_edges(3, [(0, 1), (2, 1)], directed=True).degrees
        tensor([0, 2, 0])
        """
        check_count("n", n, 1)
        pairs = from_pairs(edges, n)
        senders, receivers = pairs.T if directed else torch.cat([pairs, pairs.flip(1)]).T
        return cls(by_receiver(n, (receivers * n + senders).unique()))

    @classmethod
    def from_adjacency(cls, matrix: Any) -> Topology:
        """The graph of an (n, n) matrix of 0 and 1, or of bools: row i sends to column j where it is 1.

        >>> eq.Topology.from_adjacency([[0, 1, 1], [0, 0, 0], [0, 0, 0]]).degrees
        tensor([0, 1, 1])
        """
        n, pairs = from_matrix(matrix)
        return cls.from_edges(n, pairs, directed=True)

    # What the graph is like

    def edges(self) -> Tensor:
        """(e, 2) int64: (sender, receiver) of every edge, sorted.

        >>> eq.Topology.ring(3).edges().tolist()
        [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
        """
        receivers, senders = self._ends()
        keys = (senders * self.n + receivers).sort().values
        return torch.stack([keys // self.n, keys % self.n], dim=1)

    def adjacency(self) -> Tensor:
        """(n, n) bool: whether the row's client sends to the column's.

        >>> eq.Topology.from_edges(2, [(0, 1)], directed=True).adjacency()
        tensor([[False,  True],
                [False, False]])
        """
        receivers, senders = self._ends()
        table = torch.zeros(self.n, self.n, dtype=torch.bool, device=self.senders.device)
        table[senders, receivers] = True
        return table

    def to_networkx(self) -> Any:
        """A ``networkx.Graph`` if whoever hears a client is heard by it, a ``DiGraph`` if not.

        >>> eq.Topology.ring(4).to_networkx().number_of_edges()
        4
        """
        import networkx as nx

        edges = self.edges()
        mutual = torch.equal(edges, torch.stack(self._ends(), dim=1))
        graph = nx.Graph() if mutual else nx.DiGraph()
        graph.add_nodes_from(range(self.n))
        graph.add_edges_from(edges.tolist())
        return graph

    def neighbors(self, i: int) -> Tensor:
        """The clients that client ``i`` hears.

        >>> eq.Topology.complete(4).neighbors(2)
        tensor([0, 1, 3])
        """
        check_count("i", i, 0, self.n - 1)
        return self.senders[i][self.mask[i]]

    def malicious_neighbors(self, malicious: Clients) -> Tensor:
        """(n,) int64: how many malicious clients each client hears; what rules that ask for ``tolerated`` want to know.

        >>> eq.Topology.ring(5).malicious_neighbors([0])
        tensor([0, 1, 0, 0, 1])
        """
        return (self.mask & self._chosen(malicious)[self.senders]).sum(1)

    def femb(self, malicious: Clients) -> float:
        """The fraction of edges between malicious and benign clients. Self-loops do not count; without edges it is 0.

        >>> eq.Topology.ring(5).femb([0])
        0.4
        """
        edges = self.edges()
        liars = self._chosen(malicious)[edges[edges[:, 0] != edges[:, 1]]]
        return int((liars[:, 0] != liars[:, 1]).sum()) / max(len(liars), 1)

    def is_connected(self, malicious: Clients | None = None) -> bool:
        """Whether everybody reaches everybody, or, given ``malicious``, the benign clients do so without these.

        >>> ring = eq.Topology.ring(6)
        >>> ring.is_connected(), ring.is_connected(malicious=[0, 3])
        (True, False)
        """
        return random_graphs.strongly_connected(*random_graphs.subgraph(self.edges(), ~self._chosen(malicious)))

    # Other graphs

    def drop(self, p: float, generator: torch.Generator | None = None) -> Topology:
        """The graph of a round in which every client disconnects with probability ``p``.

        An edge lives only if both of its ends do.

        >>> eq.Topology.complete(5).drop(1.0).degrees
        tensor([0, 0, 0, 0, 0])
        """
        check_probability("p", p)
        device = device_of(generator, self.senders.device)
        luck = torch.rand(self.n, generator=generator, dtype=torch.float32, device=device)
        alive = (luck >= p).to(self.senders.device)
        receivers, senders = self._ends()
        lives = alive[receivers] & alive[senders]
        return Topology(by_receiver(self.n, (receivers * self.n + senders)[lives]))

    def with_self_loops(self) -> Topology:
        """The same graph in which every client hears itself too.

        >>> eq.Topology.ring(4).with_self_loops().neighbors(1)
        tensor([0, 1, 2])
        """
        loops = torch.arange(self.n, device=self.senders.device)[:, None].expand(-1, 2)
        return Topology.from_edges(self.n, torch.cat([self.edges(), loops]), directed=True)

    def to(self, device: torch.device | str) -> Topology:
        """The same graph on another device."""
        return Topology(self.senders.to(device))

    # Sending

    def deliver(
        self,
        models: Tensor,
        lies: Lies | Tensor | None = None,
        malicious: Clients | None = None,
        *,
        keep_nonfinite: bool = False,
    ) -> Inbox:
        """Send every client's model (n, d) to whoever hears it, except where a malicious client lies.

        ``lies`` is a :class:`Lies`, or an (n, d) tensor of what every client says instead of its model. Only
        ``malicious`` clients can lie, and not to themselves: what is said in the name of others is ignored. The bank
        is ``models`` itself while nobody lies, else a copy of the rows that are still sent and of the lies that are
        told.

        >>> models = torch.tensor([[0.0], [1.0], [2.0]])
        >>> lies = eq.Lies.to_all(torch.tensor([9.0]))
        >>> inbox = eq.Topology.complete(3).deliver(models, lies=lies, malicious=[2])
        >>> inbox.bank[inbox.slots].squeeze(-1)
        tensor([[1., 9.],
                [0., 9.],
                [0., 1.]])
        """
        if not is_floating(models) or models.dim() != 2 or len(models) != self.n:
            expected = f"floating-point tensor of shape (n, d) with n = {self.n} clients"
            raise ValueError(f"models must be a {expected}, found {describe(models)}")
        if lies is None and models.device == self.senders.device:
            return self._inbox.with_bank(models, keep_nonfinite=keep_nonfinite)
        senders, mask = self.senders.clamp(min=0).to(models.device), self.mask.to(models.device)
        if lies is None:
            return Inbox(models, senders, mask, senders, keep_nonfinite)
        if malicious is None:
            raise ValueError("malicious must say which clients may tell the lies, found None")
        others = senders != torch.arange(self.n, device=models.device)[:, None]  # nobody lies to itself
        may_lie = as_mask(malicious, self.n).to(models.device)[senders] & others
        bank, slots = substitute_lies(as_lies(lies, models), models, senders, mask, may_lie)
        return Inbox(bank, slots, mask, senders, keep_nonfinite)

    @cached_property
    def _inbox(self) -> Inbox:
        """What everybody receives, but for the models."""
        slots = self.senders.clamp(min=0)
        return Inbox(torch.empty(self.n, 0, device=slots.device), slots, self.mask, slots)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """(e,) receivers and (e,) senders of all edges, sorted by receiver, then by sender."""
        return self.mask.nonzero()[:, 0], self.senders[self.mask]

    def _chosen(self, malicious: Clients | None) -> Tensor:
        return as_mask(malicious, self.n).to(self.senders.device)
