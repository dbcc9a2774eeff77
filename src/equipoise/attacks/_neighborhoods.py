"""The clients that an attack observes, for each victim or for all victims at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from equipoise.kernels import compute_dtype, weighted_sums
from equipoise.rules import uniform

CachedT = TypeVar("CachedT")


@dataclass(frozen=True, eq=False)
class Neighborhoods:
    """The members of ``a`` neighborhoods: one for each victim, or one for all, with receiver -1.

    Member ``s`` of neighborhood i is ``clients[slots[i, s]]`` where ``present[i, s]``. Edge j leads
    from the malicious client ``senders[j]`` to the victim of neighborhood ``edge_rows[j]``.
    """

    clients: Tensor  # (m,) ids, ascending
    slots: Tensor  # (a, k)
    present: Tensor  # (a, k)
    central_weights: Tensor  # (m,) weights of a mean that ignores a few outliers
    receivers: Tensor  # (a,)
    senders: Tensor  # (e,)
    edge_rows: Tensor  # (e,) ascending
    malicious_degree: Tensor  # (a,) number of malicious clients that send to each victim
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, members: Tensor, present: Tensor, central_weights: Tensor, **edges: Any
    ) -> Neighborhoods:
        """Build from member ids (a, k) where ``present`` and weights (n,) of all clients.

        ``edges`` are the last four fields.
        """
        # Each observed model is stored once, however many victims observe it.
        clients, places = members[present].unique(return_inverse=True)
        slots = torch.zeros_like(members)
        slots[present] = places
        weights = central_weights[clients]
        total = weights.sum()
        # The total is 0 if victims observe only themselves and none of them is central.
        weights = weights / total if total > 0 else torch.full_like(weights, 1 / len(clients))
        return cls(clients, slots, present, weights, **edges)

    @cached_property
    def counts(self) -> Tensor:
        """(a,) size of each neighborhood."""
        return self.present.sum(1)

    @cached_property
    def weights(self) -> Tensor:
        """(a, k) weights of the mean of each neighborhood, float64."""
        return uniform(self.present)

    @cached_property
    def alone(self) -> Tensor:
        """(a,) whether the victim has no benign neighbor and therefore observes itself."""
        first = self.clients[self.slots[:, 0]]
        return (self.counts == 1) & (first == self.receivers) & self.present[:, 0]

    @cached_property
    def sender_ranks(self) -> Tensor:
        """(e,) rank of each sender among all senders, by id."""
        return self.senders.unique(return_inverse=True)[1]  # type: ignore[no-any-return]

    @cached_property
    def filled_slots(self) -> Tensor:
        """(a, k) slots, with empty slots repeating the first member."""
        # argmax of a bool mask is its first True; int8, because argmax does not take bool.
        first = self.slots.gather(1, self.present.to(torch.int8).argmax(1, keepdim=True))
        return self.slots.where(self.present, first)

    def mean(self, vectors: Tensor) -> Tensor:
        """(a, d) mean of the vectors (m, d) in each neighborhood."""
        return self.weighted_sum("mean", self.weights, vectors)

    def weighted_sum(self, name: str, weights: Tensor, vectors: Tensor) -> Tensor:
        """(a, d) weighted sum of the vectors (m, d) in each neighborhood.

        The weights (a, k) are prepared once for each name and dtype, not once for each block.
        """

        def prepare() -> Callable[[Tensor], Tensor]:
            rows, columns = (weights != 0).nonzero(as_tuple=True)
            edges = (rows, self.slots[rows, columns], weights[rows, columns])
            shape = (len(self.slots), len(self.clients))
            return weighted_sums(*shape, *edges, compute_dtype(vectors))

        return self.cached(f"{name} {vectors.dtype}", prepare)(vectors)

    def cached(self, name: str, compute: Callable[[], CachedT]) -> CachedT:
        """Return the value stored under this name; compute it first if there is none."""
        if name not in self._cache:
            self._cache[name] = compute()
        value: CachedT = self._cache[name]
        return value
