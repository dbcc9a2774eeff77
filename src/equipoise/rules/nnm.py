"""NNM: each message becomes the mean of its nearest messages before a rule aggregates them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.kernels import Group
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules._wrapper import (
    Changed,
    Wrapper,
    check_wrapped,
    in_order,
    tolerated_of_both,
)
from equipoise.rules.aggregator import Aggregator
from equipoise.rules.base import as_tolerated


@dataclass(frozen=True)
class NNM(Wrapper):
    r"""Nearest neighbor mixing: a rule aggregates means of messages that are close to each other.

    .. math:: y_j = \frac{1}{|N_i| - f_i} \sum_{l \in \text{nearest}(j)} w_l, \qquad
              \mathrm{AGG}_i = \text{rule}(\{y_j : j \in N_i\})

    where :math:`\text{nearest}(j)` are the :math:`|N_i| - f_i` received models closest to
    :math:`w_j`, itself among them. Allouah et al., *Fixing by Mixing: A Recipe for Optimal
    Byzantine ML under Heterogeneity*, AISTATS 2023. Own is not among the models, but the wrapped
    rule may use it. The rule assumes :math:`|N_i| > 2 f_i`. With :math:`f_i = 0` every :math:`y_j`
    is the mean. Equal distances go to the lowest client id.

    Mixing is linear: if the wrapped rule has weights, ``weights`` are those of the received
    messages. Mixing a lie that is close to benign messages spreads it over all of them.

    The means take 16 MiB. They take the memory of the messages of one receiver if that is more,
    unless the wrapped rule is coordinate-wise.

    Args:
        rule: the rule that aggregates the means. It also gets :math:`f_i`.
        tolerated: the number :math:`f_i` of malicious neighbors to expect, by default that of the
            wrapped rule. You can also pass it at the call.

    >>> received = torch.tensor([[0.0], [1.0], [2.0], [90.0]])
    >>> out = eq.NNM(eq.Median(), tolerated=1)(torch.zeros(1), received)
    >>> out.model
    tensor([1.])
    """

    rule: Aggregator
    tolerated: int | None = None

    def __post_init__(self) -> None:
        check_wrapped(self, self.rule)
        check_tolerance(self.tolerated, False)
        object.__setattr__(self, "tolerated", tolerated_of_both(self.tolerated, self.rule))

    @property
    def _inputs(self) -> tuple[str, ...]:
        return ("tolerated",)

    def change(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Changed:
        """Mix each message with its nearest ones."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=False)
        receivers, k = inbox.slots.shape
        shares = torch.zeros(receivers, k, k, dtype=torch.float64, device=own.device)
        groups = []
        for group, near in kernels.nearest_messages(own, inbox, f):
            rows = group.receivers[:, None, None]
            found = near.double() / near.sum(2, keepdim=True)
            shares[rows, group.columns[:, :, None], group.columns[:, None, :]] = found
            groups.append((group, found.mT.contiguous()))
        # Each mean is an aggregate of its own: a receiver with the messages of the real one.
        real, columns = inbox.present.nonzero(as_tuple=True)
        tables = (inbox.slots[real], inbox.present[real], inbox.senders[real])
        heard = Inbox(inbox.bank, *tables)
        mixed = shares[real, columns]
        nothing = torch.zeros(len(real), dtype=torch.float64, device=own.device)

        def write(some: slice, out: Tensor) -> None:
            kernels.combine(out, nothing, heard.with_bank(inbox.bank[:, some]), mixed, out=out)

        rows = in_order(inbox.present)
        explain = partial(_explained, groups=groups)
        return Changed(len(real), rows, inbox.mask, inbox.senders, write, explain)


def _explained(weights: Tensor, groups: list[tuple[Group, Tensor]]) -> Tensor:
    """(r, k) weights of messages, from those of the means and (r, c, c) shares in each mean."""
    explained = torch.zeros_like(weights)
    for group, shares in groups:
        rows = group.receivers[:, None]
        # In the order of senders, so that zeros among them change no bit.
        of_means = weights[rows, group.columns][:, None, :]
        explained[rows, group.columns] = (shares * of_means).sum(2)
    return explained
