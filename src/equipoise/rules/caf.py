"""CAF: messages lose weight along the direction in which all of them vary most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated

# A weight that falls below this share of itself is rounding: its message has the largest tau, or
# the same one as another message.
ROUNDING = 1e-12

# Squared distances are cut off here, so that sums of them are finite.
LARGEST_SQUARE = 1e290


@dataclass(frozen=True)
class CAF(WeightedRule):
    r"""The weighted mean with the least variance, while outlying messages lose weight.

    All weights :math:`c_j` start at 1. While :math:`\sum_j c_j > |N_i| - 2 f_i`:

    .. math:: \mu = \frac{\sum_j c_j w_j}{\sum_j c_j}, \qquad
              c_j \leftarrow c_j \Bigl(1 - \frac{\tau_j}{\max_l \tau_l}\Bigr), \qquad
              \tau_j = \langle w_j - \mu, v \rangle^2

    where :math:`v` is the eigenvector of the largest eigenvalue :math:`\lambda` of the weighted
    covariance. The aggregate is the :math:`\mu` with the least :math:`\lambda`. Allouah, Guerraoui
    and Stephan, *Towards Trustworthy Federated Learning with Untrusted Participants*, ICML 2025,
    called covariance bound agnostic filter there. The eigenvector is exact, from the products of
    all pairs of messages. The package byzfl approximates it by one step of a power iteration from a
    random vector, so that its results vary. With :math:`f_i = 0` the aggregate is the mean. Here
    :math:`f_i` is at most :math:`\lfloor (|N_i| - 1) / 2 \rfloor`. Own is not among the models.

    Lies within the usual spread of benign models keep their weight.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i \ge |N_i|`, instead of clamping with a warning.

    >>> received = torch.tensor([[0.0], [1.0], [2.0], [100.0]])
    >>> out = eq.CAF(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.0067]), tensor([0.3299, 0.3334, 0.3367, 0.0000]))
    """

    isotropic: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """The weights of the mean with the least variance."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=self.strict)
        weights = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
        # The eigenvector of nearly equal eigenvalues amplifies errors of distances.
        for group, squares in kernels.exact_distances(inbox):
            count = squares.shape[1]
            allowed = f[group.receivers].clamp_max((count - 1) // 2)
            found = _filtered(squares.clamp_max(LARGEST_SQUARE), allowed)
            weights[group.receivers[:, None], group.columns] = found
        return weights


def _filtered(squares: Tensor, tolerated: Tensor) -> Tensor:
    """(r, c) weights that sum to 1, from squared distances (r, c, c)."""
    receivers, count = squares.shape[:2]
    c = squares.new_ones(receivers, count)
    best = c / count
    least = squares.new_full((receivers,), torch.inf)
    # Each step takes all weight from one message at least, so that count steps are enough.
    for _ in range(count):
        left = (kernels.row_sums(c) > count - 2 * tolerated + ROUNDING * count).nonzero().flatten()
        if not len(left):
            break
        shares = c[left] / kernels.row_sums(c[left])[:, None]
        variance, tau = _variation(squares[left], shares)
        better = variance < least[left]
        best[left[better]] = shares[better]
        least[left[better]] = variance[better]
        largest = tau.amax(1, keepdim=True)
        lost = (tau / largest).where(largest > 0, 1.0)
        kept = 1 - lost
        c[left] = (c[left] * kept).where(kept > ROUNDING, 0.0)
    return best


def _variation(squares: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(r,) the largest eigenvalue of each weighted covariance, and (r, c) tau along its vector."""
    # <w_j - mu, w_l - mu> = (e_j + e_l - d_jl - <e>) / 2, where d are squared distances, and e_j
    # is the weighted mean of d_jl over l.
    mean = (squares * shares[:, None, :]).sum(2)
    total = (mean * shares).sum(1)
    products = (mean[:, :, None] + mean[:, None, :] - squares - total[:, None, None]) / 2
    # The Gram matrix of sqrt(share) * (w - mu) has the eigenvalues of the covariance.
    roots = shares.sqrt()
    gram = products * roots[:, :, None] * roots[:, None, :]
    values, vectors = _eigenvectors(gram)
    # <w_j - mu, v> = sqrt(eigenvalue) * u_j / root_j for the eigenvector u of the Gram matrix.
    along = (vectors[:, :, -1] / roots).where(roots > 0, 0.0)
    return values[:, -1], along.square()


def _eigenvectors(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (r, c) in ascending order, and eigenvectors (r, c, c), of positive matrices."""
    count = matrices.shape[1]
    # The last bits of LAPACK depend on the place of a matrix in a vector register. Each matrix
    # starts at one if its rows are filled up with zeros, whose eigenvalues are the smallest.
    missing = -count % 8
    values, vectors = torch.linalg.eigh(pad(matrices, (0, missing, 0, missing)))
    return values[:, missing:], vectors[:, :count, missing:]
