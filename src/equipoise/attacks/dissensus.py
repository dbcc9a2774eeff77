"""Dissensus: keep neighbours from agreeing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.attacks.crowd import Crowd, by_columns, combine
from equipoise.attacks.knowledge import Knowledge
from equipoise.attacks.options import check_options
from equipoise.lies import Lies


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
    def forge(self, known: Knowledge) -> Lies:
        """One row per victim."""
        crowd = Crowd.of(known, self, "receiver")
        benign, malicious = self._gossip(known, crowd)
        strength = (self.epsilon / malicious)[:, None] * benign
        own = crowd.inbox.bank[known.victims]
        rows = own * (1 + strength.sum(1)).to(own.dtype)[:, None] - combine(crowd.inbox, strength)
        return crowd.lies(rows)

    def _gossip(self, known: Knowledge, crowd: Crowd) -> tuple[Tensor, Tensor]:
        """(v, k) gossip weights of benign neighbours, and (v,) the sum of those of malicious ones."""
        inbox, victims = crowd.inbox, known.victims
        if self.weights == "uniform":
            return inbox.present.double(), known.tolls[victims].double()
        topology = known.topology.to(known.models.device)
        senders, degrees = topology.senders[victims].clamp_min(0), topology.degrees
        gossip = 1 / (1 + torch.maximum(degrees[victims, None], degrees[senders]).double())
        malicious = gossip.where(topology.mask[victims] & known.liars[senders], 0).sum(1)
        return gossip.where(inbox.present, 0), malicious


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
