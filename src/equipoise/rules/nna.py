"""NNA: the mean of own and its nearest neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._gossip import finite_where_present, keep_broken, own_distances
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated
from equipoise.topology import Complete


@dataclass(frozen=True)
class NNA(WeightedRule):
    r"""Nearest neighbor averaging: the mean of own and all messages but the farthest.

    .. math:: \mathrm{AGG}_i = \frac{1}{|N_i| - f_i + 1}
              \Bigl(w_i + \sum_{j \in S_i} w_j\Bigr)

    where :math:`S_i` are the :math:`|N_i| - f_i` messages nearest to own. Farhadkhani et al.,
    *Robust Collaborative Learning with Linear Gradient Overhead*, ICML 2023. Equal distances are
    taken by ascending client id. The aggregate contains own: mix it with ``alpha=0``.

    The algorithm of that paper, **MoNNA**, is NNA after local training with momentum,
    :math:`m \leftarrow \beta m + (1 - \beta) g` and a step of length :math:`\gamma`. Momentum
    belongs to the trainer: ``LocalSGD(lr=gamma * (1 - beta), momentum=beta)`` takes the same steps,
    because torch accumulates :math:`g` without the factor :math:`1 - \beta`. Send models to the
    rule, and give `Simulator` one step per round.

    A lie of one of :math:`f_i` malicious neighbors counts only if it is at most as far from own as
    the farthest benign message. So the aggregate never moves farther than that, whatever they send.
    The theorem of the paper is about complete graphs of :math:`n \ge 11 f` clients, whose models it
    brings closer to each other.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call.
        strict: raise an error if :math:`2 f_i > |N_i|`, where malicious clients may outnumber the
            benign ones with own among them, instead of a warning.

    >>> received = torch.tensor([[1.0], [2.0], [90.0]])
    >>> out = eq.NNA(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([1.]), tensor([0.3333, 0.3333, 0.0000]))
    """

    guarantee: ClassVar[Complete] = Complete(11)
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("tolerated",)

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """Give own and the nearest messages equal weights."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, degrees // 2, degrees, strict=self.strict)
        distances, norms = own_distances(own, inbox)
        amount = (inbox.counts - f).clamp_min(0)
        # Rounding in a fast kernel must not decide which messages are taken.
        exact = kernels.exact_near_ranks(own, inbox, norms, distances, amount - 1)
        distances = finite_where_present(exact, inbox)
        taken = kernels.rank_with_ties(distances, inbox.senders) < amount[:, None]
        return keep_broken((taken & inbox.present).double() / (amount[:, None] + 1), norms)
