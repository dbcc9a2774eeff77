"""Dissensus: keep neighbours from agreeing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise._utils.validation import check_options
from equipoise.attacks._statistics import Crowd, Told, by_columns
from equipoise.attacks.knowledge import Knowledge


@dataclass(frozen=True)
class Dissensus:
    r"""Each victim is told what undoes, or more than undoes, what its benign neighbours tell it.

    .. math:: m_i = w_i - \epsilon \frac{\sum_{j \in N_i \text{ benign}} W_{ij} (w_j - w_i)}
              {\sum_{k \in N_i \text{ malicious}} W_{ik}}

    He et al., *Byzantine-Robust Decentralized Learning via ClippedGossip*, 2022. At :math:`\epsilon = 1` plain gossip
    with the weights W stands still; above, clients are driven apart. A victim with no benign neighbour is told its
    own.

    Args:
        epsilon: strength, 1.5 in the authors' scripts; the BALANCE paper does not say.
        weights: ``"uniform"``, or the ``"metropolis"`` weights :math:`W_{ij} = 1 / (1 + \max(\deg_i, \deg_j))` of
            gossip.

    >>> models = torch.tensor([[0.0], [1.0], [7.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Dissensus(epsilon=1.0).forge(known).rows  # to clients 0 and 1
    tensor([[-1.],
            [ 2.]])
    """

    epsilon: float = 1.5
    weights: Literal["uniform", "metropolis"] = "uniform"

    def __post_init__(self) -> None:
        check_options(self)

    @by_columns
    def forge(self, known: Knowledge) -> Told:
        """One row per victim."""
        crowd = Crowd.of(known, self, "receiver")
        strength = crowd.roster.remember(f"strength {self}", lambda: self._strength(known))
        pushed = crowd.roster.sums(f"gossip {self}", -strength, crowd.vectors)
        own = known.models.index_select(0, known.victims).sub_(crowd.centre)
        pushed.addcmul_(own, (1 + strength.sum(1)).to(own.dtype)[:, None])
        return crowd.lies(pushed.add_(crowd.centre))

    def _strength(self, known: Knowledge) -> Tensor:
        """(v, k) what the lie undoes of each benign neighbour's message."""
        roster, victims = known.roster("receiver"), known.victims
        if self.weights == "uniform":
            return self.epsilon / roster.tolls.double()[:, None] * roster.present
        degrees = known.topology.degrees.to(victims.device)

        def gossip(receivers: Tensor, senders: Tensor) -> Tensor:
            return 1 / (1 + torch.maximum(degrees[receivers], degrees[senders]).double())

        malicious = torch.zeros(len(victims), dtype=torch.float64, device=victims.device)
        malicious.index_add_(0, roster.crowds, gossip(victims[roster.crowds], roster.senders))
        benign = gossip(victims[:, None], roster.clients[roster.slots]).where(roster.present, 0)
        return self.epsilon * benign / malicious[:, None]


@dataclass(frozen=True)
class Isolation(Dissensus):
    r"""Dissensus at :math:`\epsilon = 1`: plain gossip stands still, and every client is on its own.

    >>> models = torch.tensor([[0.0], [1.0], [7.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Isolation().forge(known).rows
    tensor([[-1.],
            [ 2.]])
    """

    epsilon: float = 1.0
