"""Eigenvalues of graphs: how fast gossip averaging reaches a consensus."""

from __future__ import annotations

import torch
from torch import Tensor

# Eigenvalues of weights up to 1 are exact up to about 1e-13 for hundreds of clients. The smallest
# ones of connected graphs are larger: 1e-7 for a path of 10,000 clients.
ROUNDING = 1e-10


def laplacian(weights: Tensor) -> Tensor:
    """(n, n) the row sums on the diagonal, minus the weights; those on the diagonal are ignored."""
    edges = weights - weights.diag().diag()
    return edges.sum(1).diag() - edges


def algebraic_connectivity(weights: Tensor) -> float | None:
    """The second smallest eigenvalue of the Laplacian of symmetric weights (n, n).

    It is 0 if the graph is disconnected. None for fewer than two clients, or if the weights are not
    symmetric.

    >>> from equipoise.topology.spectra import algebraic_connectivity
    >>> algebraic_connectivity(eq.Topology.complete(4).adjacency().double())
    4.0
    """
    if len(weights) < 2 or not torch.equal(weights, weights.T):
        return None
    return _without_rounding(float(torch.linalg.eigvalsh(laplacian(weights))[1]))


def spectral_gap(weights: Tensor) -> float | None:
    """1 minus the second largest absolute eigenvalue of the gossip matrix; own has the remainder.

    Each round of averaging multiplies the disagreement by at most 1 minus the gap, if the weights
    (n, n) are symmetric. None for fewer than two clients.

    >>> from equipoise.topology.spectra import spectral_gap
    >>> spectral_gap(torch.full((4, 4), 0.25, dtype=torch.float64))
    1.0
    """
    n = len(weights)
    if n < 2:
        return None
    matrix = torch.eye(n, dtype=torch.float64) - laplacian(weights)
    symmetric = torch.equal(weights, weights.T)
    eigenvalues = torch.linalg.eigvalsh(matrix) if symmetric else torch.linalg.eigvals(matrix)
    return _without_rounding(1 - float(eigenvalues.abs().sort().values[-2]))


def _without_rounding(value: float) -> float:
    """The value, and exactly 0 where it differs from 0 by rounding only."""
    return value if abs(value) > ROUNDING else 0.0
