"""Self-centred clipping: what lies too far from own is pulled to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice, check_number, is_number
from equipoise.messages import Inbox
from equipoise.rules.base import Rule, as_diagnostic, own_share, uniform
from equipoise.types import Aggregated


@dataclass(frozen=True)
class SCClip(Rule):
    r"""The mean of the received models after each was clipped to a ball around own.

    .. math:: \mathrm{AGG}_i = \frac{1}{|N_i|} \sum_{j \in N_i} z_j, \qquad
              z_j = w_i + \min\Bigl(1, \frac{\tau}{\|w_j - w_i\|}\Bigr) (w_j - w_i)

    He et al., *Byzantine-Robust Decentralized Learning via ClippedGossip*, 2022. Section 2.3 of the BALANCE paper
    describes another clipping, :math:`z_j = \min(1, \|w_i\| / \|w_j\|) w_j`, which collapses under Gaussian noise
    where that paper's table does not; it is ``mode="norm"``.

    Args:
        tau: the radius; or ``"median"`` or ``"second_largest"`` of each client's distances to its messages, which
            adapt to the scale (He et al. use the second largest in code; of a single message, its distance).
        mode: ``"difference"`` clips :math:`w_j - w_i`, ``"norm"`` clips :math:`w_j` to the length of own.

    With ``mode="norm"``, ``weights`` are shares of the clipped messages.

    >>> received = torch.tensor([[0.5, 0.0], [0.0, 10.0]])
    >>> out = eq.SCClip(tau=1.0)(torch.zeros(2), received)
    >>> out.model, out.weights
    (tensor([0.2500, 0.5000]), tensor([0.5000, 0.0500]))
    """

    isotropic: ClassVar[bool] = True

    tau: float | Literal["median", "second_largest"] = 1.0
    mode: Literal["difference", "norm"] = "difference"

    def __post_init__(self) -> None:
        if is_number(self.tau):
            check_number("tau", self.tau)
        elif not isinstance(self.tau, str) or self.tau not in ("median", "second_largest"):
            raise ValueError(f"tau must be a number >= 0, 'median' or 'second_largest', found {self.tau!r}")
        check_choice("mode", self.mode, ("difference", "norm"))

    def aggregate(
        self, own: Tensor, inbox: Inbox, *, out: Tensor | None = None, state: Any = None, **_: Any
    ) -> Aggregated:
        """Clip, then average."""
        if self.mode == "norm":
            sizes = kernels.norms_of(own, inbox)
            shares = uniform(inbox.present & sizes.isfinite()[:, None])
            weights = shares * _kept(sizes[:, None], inbox.lengths(inbox.present))
        else:
            apart, sizes = kernels.distances(own, inbox)
            # The distance of two models at opposite ends of float64 overflows, and is still one.
            apart.clamp_max_(torch.finfo(torch.float64).max)
            shares = uniform(inbox.present & sizes.isfinite()[:, None])
            weights = shares = shares * _kept(self._radius(apart, inbox), apart)
        model = kernels.combine(own, own_share(shares), inbox, weights, out=out)
        return Aggregated(model, as_diagnostic(shares, own), state)

    def _radius(self, apart: Tensor, inbox: Inbox) -> Tensor:
        """(n, 1) the clipping radius of each client."""
        if not isinstance(self.tau, str):
            return torch.full((inbox.n, 1), float(self.tau), dtype=torch.float64, device=apart.device)
        if inbox.k == 0:
            return apart.new_zeros(inbox.n, 1)
        ordered, last = apart.sort(dim=1).values, (inbox.counts - 1).clamp_min(0)
        if self.tau == "second_largest":
            return ordered.gather(1, (last - 1).clamp_min(0)[:, None])
        low, high = (ordered.gather(1, middle[:, None]) for middle in (last // 2, (last + 1) // 2))
        return low / 2 + high / 2  # their sum may overflow


def _kept(limit: Tensor, size: Tensor) -> Tensor:
    """``min(1, limit / size)``: all of a message that is within the limit, nothing of one that is not finite."""
    return (limit / size).clamp_max(1).where(size > limit, 1.0).where(size.isfinite() & limit.isfinite(), 0.0)
