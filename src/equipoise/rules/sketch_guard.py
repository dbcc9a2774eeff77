"""SketchGuard: BALANCE decides by short sketches, and only accepted models are sent."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise import kernels
from equipoise._utils.validation import check_count, check_inputs, check_number
from equipoise.messages import Inbox
from equipoise.rules.balance import Balance
from equipoise.rules.base import (
    as_batch,
    as_diagnostic,
    check_given,
    check_out,
    own_share,
    uniform,
)
from equipoise.topology import NotChecked
from equipoise.types import Aggregated, RoundInputs

# A sketch is rounded once to the dtype of the models. Other devices add in another order, in
# float64, which can change that rounding by a unit of each value.
ROUNDED = 4

# Elements of a temporary: 8 MiB of float64.
COMPARED = 1 << 20


@dataclass(frozen=True)
class SketchGuard:
    r"""BALANCE on sketches: the mean of the models whose sketches are close to that of own.

    .. math:: S(w)_m = \sum_{p : h(p) = m} \mathrm{sign}(p)\, w[p], \qquad
              S_i = \{j \in N_i : \|S(w_j) - S(w_i)\|
              \le \gamma \, e^{-\kappa t / T} \, \|S(w_i)\|\}

    *SketchGuard: Scaling Byzantine-Robust Decentralized Federated Learning via Sketch-Based
    Screening*, 2025 (arXiv 2510.07922). In the first exchange, clients send sketches of ``size``
    numbers. In the second one, they fetch the models of :math:`S_i`, compute the sketches again,
    and drop models that do not match theirs. The aggregate is the mean of the others, or own if
    there is none. A client sends ``size * |N| + d * |accepted|`` values, as a `Simulator` counts; a
    `Peer` sends its model to all neighbors, also to those that do not want it.

    All clients know ``seed``, from which bucket :math:`h(p)` and sign of each parameter are drawn.
    Buckets are equally large here: :math:`h` is a random permutation modulo ``size``. With
    ``size`` = d the rule accepts the same models as `Balance`.

    The acceptance of a model is bounded by its sketch only. An attacker who knows ``seed`` adds a
    vector with a sketch of 0, of any length, and is accepted. Keep ``seed`` secret from
    all but the clients; against malicious clients, this does not help.

    The rule uses two exchanges a round. Run it with `equipoise.run_exchanges`.

    Args:
        gamma: upper limit of the relative distance of sketches.
        kappa: how fast the limit falls.
        size: the length of a sketch, at most d.
        seed: of the buckets and signs.

    >>> own = torch.tensor([3.0, 4.0])
    >>> models = torch.tensor([[3.0, 5.0], [30.0, 40.0], [3.0, 4.5]])
    >>> rule = eq.SketchGuard(kappa=0.0, size=2)
    >>> sketches = rule.as_sent(0, models)
    >>> sketches[2] = 9.0  # does not match the model
    >>> replies = iter([sketches, models])
    >>> mixed_with, out = eq.run_exchanges(rule, own, lambda sent: next(replies))
    >>> out.weights
    tensor([1., 0., 0.])
    """

    contains_own: ClassVar[bool] = False
    guarantee: ClassVar[NotChecked] = NotChecked("lies with a sketch of 0 are accepted")

    gamma: float = 0.3
    kappa: float = 1.0
    size: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma)
        check_number("kappa", self.kappa)
        check_count("size", self.size, 1)
        check_count("seed", self.seed, 0)

    @property
    def needs(self) -> tuple[str, ...]:
        """The round, unless the limit is constant."""
        return ("t", "total") if self.kappa > 0 else ()

    def as_sent(self, exchange: int, models: Tensor) -> Tensor:
        """What clients with these models (m, d) send in an exchange: sketches, then models."""
        if exchange > 0:
            return models
        return kernels.count_sketch(models, min(self.size, models.shape[1]), self.seed)

    @torch.no_grad()
    def fetches(self, sketch: Tensor, received: Tensor | Inbox, **inputs: Any) -> Tensor:
        """(n, k) whose models the receivers of sketches fetch in the second exchange."""
        mine, sketches = as_batch(sketch, received)
        return self._fetched(mine, sketches, inputs)

    def _fetched(self, sketch: Tensor, sketches: Inbox, inputs: Any) -> Tensor:
        rule = Balance(gamma=self.gamma, kappa=self.kappa)
        return rule.weigh(sketch, sketches, **inputs) > 0

    @torch.no_grad()
    def exchanges(
        self, own: Tensor, **inputs: Unpack[RoundInputs]
    ) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield sketches, then models; return the mean of the accepted models."""
        check_inputs(type(self).__name__, inputs)
        check_given(self, inputs)
        # Checked before the first exchange: an error after it would waste the messages of a round.
        check_out(inputs, own)
        own = own.detach()
        sketch = self.as_sent(0, torch.atleast_2d(own)).view(*own.shape[:-1], -1)
        mine, sketches = as_batch(sketch, (yield sketch))
        fetched = self._fetched(mine, sketches, inputs)
        models, inbox = as_batch(own, (yield own))
        accepted = self._matching(inbox, sketches, fetched)
        weights = uniform(accepted)
        out = inputs.get("out")
        target = None if out is None else torch.atleast_2d(out)
        if out is not None:
            torch.autograd.graph.increment_version(out)
        model = kernels.combine(models, own_share(weights), inbox, weights, out=target)
        found = as_diagnostic(weights, own)
        state = inputs.get("state")
        if own.dim() == 2:
            return Aggregated(model, found, state)
        return Aggregated(model[0], found[0], state)

    def _matching(self, inbox: Inbox, sketches: Inbox, fetched: Tensor) -> Tensor:
        """(n, k) fetched models that are present and match the sketches of their senders."""
        place, known = _same_senders(inbox, sketches, fetched)
        accepted = inbox.present & known
        receivers, columns = accepted.nonzero(as_tuple=True)
        if not len(receivers):
            return accepted
        rows = inbox.slots[receivers, columns]
        claims = sketches.slots[receivers, place[receivers, columns]]
        # A broadcast is checked once for all receivers.
        pairs, which = torch.stack([rows, claims], 1).unique(dim=0, return_inverse=True)
        used, index = pairs[:, 0].unique(return_inverse=True)
        fits = torch.zeros(len(pairs), dtype=torch.bool, device=rows.device)
        found = torch.cat(
            [
                self.as_sent(0, inbox.bank[used[some]])
                for some in kernels.chunks(len(used), inbox.d, 1 << 24)
            ]
        )
        for some in kernels.chunks(len(pairs), found.shape[1], COMPARED):
            computed = found[index[some]].double()
            apart = (computed - sketches.bank[pairs[some, 1]].double()).norm(dim=1)
            rounding = ROUNDED * torch.finfo(inbox.bank.dtype).eps
            fits[some] = apart <= rounding * computed.norm(dim=1)
        accepted[receivers, columns] = fits[which]
        return accepted


def _same_senders(inbox: Inbox, sketches: Inbox, fetched: Tensor) -> tuple[Tensor, Tensor]:
    """(n, k) the slot of the fetched sketch of each model's sender, and whether there is one."""
    if inbox.senders.equal(sketches.senders):
        return torch.arange(inbox.k, device=fetched.device).expand(inbox.n, -1), fetched
    place = torch.zeros_like(inbox.slots)
    known = torch.zeros_like(inbox.mask)
    if not inbox.k or not sketches.k:
        return place, known
    for some in kernels.chunks(inbox.n, inbox.k * sketches.k, COMPARED):
        same = inbox.senders[some, :, None] == sketches.senders[some, None, :]
        same &= fetched[some, None, :]
        known[some] = same.any(2)
        place[some] = same.to(torch.uint8).argmax(2)
    return place, known
