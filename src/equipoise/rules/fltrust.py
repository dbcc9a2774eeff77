"""FLTrust, without a server: every client trusts its own direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_flag
from equipoise.messages import Inbox
from equipoise.rules.base import Rule, as_diagnostic, uniform
from equipoise.types import Aggregated


@dataclass(frozen=True)
class FLTrust(Rule):
    r"""Received models that point the way of own are rescaled to the length of own and averaged by their cosine.

    .. math:: \mathrm{AGG}_i = \frac{\sum_j c_j \tilde w_j}{\sum_j c_j}, \qquad
              c_j = \max(0, \cos(w_i, w_j)), \qquad \tilde w_j = \frac{\|w_i\|}{\|w_j\|} w_j

    Cao et al., *FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping*, NDSS 2021, on models instead of
    updates and with own in the place of the server, as in section 6.1.2 of the BALANCE paper. That section says
    "averaging all normalized models", without weights; but then half of all random vectors are accepted in full, which
    does not fit the paper's results, so the weights of the original are the default.

    A zero message, or a zero own, has no direction: it is rejected, or rejects all. So is a message too short to be
    given the length of own, by a factor beyond 1e308, as float64 allows. ``weights`` are shares of the rescaled
    messages.

    Args:
        weighted: weigh by the cosine, as in FLTrust; otherwise take the plain mean, as in the paper's sentence.

    >>> received = torch.tensor([[4.0, 0.0], [0.0, 9.0], [-1.0, 0.0]])
    >>> out = eq.FLTrust()(torch.tensor([2.0, 0.0]), received)
    >>> out.model, out.weights
    (tensor([2., 0.]), tensor([1., 0., 0.]))
    """

    isotropic: ClassVar[bool] = True

    weighted: bool = True

    def __post_init__(self) -> None:
        check_flag("weighted", self.weighted)

    def aggregate(
        self, own: Tensor, inbox: Inbox, *, out: Tensor | None = None, state: Any = None, **_: Any
    ) -> Aggregated:
        """Share by cosine, rescale, sum."""
        cosines, sizes = kernels.cosines(own, inbox)
        longer = sizes[:, None] / inbox.lengths(cosines > 0)
        trust = cosines.clamp_min_(0).where(longer.isfinite(), 0.0)
        total = trust.sum(1, keepdim=True)
        shares = (trust / total).where(total > 0, 0.0) if self.weighted else uniform(trust > 0)
        coefficients = (shares * longer).where(shares > 0, 0.0)
        model = kernels.combine(own, (shares.sum(1) == 0).double(), inbox, coefficients, out=out)
        return Aggregated(model, as_diagnostic(shares, own), state)
