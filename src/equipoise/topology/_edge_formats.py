"""Convert and validate edges: pairs of clients, a matrix, a networkx graph, senders by receiver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.validation import as_tensor, describe


def from_pairs(edges: Tensor | Iterable[tuple[int, int]], n: int) -> Tensor:
    """Pairs of n clients as an int64 tensor (e, 2)."""
    pairs = as_tensor(edges, "edges must be pairs of clients")
    # Without edges there are no integers to check: an empty list is a tensor of floats.
    if pairs.shape in ((0,), (0, 2)):
        return torch.zeros(0, 2, dtype=torch.int64, device=pairs.device)
    is_integer = not pairs.is_floating_point() and pairs.dtype != torch.bool
    if pairs.dim() != 2 or pairs.shape[1] != 2 or not is_integer:
        raise ValueError(f"edges must be integers of shape (e, 2), found {describe(pairs)}")
    pairs = pairs.long()
    if pairs.numel() and (pairs.min() < 0 or pairs.max() >= n):
        found = f"{pairs.min()} to {pairs.max()}"
        raise ValueError(f"edges must join clients 0 to {n - 1}, found {found}")
    return pairs


def from_matrix(matrix: Any) -> tuple[int, Tensor]:
    """The number of clients, and the edges (e, 2), of an (n, n) matrix of 0 and 1."""
    table = as_tensor(matrix, "matrix must be of shape (n, n)")
    if table.dim() != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"matrix must be of shape (n, n), found {describe(table)}")
    # Weights are an error, not an edge: a gossip matrix would otherwise pass as a graph.
    other = table[(table != 0) & (table != 1)]
    if other.numel():
        raise ValueError(f"matrix must hold nothing but 0 and 1, found {other[0]}")
    return len(table), table.nonzero()


def from_networkx(
    graph: Any, nodes: Iterable[Any] | None = None
) -> tuple[int, list[tuple[int, int]]]:
    """The number of clients, and the edges; nodes are numbered as in ``nodes``, or sorted."""
    import networkx as nx

    # Parallel edges would send a message twice, which no rule defines.
    if not isinstance(graph, nx.Graph) or graph.is_multigraph():
        raise ValueError(f"graph must be a Graph or a DiGraph, found {type(graph).__name__}")
    clients = {node: client for client, node in enumerate(_in_order(graph, nodes))}
    return len(clients), [(clients[u], clients[v]) for u, v in graph.edges()]


def to_networkx(n: int, edges: Tensor) -> Any:
    """A Graph if all edges are mutual, otherwise a DiGraph; the edges (e, 2) are sorted."""
    import networkx as nx

    # All edges are mutual if swapping senders and receivers gives the same sorted pairs.
    senders, receivers = edges.T
    mutual = torch.equal(senders * n + receivers, (receivers * n + senders).sort().values)
    graph = nx.Graph() if mutual else nx.DiGraph()
    # Clients without edges are nodes, too.
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges.tolist())
    return graph


def _in_order(graph: Any, nodes: Iterable[Any] | None) -> list[Any]:
    """The nodes of a graph in the given or in sorted order; raise unless each occurs once."""
    if nodes is None:
        # Sorted, because the order of insertion depends on how the graph was made.
        try:
            return sorted(graph)
        except TypeError as error:
            found = list(graph)[:5]
            raise ValueError(f"graph must have nodes that can be sorted, found {found}") from error
    expected = "nodes must hold every node of the graph once"
    if not isinstance(nodes, Iterable):
        raise ValueError(f"{expected}, found {describe(nodes)}")
    given = list(nodes)
    if foreign := [node for node in given if node not in graph]:
        raise ValueError(f"{expected}, found {foreign[0]!r} that is not in it")
    counts = Counter(given)
    if wrong := [node for node in graph if counts[node] != 1]:
        raise ValueError(f"{expected}, found {wrong[0]!r} {counts[wrong[0]]} times")
    return given


def by_receiver(n: int, keys: Tensor) -> Tensor:
    """(n, k) senders of each receiver; keys are ``receiver * n + sender``, ascending."""
    receivers = keys // n
    senders = keys % n
    degrees = torch.bincount(receivers, minlength=n)
    # Keys are sorted, so the column of an edge is its distance from the first one of its receiver.
    starts = degrees.cumsum(0) - degrees
    columns = torch.arange(len(keys), device=keys.device) - starts[receivers]
    table = torch.full((n, int(degrees.max())), -1, device=keys.device)
    table[receivers, columns] = senders
    return table


def check_senders(senders: object) -> None:
    """Raise unless each row holds ascending client ids, followed by -1."""
    if not (
        isinstance(senders, Tensor)
        and senders.dim() == 2
        and senders.dtype == torch.int64
        and len(senders)
    ):
        raise ValueError(
            f"senders must be an int64 tensor of shape (n, k), n > 0, found {describe(senders)}; "
            "Topology.from_edges and Topology.from_adjacency take other forms"
        )
    n = len(senders)
    if senders.numel() and (senders.min() < -1 or senders.max() >= n):
        found = f"{senders.min()} to {senders.max()}"
        expected = f"clients from 0 to {n - 1}, or -1 for none"
        raise ValueError(f"senders must be {expected}, found {found}")
    # A sender must follow a smaller one, never -1. Equal neighbors would be one edge twice.
    left = senders[:, :-1]
    right = senders[:, 1:]
    unsorted = ((right >= 0) & ((left < 0) | (left >= right))).any(1).nonzero()
    if len(unsorted):
        row = senders[unsorted[0, 0]].tolist()
        raise ValueError(f"senders must ascend for every receiver, then be -1, found {row}")
