"""FLTrust without a server: each client trusts the direction of its own model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_flag
from equipoise.messages import Inbox
from equipoise.rules.base import Rule, as_diagnostic, uniform
from equipoise.topology import NoTheorem
from equipoise.types import Aggregated


@dataclass(frozen=True)
class FLTrust(Rule):
    r"""The mean of the received models, rescaled to the norm of own and weighted by their cosine.

    .. math:: \mathrm{AGG}_i = \frac{\sum_j c_j \tilde w_j}{\sum_j c_j}, \qquad
              c_j = \max(0, \cos(w_i, w_j)), \qquad \tilde w_j = \frac{\|w_i\|}{\|w_j\|} w_j

    Cao et al., *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*, NDSS 2021,
    applied to models instead of updates, with own in place of the server, as in section 6.1.2 of
    the BALANCE paper. That section says "averaging all normalized models", without weights. But
    without weights half of all random vectors are accepted in full, which contradicts the results
    of the paper. So the weights of the original are the default.

    A zero vector has no direction: a zero message is rejected, and a zero own rejects all messages.
    A message is also rejected if it is too short to be rescaled, by a factor beyond 1e308 in
    float64. ``weights`` are shares of the rescaled messages.

    Args:
        weighted: weigh by the cosine, as in FLTrust. Otherwise take the plain mean, as in the
            sentence of the BALANCE paper.

    >>> received = torch.tensor([[4.0, 0.0], [0.0, 9.0], [-1.0, 0.0]])
    >>> out = eq.FLTrust()(torch.tensor([2.0, 0.0]), received)
    >>> out.model, out.weights
    (tensor([2., 0.]), tensor([1., 0., 0.]))
    """

    guarantee: ClassVar[NoTheorem] = NoTheorem("its theorem is about a server with clean data")
    isotropic: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()

    weighted: bool = True

    def __post_init__(self) -> None:
        check_flag("weighted", self.weighted)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Rescale, then average by the cosine."""
        cosines, norms = kernels.cosines(own, inbox)
        # Only messages with a positive cosine count, so only their norms matter here.
        scales = norms[:, None] / inbox.lengths(cosines > 0)
        # c_j = max(0, cos(w_i, w_j)); 0 also where the scale ||w_i|| / ||w_j|| overflows.
        trust = cosines.clamp_min_(0).where(scales.isfinite(), 0.0)
        if self.weighted:
            total = kernels.row_sums(trust)[:, None]
            shares = (trust / total).where(total > 0, 0.0)
        else:
            shares = uniform(trust > 0)
        weights = (shares * scales).where(shares > 0, 0.0)  # 0 * inf would be NaN
        # Weights of rescaled messages need not sum to 1, so own does not get the remainder.
        share_of_own = (shares.sum(1) == 0).double()
        # The kernel multiplies messages by share times scale, so no rescaled copy is made.
        model = kernels.combine(own, share_of_own, inbox, weights, out=out)
        return Aggregated(model, as_diagnostic(shares, own), state)
