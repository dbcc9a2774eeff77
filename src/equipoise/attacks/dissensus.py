"""Dissensus: keep neighbors from reaching consensus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise._utils.validation import check_options
from equipoise.attacks._statistics import Observed, UncheckedLies, forge_by_columns
from equipoise.attacks.knowledge import Knowledge


@dataclass(frozen=True)
class Dissensus:
    r"""The lie to each victim cancels, or more than cancels, the pull of its benign neighbors.

    .. math:: m_i = w_i - \epsilon \frac{\sum_{j \in N_i \text{ benign}} W_{ij} (w_j - w_i)}
              {\sum_{k \in N_i \text{ malicious}} W_{ik}}

    He et al., *Byzantine-Robust Decentralized Learning via ClippedGossip*, 2022. At
    :math:`\epsilon = 1` plain gossip with the weights W does not move; above, it drives clients
    apart. A victim without benign neighbors receives its own model.

    Args:
        epsilon: strength, 1.5 in the authors' scripts; the BALANCE paper does not state it.
        weights: ``"uniform"``, or the ``"metropolis"`` weights
            :math:`W_{ij} = 1 / (1 + \max(\deg_i, \deg_j))` of gossip.

    >>> models = torch.tensor([[0.0], [1.0], [7.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Dissensus(epsilon=1.0).forge(known).rows  # to clients 0 and 1
    tensor([[-1.],
            [ 2.]])
    """

    uses_malicious_models: ClassVar[bool] = False

    epsilon: float = 1.5
    weights: Literal["uniform", "metropolis"] = "uniform"

    def __post_init__(self) -> None:
        check_options(self)

    @forge_by_columns
    def forge(self, known: Knowledge) -> UncheckedLies:
        """Return one row per victim."""
        benign = Observed.of(known, self, "receiver")
        them = benign.neighborhoods
        # Strengths depend on the graph only: compute them for the first block of columns.
        strength = them.cached(f"strength {self}", lambda: self._strength(known))
        # w_i - sum_j s_ij (w_j - w_i) = (1 + sum_j s_ij) w_i - sum_j s_ij w_j, around the center
        rows = them.weighted_sum(f"gossip {self}", -strength, benign.vectors)
        own = known.models.index_select(0, known.victims).sub_(benign.center)
        rows.addcmul_(own, (1 + strength.sum(1)).to(own.dtype)[:, None])
        return benign.lies_per_victim(rows.add_(benign.center))

    def _strength(self, known: Knowledge) -> Tensor:
        """(v, k) epsilon times the weight of each benign neighbor over the malicious weight."""
        them = known._neighborhoods("receiver")
        victims = known.victims
        # Equal weights cancel in the equation, up to the number of malicious neighbors.
        if self.weights == "uniform":
            return self.epsilon / them.malicious_degree.double()[:, None] * them.present
        degrees = known.topology.degrees.to(victims.device)  # in-degrees

        def metropolis(receivers: Tensor, senders: Tensor) -> Tensor:
            return 1 / (1 + torch.maximum(degrees[receivers], degrees[senders]).double())

        # (v,) the denominator; a victim may have several malicious neighbors.
        malicious = torch.zeros(len(victims), dtype=torch.float64, device=victims.device)
        edges = metropolis(victims[them.edge_rows], them.senders)
        malicious.index_add_(0, them.edge_rows, edges)
        # (v, k) the numerator. A victim that observes itself adds W_ii (w_i - w_i) = 0.
        benign = metropolis(victims[:, None], them.clients[them.slots]).where(them.present, 0)
        return self.epsilon * benign / malicious[:, None]


@dataclass(frozen=True)
class Isolation(Dissensus):
    r"""Dissensus at :math:`\epsilon = 1`: plain gossip does not move, so every client is alone.

    >>> models = torch.tensor([[0.0], [1.0], [7.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.Isolation().forge(known).rows
    tensor([[-1.],
            [ 2.]])
    """

    epsilon: float = 1.0
