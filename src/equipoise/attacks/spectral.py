"""The attack along the slowest mode of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._utils.validation import check_options
from equipoise.attacks.knowledge import Knowledge
from equipoise.kernels import block, column_blocks, compute_dtype, new_output
from equipoise.messages import Lies

# 8192 float32 values of one client, 32 KiB, fill a first-level cache.
BLOCK_COLUMNS = 8192


@dataclass(frozen=True)
class Spectral:
    r"""Push each victim away from the part of the graph that it mixes with most slowly.

    .. math:: m_i = w_i + \epsilon \, \varphi_i \sum_{j \text{ benign}} \varphi_j w_j

    where :math:`\varphi` is the Fiedler vector, of unit length, of the graph of benign clients: the
    eigenvector of the second smallest eigenvalue of its Laplacian. Its signs cut the graph at its
    bottleneck, and gossip removes disagreement along it last; this attack adds to that
    disagreement. After the spectral attack of Gaucher et al., *Unified Breakdown Analysis for
    Byzantine Robust Gossip*, 2024. Directed edges count in both directions. The attack computes the
    eigenvectors of an n by n matrix, so use it for up to a few thousand clients.

    Args:
        epsilon: strength; with 1, a message is off by the victim's share of the slowest mode.

    >>> path = eq.Topology.from_edges(5, [(0, 1), (1, 2), (0, 3), (2, 3), (2, 4)])
    >>> models = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0]])
    >>> known = eq.attacks.Knowledge(models, path, malicious=[3])
    >>> lies = eq.attacks.Spectral().forge(known)
    >>> (lies.rows - models[known.victims]).sign()  # clients 0 and 2 are driven apart
    tensor([[-1.],
            [ 1.]])
    """

    uses_malicious_models: ClassVar[bool] = False

    epsilon: float = 1.0

    def __post_init__(self) -> None:
        check_options(self)

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row per victim."""
        if not known._is_feasible:
            return None
        n, d = known.models.shape
        victims = known.victims
        benign = known.finite_benign.nonzero().flatten()
        # (b, b) edges among the benign clients with finite models.
        adjacency = known.topology.adjacency().to(benign.device)[benign[:, None], benign]
        phi = torch.zeros(n, dtype=compute_dtype(known.models), device=known.models.device)
        phi[benign] = fiedler_vector(adjacency).to(phi.dtype)
        rows = new_output(known.models, len(victims), d)
        for part in column_blocks(d, BLOCK_COLUMNS):
            models = block(known.models, part)
            # phi is orthogonal to constants, so the mean contributes only rounding: subtract it.
            mode = phi[benign] @ (models[benign] - models[benign].mean(0))
            rows[:, part] = models[victims] + self.epsilon * phi[victims, None] * mode
        return Lies(rows, torch.full_like(victims, -1), victims)


def fiedler_vector(adjacency: Tensor) -> Tensor:
    """(n,) eigenvector of the Laplacian's second smallest eigenvalue, float64; 0 for one client.

    It is orthogonal to (1, ..., 1). For a disconnected graph it separates one component from the
    others.

    >>> eq.attacks.fiedler_vector(torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).abs()
    tensor([0.7071, 0.0000, 0.7071], dtype=torch.float64)
    """
    symmetric = (adjacency.bool() | adjacency.bool().T).double().fill_diagonal_(0)
    n = len(symmetric)
    if n < 2:
        return torch.zeros(n, dtype=torch.float64, device=symmetric.device)
    degrees = symmetric.sum(1)
    # Eigenvalues of a Laplacian are at most twice the largest degree. Adding lifted / n everywhere
    # moves the eigenvalue of (1, ..., 1) from 0 beyond them and leaves the others: the Fiedler
    # vector is then the first eigenvector, also if 0 is a multiple eigenvalue.
    lifted = 2 * degrees.max() + 1
    vectors: Tensor = torch.linalg.eigh(degrees.diag() - symmetric + lifted / n).eigenvectors
    return vectors[:, 0]
