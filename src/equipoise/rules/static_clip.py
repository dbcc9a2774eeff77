"""StaticClip: messages are clipped to a ball around own before a rule aggregates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise._utils.validation import check_number
from equipoise.messages import Inbox
from equipoise.rules._clipping import clipped, distances_around
from equipoise.rules._wrapper import Changed, Wrapper, check_wrapped
from equipoise.rules.aggregator import Aggregator
from equipoise.topology import NoTheorem


@dataclass(frozen=True)
class StaticClip(Wrapper):
    r"""A rule aggregates the received models, clipped to a ball of fixed radius around own.

    .. math:: z_j = w_i + \min\Bigl(1, \frac{r}{\|w_j - w_i\|}\Bigr) (w_j - w_i), \qquad
              \mathrm{AGG}_i = \text{rule}(\{z_j : j \in N_i\})

    The clipping before aggregation that Allouah et al., *Adaptive Gradient Clipping for Robust
    Federated Learning*, ICLR 2025, compare `ARC` with. There, gradients are clipped around 0.
    Models are not small, so that the differences from own are clipped here.
    ``StaticClip(FedAvg(), r)`` is ``SCClip(tau=r)``.

    Whatever the messages are, the aggregate of a rule between its messages is at most :math:`r`
    away from own. If the wrapped rule has weights, ``weights`` are those of the received messages,
    and own has the remainder. Over many rounds, lies inside of the ball add up.

    The clipped messages take 16 MiB. They take the memory of the messages of one receiver if that
    is more, unless the wrapped rule is coordinate-wise.

    Args:
        rule: the rule that aggregates the clipped messages.
        radius: the largest distance from own.

    >>> received = torch.tensor([[0.5, 0.0], [0.0, 10.0]])
    >>> out = eq.StaticClip(eq.FedAvg(), radius=1.0)(torch.zeros(2), received)
    >>> out.model, out.weights
    (tensor([0.2500, 0.5000]), tensor([0.5000, 0.0500]))
    """

    guarantee: ClassVar[NoTheorem] = NoTheorem("a fixed radius does not keep that of the rule")

    rule: Aggregator
    radius: float = 1.0

    def __post_init__(self) -> None:
        check_wrapped(self, self.rule)
        check_number("radius", self.radius)

    @property
    def tolerated(self) -> int | None:
        """The number of malicious neighbors that the wrapped rule expects."""
        return getattr(self.rule, "tolerated", None)

    def change(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Changed | None:
        """Clip the messages around own."""
        distances = distances_around(own, inbox)
        return clipped(own, inbox, distances, distances.new_full((inbox.n, 1), self.radius))
