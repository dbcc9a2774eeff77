"""BRIDGE: a robust rule for own and the messages together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import Rule, as_diagnostic, as_tolerated, own_share
from equipoise.topology import Guarantee, Neighbors, Trimming
from equipoise.types import Aggregated

GUARANTEES: dict[str, Guarantee] = {
    "T": Trimming(),
    "M": Neighbors(2, 1, own_counts=True),
    "K": Neighbors(2, 3, own_counts=True),
    "B": Neighbors(4, 3, own_counts=True),
}


@dataclass(frozen=True)
class Bridge(Rule):
    r"""BRIDGE: screen own and the received models by a trimmed mean, a median, Krum or Bulyan.

    .. math::
        \text{T: } \mathrm{AGG}_i[c] &= \frac{1}{|N_i| - 2 f_i + 1}
        \Bigl(w_i[c] + \sum_{r=f_i+1}^{|N_i|-f_i} w_{(r)}[c]\Bigr) \\
        \text{M: } \mathrm{AGG}_i[c] &= \mathrm{med}\{w_j[c] : j \in N_i \cup \{i\}\} \\
        \text{K: } \mathrm{AGG}_i &= \mathrm{Krum}\{w_j : j \in N_i \cup \{i\}\} \\
        \text{B: } \mathrm{AGG}_i &= \mathrm{Bulyan}\{w_j : j \in N_i \cup \{i\}\}

    where :math:`w_{(r)}[c]` is the r-th smallest received value of coordinate c. Fang, Yang and
    Bajwa, *BRIDGE: Byzantine-Resilient Decentralized Gradient Descent*, IEEE Transactions on Signal
    and Information Processing over Networks, 2022. The paper takes the gradient step after
    screening, at the model from before it; here local training comes first, as for all rules. The
    aggregate contains own: mix it with ``alpha=0``.

    `Krum` and ``Bulyan`` choose among :math:`|N_i| + 1` models. Equal scores go to own, then to the
    lowest client id. Beyond the guarantee, numbers are clamped as in `TrimmedMean`, `Krum` and
    ``Bulyan``. The theorems of the paper are about T; those of the median, `Krum` and ``Bulyan``
    bound the other aggregates.

    Args:
        variant: ``"T"``, ``"M"``, ``"K"`` or ``"B"``, as above.
        tolerated: the number :math:`f_i` of malicious neighbors to expect. You can also pass it at
            the call. The median needs none.
        strict: raise an error if :math:`|N_i| < 2 f_i + 1` for T, :math:`|N_i| < 2 f_i + 2` for K
            or :math:`|N_i| < 4 f_i + 2` for B, instead of a warning.

    >>> received = torch.tensor([[1.0], [2.0], [3.0], [90.0]])
    >>> own = torch.zeros(1)
    >>> eq.Bridge(tolerated=1)(own, received).model
    tensor([1.6667])
    >>> eq.Bridge("M")(own, received).model
    tensor([2.])
    >>> out = eq.Bridge("K", tolerated=1)(own, received)
    >>> out.model, out.weights
    (tensor([1.]), tensor([1., 0., 0., 0.]))
    """

    contains_own: ClassVar[bool] = True

    variant: Literal["T", "M", "K", "B"] = "T"
    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, ("T", "M", "K", "B"))
        check_tolerance(self.tolerated, self.strict)

    @property
    def guarantee(self) -> Guarantee:  # type: ignore[override]
        """That of the paper for T, and of the rule behind the variant, with own, for the others."""
        return GUARANTEES[self.variant]

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of malicious neighbors, except for a median."""
        return () if self.variant == "M" else ("tolerated",)

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
        """Screen, and average what is left."""
        if self.variant == "M":
            return Aggregated(_median(own, inbox, out), None, state)
        f = as_tolerated(self, tolerated, inbox)
        degrees = inbox.mask.sum(1)
        if self.variant == "T":
            check_guarantee(f, (degrees - 1) // 2, degrees, strict=self.strict)
            return Aggregated(_trimmed_mean(own, inbox, f, out), None, state)
        if self.variant == "B":
            check_guarantee(f, (degrees - 2) // 4, degrees, strict=self.strict)
            return Aggregated(_bulyan(own, inbox, f, out), None, state)
        check_guarantee(f, (degrees - 2) // 2, degrees, strict=self.strict)
        weights = _krum(own, inbox, f)
        model = kernels.combine(own, own_share(weights), inbox, weights, out=out)
        return Aggregated(model, as_diagnostic(weights, own), state)


def _trimmed_mean(own: Tensor, inbox: Inbox, f: Tensor, out: Tensor | None) -> Tensor:
    """The mean of own and the values that a trimmed mean of the messages keeps."""
    model = kernels.trimmed_mean(own, inbox, f, out=out)
    # As many values as the kernel keeps: one or two if f is too large.
    counts = inbox.counts
    kept = (counts - 2 * torch.minimum(f, (counts - 1) // 2)).where(counts > 0, 0)
    # Without messages, the model is own already, and has the share 1.
    return kernels.interpolate(own, model, 1 / (kept + 1).double()[:, None], out=model)[0]


def _median(own: Tensor, inbox: Inbox, out: Tensor | None) -> Tensor:
    """The median of own and the messages; own where it is not finite."""
    trim = torch.full((inbox.n,), inbox.k + 1, device=own.device)
    model = kernels.trimmed_mean(own, inbox, trim, include_own=True, out=out)
    broken = (~kernels.are_finite(own)).nonzero().flatten()
    model[broken] = own[broken]
    return model


def _krum(own: Tensor, inbox: Inbox, f: Tensor) -> Tensor:
    """(n, k) 1 for the message with the lowest score; 0 for all if own has it."""
    # A column for own, behind the others.
    chosen = torch.zeros(inbox.n, inbox.k + 1, dtype=torch.float64, device=own.device)
    senders = torch.cat([inbox.senders, torch.full_like(inbox.senders[:, :1], -1)], 1)
    for group, scores in kernels.nearest_sums(own, inbox, excluded=f + 2, include_own=True):
        is_lowest = scores == scores.amin(1, keepdim=True)
        theirs = senders[group.receivers[:, None], group.columns]
        first = theirs.where(is_lowest, torch.iinfo(torch.int64).max).argmin(1)
        chosen[group.receivers, group.columns.gather(1, first[:, None])[:, 0]] = 1
    return chosen[:, :-1]


def _bulyan(own: Tensor, inbox: Inbox, f: Tensor, out: Tensor | None) -> Tensor:
    """The mean around the median of the models that Krum selects one by one."""
    theta = (inbox.counts + 1 - 2 * f).clamp_min(1)
    selected = kernels.krum_selection(own, inbox, f, theta, one_by_one=True, include_own=True)
    beta = (theta - 2 * f).clamp_min(1)
    return kernels.mean_around_median(own, inbox, selected, beta, include_own=True, out=out)
