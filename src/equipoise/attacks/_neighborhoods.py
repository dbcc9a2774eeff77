"""Who is in the crowd that an attack looks at, for each victim or for all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.kernels import compute_dtype, weighted_sums
from equipoise.rules import uniform

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, eq=False)
class Roster:
    """The members of ``a`` crowds: one for each victim, or one for all, whose receiver is -1.

    Member ``s`` of crowd i is ``clients[slots[i, s]]`` where ``present[i, s]``. ``senders[j]`` is malicious and
    speaks to the victim of ``crowds[j]``.
    """

    clients: Tensor  # (m,) ids, ascending
    slots: Tensor  # (a, k)
    present: Tensor  # (a, k)
    central: Tensor  # (m,) weights of a mean that a few clients far away do not move
    receivers: Tensor  # (a,)
    senders: Tensor  # (e,)
    crowds: Tensor  # (e,)
    tolls: Tensor  # (a,) how many speak to each victim

    @classmethod
    def of(cls, members: Tensor, present: Tensor, central: Tensor, *about: Tensor) -> Roster:
        """From ids of members (a, k), where ``present``, weights (n,) of all clients, and the last four fields."""
        clients, places = members[present].unique(return_inverse=True)
        slots = torch.zeros_like(members)
        slots[present] = places
        weights = central[clients]
        total = weights.sum()
        weights = weights / total if total > 0 else torch.full_like(weights, 1 / len(clients))
        return cls(clients, slots, present, weights, *about)

    @cached_property
    def counts(self) -> Tensor:
        """(a,) size of each crowd."""
        return self.present.sum(1)

    @cached_property
    def weights(self) -> Tensor:
        """(a, k) weights of the mean of each crowd, float64."""
        return uniform(self.present)

    @cached_property
    def alone(self) -> Tensor:
        """(a,) which victims have no benign neighbour, and so themselves for a crowd."""
        return (self.counts == 1) & (self.clients[self.slots[:, 0]] == self.receivers) & self.present[:, 0]

    @cached_property
    def speakers(self) -> Tensor:
        """(e,) the senders, numbered from 0 in the order of their ids."""
        return self.senders.unique(return_inverse=True)[1]  # type: ignore[no-any-return]

    @cached_property
    def to_crowds(self) -> tuple[Tensor, Tensor]:
        """(a,) senders and receivers of one lie for each crowd: everybody, to its victim or to everybody."""
        return torch.full_like(self.receivers, -1), self.receivers

    @cached_property
    def filled(self) -> Tensor:
        """(a, k) slots, the first member of a crowd again where a slot is empty."""
        first = self.slots.gather(1, self.present.to(torch.int8).argmax(1, keepdim=True))
        return self.slots.where(self.present, first)

    def average(self, vectors: Tensor) -> Tensor:
        """(a, d) means of the vectors (m, d) in each crowd."""
        return self.sums("mean", self.weights, vectors)

    def sums(self, name: str, weights: Tensor, vectors: Tensor) -> Tensor:
        """(a, d) sums of vectors (m, d) in each crowd; the weights are prepared once for each name."""

        def prepare() -> Callable[[Tensor], Tensor]:
            crowds, columns = (weights != 0).nonzero(as_tuple=True)
            edges = crowds, self.slots[crowds, columns], weights[crowds, columns]
            return weighted_sums(len(self.slots), len(self.clients), *edges, compute_dtype(vectors))

        return self.remember(f"{name} {vectors.dtype}", prepare)(vectors)

    def remember(self, name: str, compute: Callable[[], ValueT]) -> ValueT:
        """What was computed under this name, or now."""
        if name not in self.__dict__:
            self.__dict__[name] = compute()
        value: ValueT = self.__dict__[name]
        return value
