"""Another rule for every client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.rng import device_of
from equipoise.kernels import chunks
from equipoise.messages import Inbox
from equipoise.rules._guarantees import serving
from equipoise.rules.aggregator import Aggregator
from equipoise.rules.base import Rule, as_diagnostic
from equipoise.types import Aggregated

BUDGET = 1 << 24  # elements of own models that are copied at a time


@dataclass(frozen=True)
class PerClient(Rule):
    """Client i aggregates by ``rules[i]``; clients whose rules are equal are served by one call.

    Cases III and IV of section 6.2 of the BALANCE paper. Where rules with and without weights meet, the weights of the
    clients without are NaN.

    >>> rule = eq.PerClient([eq.Median(), eq.FedAvg()])
    >>> own = torch.zeros(2, 1)
    >>> slots = torch.tensor([[0, 1, 2], [0, 1, 2]])
    >>> inbox = eq.Inbox(torch.tensor([[0.0], [1.0], [8.0]]), slots)
    >>> rule(own, inbox).model
    tensor([[1.],
            [3.]])
    """

    rules: tuple[Aggregator, ...]

    def __init__(self, rules: Iterable[Aggregator]) -> None:
        object.__setattr__(self, "rules", tuple(rules))
        for client, rule in enumerate(self.rules):
            if isinstance(rule, type) or not callable(rule):
                found = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
                raise ValueError(f"rules must be rules that talk once a round, found {found} for client {client}")

    @classmethod
    def drawn(cls, rules: Sequence[Aggregator], n: int, generator: torch.Generator | None = None) -> PerClient:
        """Every one of n clients draws its rule from ``rules``.

        >>> source = torch.Generator().manual_seed(0)
        >>> eq.PerClient.drawn([eq.Median(), eq.FedAvg()], 3, source).rules
        (Median(), FedAvg(weighted=False), FedAvg(weighted=False))
        """
        if not len(rules):
            raise ValueError("rules must be at least one to draw from, found none")
        drawn = torch.randint(len(rules), (n,), generator=generator, device=device_of(generator))
        return cls(rules[i] for i in drawn.tolist())

    def check_clients(self, n: int) -> None:
        """Raise unless there is a rule for each of n clients."""
        if len(self.rules) != n:
            raise ValueError(f"rules must be one per client, expected {n}, found {len(self.rules)}")

    def aggregate(
        self, own: Tensor, inbox: Inbox, *, out: Tensor | None = None, state: Any = None, **inputs: Any
    ) -> Aggregated:
        """Serve the clients of each distinct rule together."""
        self.check_clients(inbox.n)
        model = torch.empty_like(own) if out is None else out
        weights, weighted = torch.full(inbox.slots.shape, torch.nan, dtype=torch.float64, device=own.device), False
        for rule, clients in self._shares(own):
            part = {name: _part(name, value, clients) for name, value in inputs.items()}
            with serving(clients):
                theirs = rule(own[clients], inbox.of(clients), **part)
            model[clients] = theirs.model
            if theirs.state is not None:
                raise ValueError(f"rules must hold no state in PerClient, found {theirs.state!r:.80} of {rule}")
            if theirs.weights is not None:
                weights[clients], weighted = theirs.weights.double(), True
        return Aggregated(model, as_diagnostic(weights, own) if weighted else None, state)

    def _shares(self, own: Tensor) -> Iterator[tuple[Aggregator, Tensor]]:
        """Distinct rules with their clients, not too many at a time."""
        for rule in dict.fromkeys(self.rules):
            clients = torch.tensor([i for i, mine in enumerate(self.rules) if mine == rule], device=own.device)
            for part in chunks(len(clients), own.shape[1], BUDGET):
                yield rule, clients[part]


def _part(name: str, value: Any, clients: Tensor) -> Any:
    """A round input as some of the clients see it."""
    if name == "loss_of" and value is not None:
        return lambda models, receivers: value(models, clients[receivers])
    if name in ("tolerated", "update") and isinstance(value, Tensor) and value.dim():
        return value[clients]
    return value
