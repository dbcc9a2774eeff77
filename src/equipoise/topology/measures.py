"""Numbers of a graph that decide what malicious clients can reach and which theory covers it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.validation import as_mask
from equipoise.topology import spectra
from equipoise.topology.gossip_weights import GossipKind, gossip_weights
from equipoise.topology.graph import Graph
from equipoise.topology.robustness import Robustness, robustness_of

# Sums of weights that are equal in exact arithmetic agree up to this factor.
ROUNDING = 1 + 1e-12

# Flows between many pairs of clients: about half a second for so many in a dense graph, and the
# time grows like the cube of their number.
VERTEX_CONNECTIVITY_UP_TO = 50


@dataclass(frozen=True, eq=False, repr=False)
class GraphMeasures:
    """Measures of a graph and its malicious clients, each computed when it is read first.

    Tensors have one entry per client and are on the CPU; where they concern benign clients only,
    the other entries are 0 or False.

    Attributes:
        topology: the graph.
        malicious: (n,) bool; None if their places are not known.
        tolerated: (n,) how many malicious neighbors the rule of each client expects.
        gossip: the kind of the weights; see `Topology.gossip_weights`.
        time_limit: seconds for the exact r-robustness.
    """

    topology: Graph
    malicious: Tensor | None
    tolerated: Tensor
    gossip: GossipKind
    time_limit: float

    # Each client

    @cached_property
    def benign(self) -> Tensor:
        """(n,) bool: which clients are benign; all of them if places are not known."""
        return ~as_mask(self.malicious, self.topology.n)

    @cached_property
    def degrees(self) -> Tensor:
        """(n,) the number of neighbors, without the client itself."""
        return self._sends.sum(0)

    @cached_property
    def malicious_degree(self) -> Tensor:
        """(n,) the number of malicious neighbors; the tolerated number if it is not known."""
        if self.malicious is None:
            return self.tolerated.minimum(self.degrees)
        return self._sends[self.malicious].sum(0).where(self.benign, 0)

    @cached_property
    def malicious_weight(self) -> Tensor:
        """(n,) the weight of malicious neighbors; the largest possible one if it is not known."""
        if self.malicious is None:
            return self._heaviest
        return self._weights[:, self.malicious].sum(1).where(self.benign, 0)

    @cached_property
    def capturable(self) -> Tensor:
        """(n,) bool: malicious neighbors have at least half of the weight of all neighbors.

        The messages alone then do not tell which half is the benign one.
        """
        half = self._weights.sum(1) / 2
        return (self.malicious_degree > 0) & (self.malicious_weight * ROUNDING >= half)

    @cached_property
    def component(self) -> Tensor:
        """(n,) the component of the benign subgraph, from 0, the largest; -1 if malicious.

        The clients of a component reach each other.
        """
        import networkx as nx

        graph = self._benign_graph()
        directed = graph.is_directed()
        parts = nx.strongly_connected_components if directed else nx.connected_components
        numbers = torch.full((self.topology.n,), -1, device="cpu")
        ranked = sorted(parts(graph), key=lambda part: (-len(part), min(part)))
        for number, part in enumerate(ranked):
            numbers[list(part)] = number
        return numbers

    @cached_property
    def cut_off(self) -> Tensor:
        """(n,) bool: benign clients outside of the largest component."""
        return self.component > 0

    @cached_property
    def endangered(self) -> Tensor:
        """(n,) bool: benign clients that can be captured or are cut off."""
        return self.capturable | self.cut_off

    # The graph

    @cached_property
    def most_tolerated(self) -> int:
        """The largest number of malicious neighbors that a benign client tolerates."""
        return int(self.tolerated.where(self.benign, 0).max())

    @cached_property
    def tolerated_weight(self) -> float:
        """The largest weight that the tolerated number of neighbors of a benign client can have."""
        return float(self._heaviest.max())

    @cached_property
    def equal_weights(self) -> bool:
        """Whether all neighbors of each benign client have the same weight."""
        largest = self._weights.amax(1, keepdim=True)
        is_lighter = self._sends.T & (self._weights * ROUNDING < largest)
        return not is_lighter[self.benign].any()

    @cached_property
    def components(self) -> int:
        """The number of components of the benign subgraph."""
        return int(self.component.max()) + 1

    @cached_property
    def vertex_connectivity(self) -> int | None:
        """How many benign clients must leave to disconnect the others; None for more than 50."""
        import networkx as nx

        graph = self._benign_graph()
        return nx.node_connectivity(graph) if 0 < len(graph) <= VERTEX_CONNECTIVITY_UP_TO else None

    @cached_property
    def algebraic_connectivity(self) -> float | None:
        """The second smallest eigenvalue of the Laplacian of the benign subgraph.

        None if that is directed, or has fewer than two clients.
        """
        return spectra.algebraic_connectivity(self._among_benign(self._sends.double()))

    @cached_property
    def weighted_connectivity(self) -> float | None:
        """The same with gossip weights; None if these are not symmetric."""
        return spectra.algebraic_connectivity(self._among_benign(self._weights))

    @cached_property
    def spectral_gap(self) -> float | None:
        """1 minus the second largest absolute eigenvalue of the benign gossip matrix.

        The weight of malicious neighbors is added to own, as in He, Karimireddy and Jaggi (2022).
        """
        return spectra.spectral_gap(self._among_benign(self._weights))

    @cached_property
    def robustness(self) -> Robustness:
        """The r-robustness of the whole graph."""
        return robustness_of(self._sends, self.time_limit)

    # Matrices

    @cached_property
    def _sends(self) -> Tensor:
        """(n, n) bool: whether the row's client sends to the column's; no self-loops."""
        return self.topology.adjacency().cpu().fill_diagonal_(False)

    @cached_property
    def _weights(self) -> Tensor:
        """(n, n) gossip weights: the row's client receives from the column's."""
        senders = self.topology.senders.cpu()
        mask = senders >= 0
        matrix = torch.zeros(len(senders), len(senders), dtype=torch.float64, device="cpu")
        matrix[mask.nonzero()[:, 0], senders[mask]] = gossip_weights(senders, self.gossip)[mask]
        return matrix

    @cached_property
    def _heaviest(self) -> Tensor:
        """(n,) the weight of the tolerated number of neighbors with the largest weights."""
        ranked = self._weights.sort(1, descending=True).values
        # Beyond the degree, weights are 0.
        is_tolerated = torch.arange(self.topology.n, device="cpu") < self.tolerated[:, None]
        return ranked.where(is_tolerated, 0).sum(1).where(self.benign, 0)

    def _among_benign(self, matrix: Tensor) -> Tensor:
        return matrix[self.benign][:, self.benign]

    def _benign_graph(self) -> Any:
        """The benign subgraph in networkx, with the ids of the clients."""
        graph = self.topology.to_networkx()
        graph.remove_nodes_from((~self.benign).nonzero().flatten().tolist())
        graph.remove_edges_from([(i, i) for i in range(self.topology.n)])
        return graph
