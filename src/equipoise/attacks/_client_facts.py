"""Facts about the clients of a round, computed once and shared by all parts of it."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.attacks._neighborhoods import Neighborhoods
from equipoise.topology import Topology

Scope = Literal["receiver", "global"]


class ClientFacts:
    """Properties of clients that do not depend on which parameters an attack looks at.

    Attacks work on blocks of columns. A column block must not decide on its own which clients are
    finite or central: a NaN in one block would leave the others to a different set of clients.
    """

    def __init__(
        self, models: Tensor, previous: Tensor | None, topology: Topology, malicious: Tensor
    ) -> None:
        self.models = models
        self.previous = previous
        self.topology = topology
        self.malicious = malicious
        self._neighborhoods: dict[tuple[Scope, bool], Neighborhoods] = {}

    @cached_property
    def malicious_count(self) -> int:
        """Number of malicious clients."""
        return int(self.malicious.sum())

    @cached_property
    def malicious_degree(self) -> Tensor:
        """(n,) number of malicious clients among the neighbors of each client."""
        return self.topology.malicious_neighbors(self.malicious).to(self.models.device)

    @cached_property
    def victims(self) -> Tensor:
        """Ids of the benign clients with a malicious neighbor."""
        return ((self.malicious_degree > 0) & ~self.malicious).nonzero().flatten()

    @cached_property
    def finite(self) -> Tensor:
        """(n,) bool: clients with finite models, before and after local training."""
        # An update is the difference of both, so both must be finite.
        finite = kernels.are_finite(self.models)
        return finite if self.previous is None else finite & kernels.are_finite(self.previous)

    @cached_property
    def finite_benign(self) -> Tensor:
        """(n,) bool: benign clients with finite models."""
        return ~self.malicious & self.finite

    @cached_property
    def central_weights(self) -> Tensor:
        """(n,) weights of a mean of benign models that ignores a few outliers."""
        return kernels.central_rows(self.models, self.finite_benign)

    def neighborhoods(self, scope: Scope, include_malicious: bool) -> Neighborhoods:
        """Return the observed clients for each victim, or for all victims at once."""
        key = (scope, include_malicious)
        if key not in self._neighborhoods:
            members = self.finite if include_malicious else self.finite_benign
            build = self._all_clients if scope == "global" else self._neighbors_of_victims
            self._neighborhoods[key] = build(members)
        return self._neighborhoods[key]

    def _all_clients(self, members: Tensor) -> Neighborhoods:
        ids = members.nonzero().T  # (1, m): a single neighborhood
        senders = self.malicious.nonzero().flatten()
        return Neighborhoods.of(
            ids,
            torch.ones_like(ids, dtype=torch.bool),
            self.central_weights,
            receivers=torch.full_like(self.victims[:1], -1),  # -1 addresses all clients
            senders=senders,
            edge_rows=torch.zeros_like(senders),  # all edges belong to that neighborhood
            malicious_degree=self.malicious.sum()[None],
        )

    def _neighbors_of_victims(self, members: Tensor) -> Neighborhoods:
        topology = self.topology.to(self.models.device)
        # Empty slots have the sender -1; any valid id will do, because the mask hides them.
        neighbors = topology.senders[self.victims].clamp_min(0)
        mask = topology.mask[self.victims]
        # nonzero is row-major and senders ascend: edges are sorted by victim, then by sender.
        edge_rows, slots = (mask & self.malicious[neighbors]).nonzero(as_tuple=True)
        senders = neighbors[edge_rows, slots]
        present = mask & members[neighbors]
        # A victim without such neighbors observes itself, so that its lie is defined.
        alone = ~present.any(1)
        neighbors[alone, 0] = self.victims[alone]
        present[alone, 0] = True
        return Neighborhoods.of(
            neighbors,
            present,
            self.central_weights,
            receivers=self.victims,
            senders=senders,
            edge_rows=edge_rows,
            malicious_degree=self.malicious_degree[self.victims],
        )
