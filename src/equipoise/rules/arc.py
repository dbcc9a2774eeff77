"""ARC: the messages farthest from own are clipped before a rule aggregates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._clipping import clipped, distances_around
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules._wrapper import Changed, Wrapper, check_wrapped, tolerated_of_both
from equipoise.rules.aggregator import Aggregator
from equipoise.rules.base import as_tolerated


@dataclass(frozen=True)
class ARC(Wrapper):
    r"""Adaptive robust clipping: a rule aggregates models, the farthest of which are clipped.

    .. math:: z_j = w_i + \min\Bigl(1, \frac{\tau_i}{\|w_j - w_i\|}\Bigr) (w_j - w_i), \qquad
              \mathrm{AGG}_i = \text{rule}(\{z_j : j \in N_i\})

    where :math:`\tau_i` is the distance that comes next after the
    :math:`\lfloor 2 f_i (|N_i| - f_i) / |N_i| \rfloor` largest ones. Allouah et al., *Adaptive
    Gradient Clipping for Robust Federated Learning*, ICLR 2025. There, gradients are clipped around
    0. Models are not small, so that the differences from own are clipped here. Own is not among the
    models. With :math:`f_i = 0` the aggregate is that of the wrapped rule. The rule assumes
    :math:`|N_i| > 2 f_i`; beyond that, :math:`f_i` is :math:`\lfloor |N_i| / 2 \rfloor`.

    If the wrapped rule has weights, ``weights`` are those of the received messages, and own has the
    remainder. Lies that are as close to own as benign models are not clipped.

    The clipped messages take 16 MiB. They take the memory of the messages of one receiver if that
    is more, unless the wrapped rule is coordinate-wise.

    Args:
        rule: the rule that aggregates the clipped messages. It also gets :math:`f_i`.
        tolerated: the number :math:`f_i` of malicious neighbors to expect, by default that of the
            wrapped rule. You can also pass it at the call.

    >>> received = torch.tensor([[1.0], [2.0], [3.0], [40.0]])
    >>> out = eq.ARC(eq.FedAvg(), tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([2.2500]), tensor([0.2500, 0.2500, 0.2500, 0.0188]))
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

    def change(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Changed | None:
        """Clip the messages that are farthest from own."""
        f = as_tolerated(self, inputs.get("tolerated"), inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 1) // 2, degrees, strict=False)
        counts = inbox.counts
        f = f.minimum(counts // 2)
        farthest = 2 * f * (counts - f) // counts.clamp_min(1)
        distances = distances_around(own, inbox)
        radius = kernels.value_at_rank(distances, counts - farthest - 1)
        return clipped(own, inbox, distances, radius)
