"""Topology: the directed graph along which clients send messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.rng import device_of
from equipoise._utils.validation import (
    Clients,
    as_mask,
    check_count,
    check_probability,
    describe,
    is_floating,
)
from equipoise.messages import Inbox, Lies, as_lies, substitute_lies
from equipoise.topology import _edge_formats, diagnosis, generators
from equipoise.topology._named_graphs import NamedGraphs
from equipoise.topology._random_graphs import RandomGraphs
from equipoise.topology.diagnosis import Diagnosis
from equipoise.topology.gossip_weights import GossipKind
from equipoise.topology.graph import Graph


@dataclass(frozen=True, eq=False, repr=False)
class Topology(Graph, NamedGraphs, RandomGraphs):
    """A graph of n clients: client i receives messages from the clients ``senders[i]``.

    ``senders (n, k)`` is int64, ascending for each receiver, and -1 in unused slots; ``k`` is the
    largest in-degree. Edges are (sender, receiver). Self-loops are never implicit. Two topologies
    are equal only if they are the same object; compare :meth:`edges` to compare graphs.

    The random constructors draw again, reproducibly from ``seed``, until the graph is connected. If
    ``malicious`` is given, the subgraph of the benign clients must be connected as well, which
    robust rules need to reach a consensus (Assumption 5 of BALANCE, Fang et al., CCS 2024).
    ``connected=False`` takes the first draw. Without a seed, ``torch.manual_seed`` determines the
    graph. ``malicious`` is always a bool mask (n,) or client ids.

    >>> ring = eq.Topology.ring(4)
    >>> ring
    Topology(n=4, k=2, e=8)
    >>> ring.senders
    tensor([[1, 3],
            [0, 2],
            [1, 3],
            [0, 2]])
    """

    # Constructors

    @classmethod
    def complete(cls, n: int) -> Topology:
        """Each client is connected to all others.

        >>> eq.Topology.complete(3).senders
        tensor([[1, 2],
                [0, 2],
                [0, 1]])
        """
        return cls(generators.complete_senders(n))

    @classmethod
    def from_networkx(cls, graph: Any, *, nodes: Iterable[Any] | None = None) -> Topology:
        """The graph of a ``networkx.Graph``, or of a ``DiGraph`` in which u sends to v if u -> v.

        Client i is ``nodes[i]``. By default the nodes are numbered in sorted order, in which "c10"
        comes before "c2". If your models are in the order of ``graph.nodes``, pass these.

        >>> import networkx as nx
        >>> graph = nx.DiGraph([("c", "b"), ("a", "b")])
        >>> eq.Topology.from_networkx(graph).neighbors(1)
        tensor([0, 2])
        >>> eq.Topology.from_networkx(graph, nodes=["b", "c", "a"]).neighbors(0)
        tensor([1, 2])
        """
        n, pairs = _edge_formats.from_networkx(graph, nodes)
        return cls.from_edges(n, pairs, directed=graph.is_directed())

    @classmethod
    def from_edges(
        cls, n: int, edges: Tensor | Iterable[tuple[int, int]], *, directed: bool = False
    ) -> Topology:
        """The graph of pairs of clients; ``directed`` ones are (sender, receiver).

        Duplicates are merged.

        >>> eq.Topology.from_edges(3, [(0, 1), (2, 1)], directed=True).degrees
        tensor([0, 2, 0])
        """
        check_count("n", n, 1)
        pairs = _edge_formats.from_pairs(edges, n)
        # An undirected edge is two directed ones. unique() sorts by receiver, then by sender.
        senders, receivers = pairs.T if directed else torch.cat([pairs, pairs.flip(1)]).T
        return cls(_edge_formats.by_receiver(n, (receivers * n + senders).unique()))

    @classmethod
    def from_adjacency(cls, matrix: Any) -> Topology:
        """The graph of an (n, n) matrix of 0 and 1, or of bools: 1 where row i sends to column j.

        >>> eq.Topology.from_adjacency([[0, 1, 1], [0, 0, 0], [0, 0, 0]]).degrees
        tensor([0, 1, 1])
        """
        n, pairs = _edge_formats.from_matrix(matrix)
        return cls.from_edges(n, pairs, directed=True)

    def diagnose(
        self,
        malicious: Clients | None = None,
        *,
        tolerated: int | Tensor | None = None,
        gossip: GossipKind | None = None,
        rules: Iterable[object] | None = None,
        time_limit: float = 10.0,
    ) -> Diagnosis:
        """Report the reach of malicious clients, and the rules whose theory covers the graph.

        Args:
            malicious: the malicious clients. Without it their places are unknown: any ``tolerated``
                neighbors of a client may be malicious.
            tolerated: how many malicious neighbors rules expect, one number or one per client; by
                default the true numbers, or 0 if the places are unknown.
            gossip: kind of the gossip weights; by default ``"metropolis"``, or ``"uniform"`` if the
                graph is directed.
            rules: rules to judge, instances or classes; by default all rules of the library.
            time_limit: seconds for the exact r-robustness, which needs
                ``pip install "equipoise[diagnostics]"``. With 0, or if it takes longer, bounds are
                given.

        >>> malicious = [0, 7]
        >>> rules = [eq.FedAvg, eq.TrimmedMean, eq.Krum, eq.UBAR]
        >>> print(eq.Topology.two_castle(10).diagnose(malicious, rules=rules))
        Topology(n=10, k=8, e=80), 2 malicious
          malicious neighbors             1 to 2, metropolis weight up to 0.222
          can be captured                 none
          cut off                         none
          components of the benign graph  1
          vertex connectivity             6
          algebraic connectivity          6
          the same with weights, mu_2     0.667
          spectral gap                    0.667
          r-robustness of the graph       4
        <BLANKLINE>
        Theory, for f = 2 malicious neighbors:
          FedAvg       not covered: f = 2; one malicious neighbor moves the aggregate anywhere
          TrimmedMean  not known: r = 4; 3 is necessary, 2f + 1 = 5 is sufficient
          Krum         covered: k >= 2f + 3 at all clients; bounds each aggregate only
          UBAR         not known: no theorem applies: losses decide which models count
        """
        return diagnosis.diagnose(
            self, malicious, tolerated, gossip=gossip, rules=rules, time_limit=time_limit
        )

    # Derived graphs

    def drop(self, p: float, generator: torch.Generator | None = None) -> Topology:
        """The graph of a round in which each client disconnects with probability ``p``.

        An edge remains if both of its clients do.

        >>> eq.Topology.complete(5).drop(1.0).degrees
        tensor([0, 0, 0, 0, 0])
        """
        check_probability("p", p)
        device = device_of(generator, self.senders.device)
        # A fixed dtype: with the default dtype of torch, a seed would give different draws.
        # One draw per client, not per edge: all edges of a client fail together.
        draws = torch.rand(self.n, generator=generator, dtype=torch.float32, device=device)
        # >=, because draws lie in [0, 1): p = 0 drops no client and p = 1 all of them.
        online = (draws >= p).to(self.senders.device)
        receivers, senders = self._ends()
        # The order of edges survives the selection, so the keys are still ascending.
        remains = online[receivers] & online[senders]
        return Topology(_edge_formats.by_receiver(self.n, (receivers * self.n + senders)[remains]))

    def with_malicious(self, count: int) -> Topology:
        """The same graph with ``count`` more clients, each connected to all of the present ones.

        The new clients have the ids n to n + count - 1 and no edges among each other. Gaucher,
        Dieuleveut and Hendrikx (ICML 2025) attack graphs of benign clients this way: each client
        has ``count`` malicious neighbors.

        The new clients have n neighbors, which lowers the Metropolis weights of their edges. In
        that paper each client has attackers of its own: take uniform gossip weights, which are its
        Metropolis weights if the graph of benign clients is regular.

        >>> graph = eq.Topology.ring(5).with_malicious(2)
        >>> graph.malicious_neighbors([5, 6])
        tensor([2, 2, 2, 2, 2, 0, 0])
        """
        check_count("count", count, 0)
        present = torch.arange(self.n, device=self.senders.device)
        new = torch.arange(self.n, self.n + count, device=self.senders.device)
        pairs = torch.cartesian_prod(present, new)
        added = torch.cat([pairs, pairs.flip(1)])
        edges = torch.cat([self.edges(), added])
        return Topology.from_edges(self.n + count, edges, directed=True)

    def without_receivers(self, clients: Clients) -> Topology:
        """The same clients, of which these receive nothing: no edge leads to them.

        They still send. ``k`` is the largest remaining in-degree.

        >>> eq.Topology.ring(4).without_receivers([0, 3]).senders
        tensor([[-1, -1],
                [ 0,  2],
                [ 1,  3],
                [-1, -1]])
        """
        receives = ~as_mask(clients, self.n, name="clients").to(self.senders.device)
        receivers, senders = self._ends()
        remains = receives[receivers]
        return Topology(_edge_formats.by_receiver(self.n, (receivers * self.n + senders)[remains]))

    def with_self_loops(self) -> Topology:
        """The same graph, in which each client also sends to itself.

        >>> eq.Topology.ring(4).with_self_loops().neighbors(1)
        tensor([0, 1, 2])
        """
        loops = torch.arange(self.n, device=self.senders.device)[:, None].expand(-1, 2)  # (n, 2)
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
        """Send each client's model (n, d) along its edges, except where a malicious client lies.

        ``lies`` is a :class:`Lies`, or an (n, d) tensor with the message of each client. Only
        ``malicious`` clients can lie, and not to themselves; other entries are ignored. Without
        lies the bank is ``models`` itself, otherwise a copy of the rows that are still sent and of
        the lies.

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
        # 1. The usual case in a simulation: edges are checked once per graph, not once per round.
        if lies is None and models.device == self.senders.device:
            return self._inbox.with_bank(models, keep_nonfinite=keep_nonfinite)
        # 2. A graph on another device than the models. Unused slots point to client 0, masked.
        senders = self.senders.clamp(min=0).to(models.device)
        mask = self.mask.to(models.device)
        if lies is None:
            return Inbox(models, senders, mask, senders, keep_nonfinite)
        if malicious is None:
            raise ValueError("malicious must name the clients that may lie, found None")
        # 3. Lies. A self-loop carries a client's own model, which no attack on messages changes.
        from_others = senders != torch.arange(self.n, device=models.device)[:, None]
        may_lie = as_mask(malicious, self.n).to(models.device)[senders] & from_others
        table = as_lies(lies, models)  # also checks dtype, device and shape
        bank, slots = substitute_lies(table, models, senders, mask, may_lie)
        return Inbox(bank, slots, mask, senders, keep_nonfinite)

    @cached_property
    def _inbox(self) -> Inbox:
        """The inbox of a round without its models, whose ids are checked once."""
        slots = self.senders.clamp(min=0)
        # No columns: `with_bank` puts the models of each round in.
        no_models = torch.empty(self.n, 0, device=slots.device)
        return Inbox(no_models, slots, self.mask, slots)
