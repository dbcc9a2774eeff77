"""Gossip averaging: the weighted mean of own and the messages, without any defense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from equipoise.messages import Inbox
from equipoise.rules._gossip import gossip_weights
from equipoise.rules.base import Rule, as_diagnostic, combine_present
from equipoise.topology import NoMalicious
from equipoise.types import Aggregated


@dataclass(frozen=True)
class Gossip(Rule):
    r"""The weighted mean of own and the received models, without any defense.

    .. math:: \mathrm{AGG}_i = w_i + \sum_{j \in N_i} W_{ij} (w_j - w_i)

    The averaging step of decentralized SGD: Lian et al., *Can Decentralized Algorithms Outperform
    Centralized Algorithms?*, NeurIPS 2017. The weights :math:`W_{ij}` are the round input
    ``gossip``, for instance `Topology.gossip_weights`. Without it, own and the messages have equal
    weights, 1 / (number of messages + 1). The weight of an absent message falls to own. A step size
    is a factor of the weights: pass ``0.5 * weights`` for half a step.

    The aggregate contains own: mix it with ``alpha=0``.

    >>> received = torch.tensor([[2.0, 0.0], [4.0, 6.0]])
    >>> eq.Gossip()(torch.zeros(2), received).model
    tensor([2., 2.])
    >>> eq.Gossip()(torch.zeros(2), received, gossip=torch.tensor([0.5, 0.25])).model
    tensor([2.0000, 1.5000])
    """

    guarantee: ClassVar[NoMalicious] = NoMalicious()
    isotropic: ClassVar[bool] = True
    contains_own: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("gossip",)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        gossip: Tensor | None = None,
        out: Tensor | None = None,
        state: Any = None,
        **_: Any,
    ) -> Aggregated:
        """Average own and all messages that are present."""
        model, weights = combine_present(
            own, inbox, lambda accepted: gossip_weights(gossip, inbox, accepted), out=out
        )
        return Aggregated(model, as_diagnostic(weights, own), state)
