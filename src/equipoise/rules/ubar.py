"""UBAR: the nearest neighbours, if they do better on own data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_choice, describe
from equipoise.kernels import column_blocks
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated, needed, uniform

BUDGET = 1 << 21  # elements of candidate models that are copied at a time
FEW = 32  # if no more models fit, one is shown to all who received it instead of being copied for each

LossOf = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class UBAR(WeightedRule):
    r"""The mean of those of the nearest received models whose loss on own data is smaller than own loss.

    .. math:: \mathrm{AGG}_i = \frac{1}{|N_i^r|} \sum_{j \in N_i^r} w_j, \qquad
              N_i^r = \{j \in N_i^s : \ell_i(w_j) < \ell_i(w_i)\}

    where :math:`N_i^s` are the :math:`|N_i| - f_i` neighbours closest to own. Guo et al., *Byzantine-Resilient
    Decentralized Stochastic Gradient Descent*, 2021, as in section 6.1.2 of the BALANCE paper. Losses are taken at
    the call from ``loss_of``, all on the same examples of the receiver, which must not modify the models that it is
    given; a loss that is NaN is never accepted.

    Args:
        tolerated: the number :math:`f_i` of malicious neighbours to expect; can also be given at the call.
        empty: what to take when no loss is smaller, on which papers differ: ``"best"``, the nearest neighbour with the
            smallest loss (Guo et al.); ``"closest"``, the closest neighbour (code of He et al.); or ``"own"``.
        strict: raise if :math:`f_i \ge |N_i|`, where no message is taken, instead of warning.

    >>> loss_of = lambda models: models.square().sum(1)
    >>> received = torch.tensor([[0.5], [1.5], [-9.0]])
    >>> out = eq.UBAR(tolerated=1)(torch.ones(1), received, loss_of=loss_of)
    >>> out.model, out.weights
    (tensor([0.5000]), tensor([1., 0., 0.]))
    """

    tolerated: int | None = None
    empty: Literal["best", "closest", "own"] = "best"
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)
        check_choice("empty", self.empty, ("best", "closest", "own"))

    def weigh(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        loss_of: LossOf | None = None,
        tolerated: int | Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Equal weights for the messages that pass both stages."""
        (loss_of,) = needed(self, loss_of=loss_of)
        f = as_tolerated(self, tolerated, self.tolerated, inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, degrees - 1, degrees, strict=self.strict)
        apart, near = _nearest(own, inbox, f, closest=self.empty == "closest")
        losses, own_losses = _losses(own, inbox, near, loss_of)
        better = near & (losses < own_losses[:, None])
        if self.empty != "own":
            order = losses if self.empty == "best" else apart
            first = near & (_rank(order, inbox.senders) == 0) & order.isfinite()
            better |= first & ~better.any(1, keepdim=True)
        return uniform(better)


def _nearest(own: Tensor, inbox: Inbox, tolerated: Tensor, closest: bool) -> tuple[Tensor, Tensor]:
    """(n, k) distances, and which messages are among the nearest, all but so many, the lowest ids first.

    With ``closest``, distances also tell which message is the nearest of all.
    """
    apart, sizes = kernels.distances(own, inbox)
    amount = inbox.counts - tolerated
    if inbox.k:
        last = apart.sort(dim=1).values.gather(1, (amount - 1).clamp_min(0)[:, None])
        for around in (last[:, 0], *([apart.amin(1)] if closest else [])):
            apart = kernels.sharpened(own, inbox, sizes, apart, around)
    return apart, (_rank(apart, inbox.senders) < amount[:, None]) & inbox.present


def _rank(values: Tensor, senders: Tensor) -> Tensor:
    """(n, k) place of each value in its row, from 0; equal values are placed by sender, infinite ones last."""
    by_sender = senders.argsort(dim=1)
    by_value = values.gather(1, by_sender).argsort(dim=1, stable=True)
    return by_sender.gather(1, by_value).argsort(dim=1)


def _losses(own: Tensor, inbox: Inbox, near: Tensor, loss_of: LossOf) -> tuple[Tensor, Tensor]:
    """(n, k) losses of the near messages, infinite elsewhere and where NaN, and (n,) losses of own."""
    receivers, columns = near.nonzero(as_tuple=True)
    losses = torch.full(near.shape, torch.inf, dtype=torch.float64, device=own.device)
    found = _evaluate(loss_of, inbox.bank, inbox.slots[receivers, columns], receivers)
    losses[receivers, columns] = found.where(~found.isnan(), torch.inf)
    clients = receivers.unique()
    own_losses = torch.full((len(own),), torch.inf, dtype=torch.float64, device=own.device)
    own_losses[clients] = _evaluate(loss_of, own, clients, clients)
    return losses, own_losses


def _evaluate(loss_of: LossOf, models: Tensor, rows: Tensor, clients: Tensor) -> Tensor:
    """Losses of some rows on the data of some clients, several at a time."""
    losses = torch.empty(len(rows), dtype=torch.float64, device=models.device)
    for asked, candidates in _candidates(models, rows):
        found = loss_of(candidates, clients[asked])
        if not isinstance(found, Tensor) or found.shape != clients[asked].shape:
            raise ValueError(f"loss_of must return one loss per model, {len(candidates)}, found {describe(found)}")
        losses[asked] = found.detach().double()
    return losses


def _candidates(models: Tensor, rows: Tensor) -> Iterator[tuple[slice | Tensor, Tensor]]:
    """Which of the rows are judged together, and these models: views of them where that is as good as a copy."""
    fitting, counts = BUDGET // models.shape[1], rows.bincount()
    if fitting <= 3 or (fitting <= FEW and len(rows) > 2 * counts.count_nonzero()):
        for judges in rows.argsort(stable=True).split(counts[counts > 0].tolist()):
            yield judges, models[int(rows[judges[0]])].expand(len(judges), -1)
        return
    buffer = models.new_empty(0, models.shape[1])
    for asked in column_blocks(len(rows), fitting):
        chosen = rows[asked]
        some = models[int(chosen[0]) :][: len(chosen)]
        if len(some) < len(chosen) or (chosen.diff() != 1).any():
            some = torch.index_select(models, 0, chosen, out=buffer.resize_(len(chosen), models.shape[1]))
        yield asked, some
