"""LEARN: agree on updates in several exchanges, then on models in one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise import kernels
from equipoise._utils.validation import check_choice, check_inputs, check_probability, describe
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import as_batch, as_tolerated, check_given, check_out
from equipoise.rules.mixing import mix
from equipoise.rules.trimmed_mean import TrimmedMean
from equipoise.topology import NotChecked
from equipoise.types import Aggregated, RoundInputs


@dataclass(frozen=True)
class LEARN:
    r"""Trimmed means of updates, :math:`\lceil \log_2(t + 1) \rceil` times, then one of models.

    .. math:: u_i^{(k)} = \mathrm{TrimMean}\{u_j^{(k-1)} : j \in N_i \cup \{i\}\}, \qquad
              w_i^{t+1/2} = w_i^t + u_i^{(K)},

    .. math:: \mathrm{AGG}_i = \mathrm{TrimMean}\{w_j^{t+1/2} : j \in N_i\}

    where :math:`u_i^{(0)}` is the change made by local training. El-Mhamdi et al., *Collaborative
    Learning in the Jungle (Decentralized, Byzantine, Heterogeneous, Asynchronous and Nonconvex
    Learning)*, NeurIPS 2021, as in section 6.1.2 of the BALANCE paper. Its
    :math:`\lceil \log_2 t \rceil` is undefined for the first round t = 0, hence the + 1.

    The rule uses several exchanges a round. Run it with `equipoise.run_exchanges`, which also
    returns the :math:`w_i^{t+1/2}` to mix the aggregate with. It needs ``t`` and ``update``, own
    minus the model before local training.

    Args:
        tolerated: the number of malicious neighbors to expect. You can also pass it at the call.
        own_update: the updates in a trimmed mean, which the paper does not define:
            ``"included"``, those of the neighbors and own, as in the code of LEARN; ``"excluded"``,
            only those of the neighbors; ``"mixed"``, their trimmed mean mixed with own by
            ``alpha``. Included, own counts once, also in a graph with self-loops. In a call for one
            client, pass only messages from others.
        alpha: share of own in ``"mixed"``.
        strict: raise an error where ``tolerated`` exceeds the guarantee for the degree, instead of
            trimming less with a warning.

    >>> own, update = torch.tensor([1.0]), torch.tensor([0.5])
    >>> updates = torch.tensor([[0.1], [0.4], [9.0]])
    >>> models = torch.tensor([[0.8], [0.9], [-9.0]])
    >>> replies = iter([updates, models])
    >>> exchange = lambda sent: next(replies)
    >>> rule = eq.LEARN(tolerated=1)
    >>> mixed_with, out = eq.run_exchanges(rule, own, exchange, t=1, update=update)
    >>> mixed_with, out.model
    (tensor([0.9500]), tensor([0.8000]))
    """

    guarantee: ClassVar[NotChecked] = NotChecked(
        "its theorem needs a complete graph and reliable broadcast"
    )
    contains_own: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("t", "update", "tolerated")

    tolerated: int | None = None
    own_update: Literal["included", "excluded", "mixed"] = "included"
    alpha: float = 0.5
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)
        check_choice("own_update", self.own_update, ("included", "excluded", "mixed"))
        check_probability("alpha", self.alpha)

    @torch.no_grad()
    def exchanges(
        self, own: Tensor, **inputs: Unpack[RoundInputs]
    ) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield updates, then models; return the trimmed mean of the models."""
        check_inputs(type(self).__name__, inputs)
        check_given(self, inputs)
        update = inputs["update"]
        # A wrong update would be added to own silently, by broadcasting.
        if not isinstance(update, Tensor) or (update.shape, update.dtype) != (own.shape, own.dtype):
            raise ValueError(f"update must be like own, {describe(own)}, found {describe(update)}")
        # Checked before the first exchange: an error after it would waste the messages of a round.
        check_out(inputs, own)
        own = own.detach()
        update = update.detach()
        agreed = update
        for _ in range(_update_exchanges(inputs["t"])):
            agreed = self._agree(agreed, (yield agreed), inputs.get("tolerated"))
        # own already contains the update of local training: replace it by the agreed one.
        model = own + (agreed - update)
        model = kernels.undo_infinite_values(model, own)
        model = kernels.undo_infinite_norms(model, own)
        # The last exchange excludes own, which the caller mixes in afterwards.
        rule = TrimmedMean(self.tolerated, self.strict)
        return rule(model, (yield model), **inputs)

    def sends_updates(self, exchange: int, t: int) -> bool:
        """Whether an exchange of round t, counted from 0, carries updates; the last has models."""
        return exchange < _update_exchanges(t)

    def _agree(
        self, update: Tensor, received: Tensor | Inbox, tolerated: int | Tensor | None
    ) -> Tensor:
        """The next update of each client, in the shape of the one that it sent."""
        updates, inbox = as_batch(update, received)
        included = self.own_update == "included"
        # N_i and {i} are united as sets, so own must not count twice. One client alone does not
        # know its id, so its caller leaves its own message out.
        if included and update.dim() == 2:
            inbox = _without_self_loops(inbox)
        f = as_tolerated(self, tolerated, inbox)
        # Only strict is checked here. The last exchange, of models without own, exceeds its
        # guarantee first, and gives the one warning.
        if self.strict:
            degrees = inbox.mask.sum(1)
            check_guarantee(f, (degrees + included - 1) // 2, degrees, strict=True)
        agreed = kernels.trimmed_mean(updates, inbox, f, include_own=included)
        if self.own_update == "mixed":
            agreed = mix(updates, agreed, self.alpha)
        agreed = kernels.undo_infinite_norms(agreed, updates)
        finite = kernels.are_finite(updates)
        if included and not finite.all():
            # A client without a finite update to include has none to send either.
            agreed[~finite] = torch.nan
        return agreed.view(update.shape)


def _update_exchanges(t: int) -> int:
    """The number of exchanges of updates: ceil(log2(t + 1)), in integer arithmetic."""
    return int(t).bit_length()


def _without_self_loops(inbox: Inbox) -> Inbox:
    """The inbox without the messages of clients to themselves; receivers are clients 0 to n - 1."""
    others = inbox.from_others
    return inbox if torch.equal(others, inbox.mask) else replace(inbox, mask=others)
