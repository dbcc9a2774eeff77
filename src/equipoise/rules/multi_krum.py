"""Multi-Krum: the mean of the received models that are closest to their nearest neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_count
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated, uniform


@dataclass(frozen=True)
class MultiKrum(WeightedRule):
    r"""The mean of the :math:`m` received models with the lowest Krum scores.

    .. math:: \mathrm{AGG}_i = \frac{1}{m} \sum_{j \in M_i} w_j, \qquad
              s(j) = \sum_{l \in \text{nearest}_q(j)} \|w_j - w_l\|^2, \qquad q = |N_i| - f_i - 2

    where :math:`M_i` are the :math:`m` neighbors with the lowest :math:`s`. Blanchard et al.,
    *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, NeurIPS 2017. As in
    `Krum`, own is neither a candidate nor a neighbor, :math:`q` is at least 1, the guarantee
    requires :math:`|N_i| \ge 2 f_i + 3`, and equal scores go to the lowest client id. With
    ``selected=1`` the rule is `Krum`.

    The paper leaves :math:`m` open; :math:`|N_i| - f_i` is the choice of Farhadkhani et al.,
    *Byzantine Machine Learning Made Easy by Resilient Averaging of Momentums*, ICML 2022. The
    package byzfl counts :math:`|N_i| - f_i - 1` nearest models instead of the paper's
    :math:`|N_i| - f_i - 2`.

    Malicious models that agree with each other, or lie between benign ones, are selected like
    benign models.

    Args:
        selected: :math:`m`, at most the number of messages; by default :math:`|N_i| - f_i`.
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`|N_i| < 2 f_i + 3`, instead of a warning.

    >>> received = torch.tensor([[0.0], [0.1], [0.3], [0.6], [9.0]])
    >>> out = eq.MultiKrum(selected=2, tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([0.0500]), tensor([0.5000, 0.5000, 0.0000, 0.0000, 0.0000]))
    """

    isotropic: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    selected: int | None = None
    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.selected is not None:
            check_count("selected", self.selected, 1)
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give the selected messages equal weights."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 3) // 2, degrees, strict=self.strict)
        if self.selected is None:
            amount = (inbox.counts - f).clamp_min(1)
        else:
            amount = inbox.counts.clamp_max(self.selected)
        return uniform(kernels.krum_selection(own, inbox, f, amount))
