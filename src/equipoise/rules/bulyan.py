"""Bulyan: Krum selects messages one by one, and a trimmed mean combines them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import Rule, as_tolerated
from equipoise.types import Aggregated


@dataclass(frozen=True)
class Bulyan(Rule):
    r"""The mean of the values closest to the median of the models that Krum selects one by one.

    .. math:: \mathrm{AGG}_i[c] = \frac{1}{\beta} \sum_{j \in B_c} w_j[c], \qquad
              \theta = |N_i| - 2 f_i, \qquad \beta = \theta - 2 f_i

    where :math:`B_c` are the :math:`\beta` of the :math:`\theta` selected models whose values of
    coordinate c are closest to the median of the selected values. `Krum` selects a model,
    which then leaves the received ones; this repeats :math:`\theta` times. El Mhamdi, Guerraoui and
    Rouault, *The Hidden Vulnerability of Distributed Learning in Byzantium*, ICML 2018. As in
    `Krum`, own is not among the models.

    Krum counts the :math:`m - f_i - 2` nearest of the :math:`m` models that are left, at least one.
    Some public code computes the scores once, or never recomputes this number. Of two values
    equally far from the median, the smaller one counts. The guarantee requires
    :math:`|N_i| \ge 4 f_i + 3`. Beyond it, :math:`\theta` and :math:`\beta` are at least 1.

    The rule has no weights, since :math:`B_c` differs between coordinates. It discards most
    messages, so that benign clients with rare data hardly count.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`|N_i| < 4 f_i + 3`, instead of a warning.

    >>> received = torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.4], [0.5], [9.0]])
    >>> eq.Bulyan(tolerated=1)(torch.zeros(1), received).model
    tensor([0.2000])
    """

    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        tolerated: int | Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Select by Krum, then average around the median."""
        f = as_tolerated(self, tolerated, inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 3) // 4, degrees, strict=self.strict)
        theta = (inbox.counts - 2 * f).clamp_min(1)
        selected = kernels.krum_selection(own, inbox, f, theta, one_by_one=True)
        beta = (theta - 2 * f).clamp_min(1)
        model = kernels.mean_around_median(own, inbox, selected, beta, out=out)
        return Aggregated(model, None, state)
