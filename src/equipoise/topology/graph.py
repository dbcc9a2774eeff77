"""The directed graph of clients: its edges, neighbors and weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.validation import Clients, as_mask, check_count
from equipoise.topology import _edge_formats, generators
from equipoise.topology.gossip_weights import GossipKind, gossip_weights


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """The readable side of a graph; `Topology` inherits it, and makes and changes graphs."""

    senders: Tensor

    def __post_init__(self) -> None:
        _edge_formats.check_senders(self.senders)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, k={self.k}, e={int(self.mask.sum())})"

    @property
    def n(self) -> int:
        """Number of clients."""
        return self.senders.shape[0]

    @property
    def k(self) -> int:
        """Number of slots: the largest in-degree."""
        return self.senders.shape[1]

    # Cached, because every delivery reads the mask.
    @cached_property
    def mask(self) -> Tensor:
        """(n, k) bool: which slots hold a sender."""
        return self.senders >= 0

    @cached_property
    def degrees(self) -> Tensor:
        """(n,) int64: the number of senders of each client."""
        return self.mask.sum(1)

    def edges(self) -> Tensor:
        """(e, 2) int64: (sender, receiver) of every edge, sorted.

        >>> eq.Topology.ring(3).edges().tolist()
        [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
        """
        receivers, senders = self._ends()
        # One int64 key per edge sorts faster than pairs.
        keys = (senders * self.n + receivers).sort().values
        return torch.stack([keys // self.n, keys % self.n], dim=1)

    def adjacency(self) -> Tensor:
        """(n, n) bool: whether the row's client sends to the column's.

        >>> eq.Topology.from_edges(2, [(0, 1)], directed=True).adjacency()
        tensor([[False,  True],
                [False, False]])
        """
        receivers, senders = self._ends()  # (e,) each
        table = torch.zeros(self.n, self.n, dtype=torch.bool, device=self.senders.device)
        table[senders, receivers] = True
        return table

    def to_networkx(self) -> Any:
        """A ``networkx.Graph`` if all edges are mutual, otherwise a ``DiGraph``.

        >>> eq.Topology.ring(4).to_networkx().number_of_edges()
        4
        """
        return _edge_formats.to_networkx(self.n, self.edges())

    def neighbors(self, i: int) -> Tensor:
        """The clients that send to client ``i``.

        >>> eq.Topology.complete(4).neighbors(2)
        tensor([0, 1, 3])
        """
        check_count("i", i, 0, self.n - 1)
        return self.senders[i][self.mask[i]]

    def malicious_neighbors(self, malicious: Clients) -> Tensor:
        """(n,) int64: the number of malicious senders of each client.

        It is the true value of the round input ``tolerated``.

        >>> eq.Topology.ring(5).malicious_neighbors([0])
        tensor([0, 1, 0, 0, 1])
        """
        # -1 in unused slots reads the last client; the mask hides it.
        return (self.mask & self._as_mask(malicious)[self.senders]).sum(1)

    def femb(self, malicious: Clients) -> float:
        """The fraction of edges between malicious and benign clients (FEMB).

        Self-loops do not count. Without edges it is 0.

        >>> eq.Topology.ring(5).femb([0])
        0.4
        """
        edges = self.edges()
        others = edges[edges[:, 0] != edges[:, 1]]
        is_malicious = self._as_mask(malicious)[others]  # (e, 2): of senders and of receivers
        mixed = is_malicious[:, 0] != is_malicious[:, 1]
        return int(mixed.sum()) / max(len(mixed), 1)  # 0 / 1 without edges

    def is_connected(self, malicious: Clients | None = None) -> bool:
        """Whether each client reaches all others; given ``malicious``, in the benign subgraph.

        >>> ring = eq.Topology.ring(6)
        >>> ring.is_connected(), ring.is_connected(malicious=[0, 3])
        (True, False)
        """
        benign = ~self._as_mask(malicious)  # all clients, if malicious is None
        return generators.strongly_connected(*generators.subgraph(self.edges(), benign))

    def gossip_weights(self, kind: GossipKind = "metropolis") -> Tensor:
        r"""(n, k) float64: the weight of each message in gossip averaging, as in ``senders``.

        The weights are nonnegative; own has the remainder of each row to 1, unused slots and
        self-loops have 0. With :math:`d_i` neighbors, :math:`w_{ij}` is

        - ``"metropolis"``: :math:`1 / (1 + \max(d_i, d_j))` (Xiao, Boyd and Lattimore, 2007).
        - ``"lazy"``: half of the Metropolis weights, :math:`(I + W) / 2`, whose eigenvalues are
          nonnegative.
        - ``"laplacian"``: the same number for all edges, 1 over the largest eigenvalue of the
          Laplacian L. Averaging is then :math:`x - \eta L x` with the largest :math:`\eta` that
          keeps the eigenvalues of :math:`I - \eta L` nonnegative. It computes the eigenvalues of
          an n by n matrix.
        - ``"uniform"``: :math:`1 / (1 + d_i)`, an average of own and all messages.

        The first three are symmetric, so that averaging preserves the mean of all clients, and
        exist only if each edge has its reverse. Uniform weights exist for every graph, and preserve
        the mean if all clients have the same number of neighbors.

        >>> star = eq.Topology.from_edges(4, [(0, 1), (0, 2), (0, 3)])
        >>> star.gossip_weights()
        tensor([[0.2500, 0.2500, 0.2500],
                [0.2500, 0.0000, 0.0000],
                [0.2500, 0.0000, 0.0000],
                [0.2500, 0.0000, 0.0000]], dtype=torch.float64)
        """
        return gossip_weights(self.senders, kind)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """(e,) receivers and (e,) senders of all edges, sorted by receiver, then by sender."""
        return self.mask.nonzero()[:, 0], self.senders[self.mask]

    def _as_mask(self, malicious: Clients | None) -> Tensor:
        return as_mask(malicious, self.n).to(self.senders.device)
