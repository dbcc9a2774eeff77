"""Weights of the edges for gossip averaging."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from equipoise._utils.validation import check_choice

GossipKind: TypeAlias = Literal["metropolis", "lazy", "laplacian", "uniform"]
KINDS = ("metropolis", "lazy", "laplacian", "uniform")


def gossip_weights(senders: Tensor, kind: GossipKind) -> Tensor:
    """(n, k) float64 weights of the messages of ``senders (n, k)``; see `Topology.gossip_weights`.

    >>> from equipoise.topology.gossip_weights import gossip_weights
    >>> gossip_weights(torch.tensor([[1, 2], [0, -1], [0, -1]]), "uniform")
    tensor([[0.3333, 0.3333],
            [0.5000, 0.0000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    check_choice("kind", kind, KINDS)
    clients = torch.arange(len(senders), device=senders.device)[:, None]
    # A self-loop has no weight: own already has the remainder to 1.
    is_edge = (senders >= 0) & (senders != clients)
    degrees = is_edge.sum(1)
    if kind == "uniform":
        return is_edge / (degrees[:, None] + 1).double()
    _check_mutual(senders, is_edge, kind)
    if kind == "laplacian":
        return is_edge.double() / _largest_eigenvalue(senders, is_edge)
    # -1 in an unused slot reads the last client, which is_edge hides.
    larger = torch.maximum(degrees[:, None], degrees[senders])
    metropolis = is_edge / (larger + 1).double()
    return metropolis / 2 if kind == "lazy" else metropolis


def _largest_eigenvalue(senders: Tensor, is_edge: Tensor) -> Tensor:
    """The largest eigenvalue of the Laplacian, or 1 without edges."""
    if not is_edge.any():
        return torch.ones((), dtype=torch.float64, device=senders.device)
    laplacian = is_edge.sum(1).double().diag()
    laplacian[is_edge.nonzero()[:, 0], senders[is_edge]] = -1.0
    eigenvalues: Tensor = torch.linalg.eigvalsh(laplacian)  # ascending
    return eigenvalues[-1]


def _check_mutual(senders: Tensor, is_edge: Tensor, kind: str) -> None:
    """Raise if an edge has no reverse, because no weights are then symmetric."""
    n = len(senders)
    receiver = is_edge.nonzero()[:, 0]
    sender = senders[is_edge]
    # One int64 key per edge, sorted by receiver, then by sender.
    keys = receiver * n + sender
    one_way = ~torch.isin(sender * n + receiver, keys)
    if one_way.any():
        first = one_way.nonzero()[0, 0]
        raise ValueError(
            f"kind={kind!r} must have edges in both directions, found an edge from client "
            f"{sender[first]} to {receiver[first]} without its reverse; "
            "kind='uniform' accepts directed graphs"
        )
