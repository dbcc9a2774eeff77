"""A different rule for each client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise._utils.rng import device_of
from equipoise._utils.validation import describe
from equipoise.kernels import chunks
from equipoise.messages import Inbox
from equipoise.rules._guarantees import serving
from equipoise.rules.aggregator import Aggregator
from equipoise.rules.base import Rule, as_diagnostic, needs_of
from equipoise.topology import NotChecked
from equipoise.types import Aggregated

COPIED_MODELS = 1 << 24  # elements of own models that are copied at a time: 64 MiB of float32


@dataclass(frozen=True)
class PerClient(Rule):
    """Client i aggregates with ``rules[i]``; one call serves all clients with equal rules.

    Cases III and IV of section 6.2 of the BALANCE paper. If only some of the rules return weights,
    the weights of the other clients are NaN.

    >>> rule = eq.PerClient([eq.Median(), eq.FedAvg()])
    >>> own = torch.zeros(2, 1)
    >>> slots = torch.tensor([[0, 1, 2], [0, 1, 2]])
    >>> inbox = eq.Inbox(torch.tensor([[0.0], [1.0], [8.0]]), slots)
    >>> rule(own, inbox).model
    tensor([[1.],
            [3.]])
    """

    guarantee: ClassVar[NotChecked] = NotChecked("judge the rules of the clients one by one")

    rules: tuple[Aggregator, ...]

    def __init__(self, rules: Iterable[Aggregator]) -> None:
        if not isinstance(rules, Iterable):
            raise ValueError(f"rules must be one per client, found {describe(rules)}")
        object.__setattr__(self, "rules", tuple(rules))
        for client, rule in enumerate(self.rules):
            # A class is callable, but calling it makes a rule; a frequent mistake.
            if isinstance(rule, type) or not callable(rule):
                is_class = isinstance(rule, type)
                found = f"the class {rule.__name__}" if is_class else type(rule).__name__
                expected = "rules with one exchange a round"
                raise ValueError(f"rules must be {expected}, found {found} for client {client}")

    @classmethod
    def drawn(
        cls, rules: Sequence[Aggregator], n: int, generator: torch.Generator | None = None
    ) -> PerClient:
        """Draw the rule of each of n clients from ``rules``.

        >>> source = torch.Generator().manual_seed(0)
        >>> rule = eq.PerClient.drawn([eq.Median(), eq.FedAvg()], 3, source)
        >>> [type(own).__name__ for own in rule.rules]
        ['Median', 'FedAvg', 'FedAvg']
        """
        if not len(rules):
            raise ValueError("rules must hold at least one rule to draw from, found none")
        device = device_of(generator)
        drawn = torch.randint(len(rules), (n,), generator=generator, device=device)
        return cls(rules[i] for i in drawn.tolist())

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The round inputs that any of the rules reads; None if one rule declares nothing."""
        return needs_of(self.rules)

    def check_clients(self, n: int) -> None:
        """Raise unless there is a rule for each of n clients."""
        if len(self.rules) != n:
            raise ValueError(f"rules must be one per client, expected {n}, found {len(self.rules)}")

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        out: Tensor | None = None,
        state: Any = None,
        **inputs: Any,
    ) -> Aggregated:
        """Serve the clients of each distinct rule together."""
        self.check_clients(inbox.n)
        model = torch.empty_like(own) if out is None else out
        # NaN marks clients whose rule has no weights; 0 would mean that they rejected all messages.
        weights = torch.full_like(inbox.slots, torch.nan, dtype=torch.float64)
        has_weights = False
        for rule, clients in self._batches(own):
            part = {name: _of_clients(name, value, clients) for name, value in inputs.items()}
            # Receivers are renumbered from 0 here; warnings must name the clients of the graph.
            with serving(clients):
                theirs = rule(own[clients], inbox.of(clients), **part)
            model[clients] = theirs.model
            # State of several rules would have to be split by client, in a way that only they know.
            if theirs.state is not None:
                found = f"{theirs.state!r:.80} of {rule}"
                raise ValueError(f"rules must hold no state in PerClient, found {found}")
            if theirs.weights is not None:
                weights[clients] = theirs.weights.double()
                has_weights = True
        return Aggregated(model, as_diagnostic(weights, own) if has_weights else None, state)

    def _check_given(self, inputs: Mapping[str, Any]) -> None:
        """Each rule checks its own inputs, and is named by the error."""

    def _batches(self, own: Tensor) -> Iterator[tuple[Aggregator, Tensor]]:
        """Distinct rules with their clients, as many as fit into the memory for copies."""
        # Rules are frozen dataclasses: equal hyper-parameters make equal rules.
        for rule in dict.fromkeys(self.rules):
            chosen = [client for client, other in enumerate(self.rules) if other == rule]
            clients = torch.tensor(chosen, device=own.device)
            for part in chunks(len(clients), own.shape[1], COPIED_MODELS):
                yield rule, clients[part]


def _of_clients(name: str, value: Any, clients: Tensor) -> Any:
    """A round input, restricted to some of the clients."""
    # The rule numbers its receivers from 0, and the caller's function takes ids of clients.
    if name == "loss_of" and value is not None:
        return lambda models, receivers: value(models, clients[receivers])
    # Samples are looked up by the sender's id, so they stay whole.
    if name in ("tolerated", "update") and isinstance(value, Tensor) and value.dim():
        return value[clients]
    return value
