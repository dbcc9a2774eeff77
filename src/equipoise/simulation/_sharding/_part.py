"""The clients of this process, and the part that consists of all clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.metrics import consensus_error
from equipoise.simulation._sharding._partition import Cut
from equipoise.simulation._sharding._row_exchange import RowExchange
from equipoise.topology import Topology

ValueT = TypeVar("ValueT")
LossOf = Callable[[Tensor, Tensor], Tensor]
LossesAt = Callable[[int], LossOf]
Metric = Callable[[Tensor], Tensor]


class Part(Protocol):
    """The clients of this process, and what all processes find together.

    `Everyone` is the part of a simulation in one process, `Shard` that of one rank among several.
    Methods named ``all_...`` are collective.
    """

    @property
    def is_first(self) -> bool:
        """Whether this process keeps the history."""

    @property
    def is_alone(self) -> bool:
        """Whether there are no other processes."""

    def ids(self, n: int) -> Tensor:
        """(b,) the clients of this process, ascending."""

    def of(self, value: ValueT) -> ValueT:
        """The rows (b, ...) of a tensor (n, ...); any other value is returned as it is."""

    def rule_of(self, rule: Any) -> Any:
        """The rule for the clients of this process."""

    def exchange(self, topology: Topology, unsent: Tensor) -> RowExchange | None:
        """What is sent along the edges of a graph, None if all models are here."""

    def cut(self, topology: Topology) -> Cut:
        """The edges between processes."""

    def telling_errors(self) -> AbstractContextManager[None]:
        """If this block fails, tell the other processes, which would wait for this one."""

    def losses(self, loss_of: LossesAt) -> LossesAt:
        """Losses on the data of the clients of this process, by row, from those by id."""

    def measure(self, metric: Metric, models: Tensor) -> Tensor:
        """The values of a metric for the models of this process."""

    def all_losses(self, loss_of: LossOf) -> LossOf:
        """A function of models and clients (c,) that may be clients of other processes."""

    def all_sums(self, numbers: Iterable[int]) -> list[int]:
        """The sums of these numbers over all processes."""

    def all_rows(self, mine: Tensor) -> Tensor:
        """(n, ...) the rows of all clients, in every process."""

    def all_fingerprint(self, trainer: Any) -> str | None:
        """A digest of the training data of all clients, if the trainer offers one."""

    def all_consensus(self, models: Tensor, chosen: Tensor) -> float:
        """`consensus_error` of the chosen (n,) clients, given the models of this process."""


class Everyone:
    """All clients are in this process."""

    is_first = True
    is_alone = True

    def ids(self, n: int) -> Tensor:
        """All ids."""
        return torch.arange(n, device="cpu")

    def of(self, value: ValueT) -> ValueT:
        """The value."""
        return value

    def rule_of(self, rule: Any) -> Any:
        """The rule."""
        return rule

    def exchange(self, topology: Topology, unsent: Tensor) -> None:
        """Nothing is sent."""

    def cut(self, topology: Topology) -> Cut:
        """No edge."""
        return Cut(edges=0, rows=0)

    def telling_errors(self) -> AbstractContextManager[None]:
        """There is no one to tell."""
        return nullcontext()

    def losses(self, loss_of: LossesAt) -> LossesAt:
        """The function."""
        return loss_of

    def measure(self, metric: Metric, models: Tensor) -> Tensor:
        """The values for all models."""
        return metric(models)

    def all_losses(self, loss_of: LossOf) -> LossOf:
        """The function."""
        return loss_of

    def all_sums(self, numbers: Iterable[int]) -> list[int]:
        """The numbers."""
        return list(numbers)

    def all_rows(self, mine: Tensor) -> Tensor:
        """The rows, not a copy."""
        return mine

    def all_fingerprint(self, trainer: Any) -> str | None:
        """The digest of the trainer."""
        if not hasattr(trainer, "fingerprint"):
            return None
        found = trainer.fingerprint()
        if not isinstance(found, str):
            raise ValueError(f"trainer.fingerprint() must return a string, found {describe(found)}")
        return found

    def all_consensus(self, models: Tensor, chosen: Tensor) -> float:
        """Their disagreement."""
        return consensus_error(models[chosen])
