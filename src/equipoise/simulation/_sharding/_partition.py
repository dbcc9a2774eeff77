"""Which rank owns which clients, and how many edges that cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise._utils.validation import describe
from equipoise.topology import Topology

PartitionLike = Literal["contiguous", "bisection", "modularity"] | Tensor | Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Partition:
    """Client i belongs to rank ``owners[i]``, of ``ranks`` ranks.

    >>> partition = Partition.contiguous(5, ranks=2)
    >>> partition.owners, partition.counts
    (tensor([0, 0, 0, 1, 1]), [3, 2])
    >>> partition.cut(eq.Topology.ring(5))
    Cut(edges=4, rows=4)
    """

    owners: Tensor
    ranks: int

    __repr__ = as_call

    def __post_init__(self) -> None:
        owners = self.owners
        fits = isinstance(owners, Tensor) and owners.dtype == torch.int64 and owners.dim() == 1
        if not fits or bool((owners < 0).any() | (owners >= self.ranks).any()):
            expected = f"an int64 tensor (n,) of ranks from 0 to {self.ranks - 1}"
            raise ValueError(f"partition must be {expected}, found {describe(owners)}")
        if min(self.counts) == 0:
            empty = self.counts.index(0)
            raise ValueError(f"partition must give each rank a client, found none for rank {empty}")

    @classmethod
    def contiguous(cls, n: int, ranks: int) -> Partition:
        """Blocks of successive clients, whose sizes differ by at most one."""
        return cls(torch.arange(n, device="cpu") * ranks // n, ranks)

    @property
    def counts(self) -> list[int]:
        """The number of clients of each rank."""
        counts: list[int] = torch.bincount(self.owners, minlength=self.ranks).tolist()
        return counts

    def of_rank(self, rank: int) -> Tensor:
        """The ids of the clients of a rank, ascending."""
        return (self.owners == rank).nonzero().flatten()

    def cut(self, topology: Topology) -> Cut:
        """The edges between ranks, and the rows that are sent for them."""
        senders, receivers = topology.edges().cpu().T
        to = self.owners[receivers]
        is_cut = self.owners[senders] != to
        # A rank gets the model of a sender once, however many of its clients listen.
        rows = (to[is_cut] * len(self.owners) + senders[is_cut]).unique()
        return Cut(int(is_cut.sum()), len(rows))


@dataclass(frozen=True)
class Cut:
    """The directed edges between ranks, and the distinct rows that cross for them in a round."""

    edges: int
    rows: int


def partition_of(choice: object, topology: Topology | None, n: int, ranks: int) -> Partition:
    """The partition that a user chose.

    A function is called as ``choice(topology, ranks)``. The named partitions other than
    ``"contiguous"`` look at the graph.
    """
    if n < ranks:
        raise ValueError(f"models must be of at least one client per rank, {ranks}, found {n}")
    if isinstance(choice, Tensor):
        owners = choice.cpu()
        if owners.shape != (n,):
            expected = f"one rank per client, ({n},)"
            raise ValueError(f"partition must be {expected}, found {describe(choice)}")
        return Partition(owners, ranks)
    if isinstance(choice, str) and choice == "contiguous":
        return Partition.contiguous(n, ranks)
    named = {"bisection": bisection, "modularity": modularity}
    chosen = named.get(choice) if isinstance(choice, str) else choice
    if not callable(chosen):
        expected = "'contiguous', 'bisection', 'modularity', ranks (n,) or a function of the graph"
        raise ValueError(f"partition must be {expected}, found {choice!r}")
    if topology is None:
        expected = "'contiguous' or ranks (n,) if the graph depends on the round"
        raise ValueError(f"partition must be {expected}, found {choice!r}")
    return partition_of(chosen(topology, ranks), None, n, ranks)


def bisection(topology: Topology, ranks: int) -> Tensor:
    """Halve the clients again and again, by the algorithm of Kernighan and Lin of networkx."""
    import networkx

    graph = networkx.Graph(topology.to_networkx())
    owners = torch.zeros(topology.n, dtype=torch.int64, device="cpu")
    todo = [(sorted(graph.nodes), 0, ranks)]
    while todo:
        nodes, first, count = todo.pop()
        if count == 1:
            owners[nodes] = first
            continue
        left = count // 2
        share = len(nodes) * left // count
        start = (set(nodes[:share]), set(nodes[share:]))
        swapping = networkx.algorithms.community.kernighan_lin_bisection
        halves = swapping(graph.subgraph(nodes), partition=start, seed=0)
        # The algorithm swaps pairs, so the sizes stay as they start; the order may not.
        halves = sorted(halves, key=lambda half: len(half) != share)
        todo.append((sorted(halves[0]), first, left))
        todo.append((sorted(halves[1]), first + left, count - left))
    return owners


def modularity(topology: Topology, ranks: int) -> Tensor:
    """Group the clients by communities of networkx, then deal these out in equal shares."""
    import networkx

    graph = networkx.Graph(topology.to_networkx())
    found = networkx.algorithms.community.greedy_modularity_communities(graph)
    order = [client for community in found for client in sorted(community)]
    owners = torch.empty(topology.n, dtype=torch.int64, device="cpu")
    # Members of a community follow each other, so that few of them are cut.
    owners[order] = Partition.contiguous(topology.n, ranks).owners
    return owners
