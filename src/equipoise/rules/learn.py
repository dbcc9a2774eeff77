"""LEARN: agree on updates in several exchanges, then on models in one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise import kernels
from equipoise._utils.validation import check_choice, check_inputs, check_probability, describe
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import as_batch, as_tolerated, check_out, needed
from equipoise.rules.mixing import mix
from equipoise.rules.trimmed_mean import TrimmedMean
from equipoise.types import Aggregated, RoundInputs


@dataclass(frozen=True)
class LEARN:
    r"""Trimmed means of updates, :math:`\lceil \log_2(t + 1) \rceil` times, then one trimmed mean of models.

    .. math:: u_i^{(k)} = \mathrm{TrimMean}\{u_j^{(k-1)} : j \in N_i \cup \{i\}\}, \qquad
              w_i^{t+1/2} = w_i^t + u_i^{(K)}, \qquad
              \mathrm{AGG}_i = \mathrm{TrimMean}\{w_j^{t+1/2} : j \in N_i\}

    where :math:`u_i^{(0)}` is the change made by local training. El-Mhamdi et al., *Collaborative Learning in the
    Jungle (Decentralized, Byzantine, Heterogeneous, Asynchronous and Nonconvex Learning)*, NeurIPS 2021, as in
    section 6.1.2 of the BALANCE paper. Its :math:`\lceil \log_2 t \rceil` is undefined for the first round t = 0,
    hence the + 1.

    This rule talks several times a round, so it is not called but driven: see `equipoise.converse`, which also returns
    the :math:`w_i^{t+1/2}` that the aggregate is to be mixed with. At the call it needs ``t`` and ``update``,
    own minus the model before local training.

    Args:
        tolerated: the number of malicious neighbours to expect; can also be given at the call.
        own_update: whether the trimmed mean of updates is over the neighbours and own, ``"included"`` (as in the
            code of LEARN), over the neighbours only, ``"excluded"``, or that ``"mixed"`` with own by ``alpha``; the
            paper is silent. Included, own counts once, also in a graph with self-loops; in a call for one client,
            pass what others sent.
        alpha: share of own in ``"mixed"``.
        strict: raise where more is tolerated than the degree allows, instead of trimming less with a warning.

    >>> own, update = torch.tensor([1.0]), torch.tensor([0.5])
    >>> first, second = torch.tensor([[0.1], [0.4], [9.0]]), torch.tensor([[0.8], [0.9], [-9.0]])
    >>> replies = iter([first, second])
    >>> rule = eq.LEARN(tolerated=1)
    >>> mixed_with, out = eq.converse(rule, own, lambda sent: next(replies), t=1, update=update)
    >>> mixed_with, out.model
    (tensor([0.9500]), tensor([0.8000]))
    """

    tolerated: int | None = None
    own_update: Literal["included", "excluded", "mixed"] = "included"
    alpha: float = 0.5
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)
        check_choice("own_update", self.own_update, ("included", "excluded", "mixed"))
        check_probability("alpha", self.alpha)

    @torch.no_grad()
    def exchanges(self, own: Tensor, **inputs: Unpack[RoundInputs]) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield updates, then models; return the trimmed mean of the models."""
        check_inputs(type(self).__name__, inputs)
        t, update = needed(self, t=inputs.get("t"), update=inputs.get("update"))
        if not isinstance(update, Tensor) or update.shape != own.shape or update.dtype != own.dtype:
            raise ValueError(f"update must be like own, {describe(own)}, found {describe(update)}")
        check_out(inputs, own)
        agreed = update.detach()
        for _ in range(int(t).bit_length()):  # ceil(log2(t + 1)), in whole numbers
            agreed = self._agree(agreed, (yield agreed), inputs.get("tolerated"))
        model = own.detach() + (agreed - update.detach())
        if not model.sum().isfinite():  # what others said is too large to be added
            model = model.where(model.isfinite(), own.detach())
        model = _sendable(model, own.detach())
        rule = TrimmedMean(self.tolerated, self.strict)
        return rule(model, (yield model), **inputs)

    def sends_updates(self, exchange: int, t: int) -> bool:
        """Whether an exchange of round t, counted from 0, is one of updates; the last one is of models."""
        return exchange < int(t).bit_length()

    def _agree(self, update: Tensor, received: Tensor | Inbox, tolerated: int | Tensor | None) -> Tensor:
        """The next update of each client, shaped like the one it sent."""
        updates, inbox = as_batch(update, received)
        included = self.own_update == "included"
        if included and update.dim() == 2:
            inbox = _without_self_loops(inbox)
        f = as_tolerated(self, tolerated, self.tolerated, inbox)
        if self.strict:  # the last exchange, of models without own, is the first to be beyond its guarantee, and warns
            degrees = inbox.mask.sum(1)
            check_guarantee(f, (degrees + included - 1) // 2, degrees, strict=True)
        agreed = kernels.trimmed_mean(updates, inbox, f, include_own=included)
        if self.own_update == "mixed":
            agreed = mix(updates, agreed, self.alpha)
        agreed = _sendable(agreed, updates)
        finite = kernels.are_finite(updates)
        if included and not finite.all():  # who has no finite update to include has none to send either
            agreed[~finite] = torch.nan
        return agreed.view(update.shape)


def _without_self_loops(inbox: Inbox) -> Inbox:
    """The inbox without what clients sent to themselves; the receivers are the clients 0 to n - 1."""
    others = inbox.from_others
    return inbox if torch.equal(others, inbox.mask) else replace(inbox, mask=others)


def _sendable(vectors: Tensor, previous: Tensor) -> Tensor:
    """The vectors, but the previous one where a norm overflows: it could not be sent to anybody.

    Peers can cause this in float64 only, whose norms have no wider type to fit into: a trimmed mean
    takes its coordinates from different vectors, and can be longer than each of them.
    """
    if vectors.dtype != torch.float64:
        return vectors
    fits = kernels.are_finite(torch.atleast_2d(vectors))
    return vectors.where(fits.view(*vectors.shape[:-1], 1), previous)
