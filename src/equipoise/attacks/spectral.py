"""The attack along the slowest mode of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise._utils.validation import check_options
from equipoise.attacks.knowledge import Knowledge
from equipoise.kernels import block, column_blocks, compute_dtype, new_output
from equipoise.messages import Lies


@dataclass(frozen=True)
class Spectral:
    r"""Each victim is pushed away from the part of the graph that it mixes with most slowly.

    .. math:: m_i = w_i + \epsilon \, \varphi_i \sum_{j \text{ benign}} \varphi_j w_j

    where :math:`\varphi` is the Fiedler vector, of unit length, of the graph of benign clients: the eigenvector of its
    Laplacian's second smallest eigenvalue. Its signs cut the graph where it is thinnest, and disagreement along it is
    what gossip removes last; this adds to it. After the spectral attack of Gaucher et al., *Unified Breakdown Analysis
    for Byzantine Robust Gossip*, 2024. Of a directed graph both directions count. The eigenvectors of an n by n
    matrix are computed, so this is for up to a few thousand clients.

    Args:
        epsilon: strength; with 1 a message is off by the victim's share of the slowest mode.

    >>> path = eq.Topology.from_edges(5, [(0, 1), (1, 2), (0, 3), (2, 3), (2, 4)])
    >>> models = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0]])
    >>> known = eq.attacks.Knowledge(models, path, malicious=[3])
    >>> lies = eq.attacks.Spectral().forge(known)
    >>> (lies.rows - models[known.victims]).sign()  # clients 0 and 2 are driven apart
    tensor([[-1.],
            [ 1.]])
    """

    epsilon: float = 1.0

    def __post_init__(self) -> None:
        check_options(self)

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """One row per victim."""
        victims, sane = known.victims, known.sane.nonzero().flatten()
        if known.is_hopeless:
            return None
        slowest = torch.zeros(len(known.models), dtype=compute_dtype(known.models), device=known.models.device)
        adjacency = known.topology.adjacency().to(sane.device)[sane[:, None], sane]
        slowest[sane] = fiedler_vector(adjacency).to(slowest.dtype)
        rows = new_output(known.models, len(victims), known.models.shape[1])
        for part in column_blocks(rows.shape[1], 8192):
            models = block(known.models, part)
            mode = slowest[sane] @ (models[sane] - models[sane].mean(0))  # the mean adds nothing but rounding
            rows[:, part] = models[victims] + self.epsilon * slowest[victims, None] * mode
        return Lies(rows, torch.full_like(victims, -1), victims)


def fiedler_vector(adjacency: Tensor) -> Tensor:
    """(n,) eigenvector of the second smallest eigenvalue of the Laplacian, float64; 0 for a single client.

    It is orthogonal to (1, ..., 1), also if the graph falls apart, where it tells one part from the others.

    >>> eq.attacks.fiedler_vector(torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).abs()
    tensor([0.7071, 0.0000, 0.7071], dtype=torch.float64)
    """
    joined = (adjacency.bool() | adjacency.bool().T).double().fill_diagonal_(0)
    if len(joined) < 2:
        return torch.zeros(len(joined), dtype=torch.float64, device=joined.device)
    degrees = joined.sum(1)
    lifted = 2 * degrees.max() + 1  # of (1, ..., 1), beyond all other eigenvalues
    vectors: Tensor = torch.linalg.eigh(degrees.diag() - joined + lifted / len(joined)).eigenvectors
    return vectors[:, 0]
