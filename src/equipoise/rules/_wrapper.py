"""The base of wrappers: rules that change the messages before another rule aggregates them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.kernels import chunks, new_output
from equipoise.messages import Inbox
from equipoise.rules._guarantees import serving
from equipoise.rules._receiver_blocks import of_clients
from equipoise.rules.aggregator import Aggregator, MultiExchange
from equipoise.rules.base import Rule, as_diagnostic
from equipoise.rules.per_client import PerClient
from equipoise.types import Aggregated

# Elements of messages that are copied at a time: 16 MiB of float32, which stays in the last cache.
CHANGED = 1 << 22


class Changed(NamedTuple):
    """Other messages for some receivers, and what the weights of these mean for the received ones.

    ``explain`` turns weights (r, k') of the other messages into weights (r, k) of the received.
    """

    inbox: Inbox
    explain: Callable[[Tensor], Tensor]


class Wrapper(Rule):
    """A rule that aggregates other messages, which `change` makes of the received ones.

    The other messages are copied for a few receivers at a time.
    """

    rule: Aggregator

    @property
    def isotropic(self) -> bool:  # type: ignore[override]
        """Whether the wrapped rule is; wrappers use norms and angles only."""
        return getattr(self.rule, "isotropic", False)

    @property
    def contains_own(self) -> bool:  # type: ignore[override]
        """Whether the aggregate of the wrapped rule contains own."""
        return getattr(self.rule, "contains_own", False)

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The round inputs of the wrapper and of the wrapped rule."""
        names = getattr(self.rule, "needs", None)
        return None if names is None else tuple(dict.fromkeys((*self._inputs, *names)))

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The round inputs that the wrapper itself reads."""
        return ()

    def _before_blocks(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The round inputs, with what is common to all receivers of a call."""
        return inputs

    @abstractmethod
    def change(self, own: Tensor, inbox: Inbox, memory: Tensor, **inputs: Any) -> Changed:
        """Other messages for the receivers of an inbox, whose own models are (r, d).

        They may be written to ``memory``, which has a row for each slot and another one.
        """

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        out: Tensor | None = None,
        state: Any = None,
        **inputs: Any,
    ) -> Aggregated:
        """Change the messages of some receivers at a time, and let the rule aggregate them."""
        model = new_output(own, *own.shape) if out is None else out
        weights = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
        has_weights = True
        inputs = self._before_blocks(inputs)
        # What the wrapper tolerates, the wrapped rule tolerates too.
        if inputs.get("tolerated") is None:
            inputs["tolerated"] = getattr(self, "tolerated", None)
        # Reused by all blocks: touching new memory takes longer than writing to it.
        rows = max((len(receivers) for receivers in self._blocks(inbox)), default=0) * inbox.k + 1
        memory = new_output(inbox.bank, rows, inbox.d)
        for receivers in self._blocks(inbox):
            part = {name: of_clients(name, value, receivers) for name, value in inputs.items()}
            mine = own[receivers]
            changed = self.change(mine, inbox.of(receivers), memory, **part)
            part = {name: value for name, value in part.items() if not name.startswith("_")}
            # Receivers are renumbered from 0 here; warnings must name the clients of the graph.
            with serving(receivers):
                theirs = self.rule(mine, changed.inbox, **part)
            # State would have to be split by client, in a way that only the rule knows.
            if theirs.state is not None:
                raise ValueError(
                    f"rule must hold no state in {type(self).__name__}, "
                    f"found {theirs.state!r:.80} of {self.rule}"
                )
            model[receivers] = theirs.model
            has_weights &= theirs.weights is not None
            if theirs.weights is not None and inbox.k:
                weights[receivers] = changed.explain(theirs.weights.double())
        return Aggregated(model, as_diagnostic(weights, own) if has_weights else None, state)

    def _check_given(self, inputs: Mapping[str, Any]) -> None:
        """The wrapped rule checks its own inputs, and is named by the error."""

    def _blocks(self, inbox: Inbox) -> Iterator[Tensor]:
        """Receivers whose messages are copied together."""
        receivers = torch.arange(inbox.n, device=inbox.slots.device)
        # Messages are d long, and weights between them k.
        for part in chunks(inbox.n, max(1, inbox.k) * max(inbox.d, inbox.k), CHANGED):
            yield receivers[part]


def check_wrapped(wrapper: object, rule: object) -> None:
    """Raise unless a rule can be wrapped."""
    name = type(wrapper).__name__
    if isinstance(rule, type) or not callable(rule) or isinstance(rule, MultiExchange):
        found = f"the class {rule.__name__}" if isinstance(rule, type) else describe(rule)
        raise ValueError(f"rule must be a rule with one exchange a round, found {found}")
    if isinstance(rule, PerClient):
        raise ValueError(
            f"rule must serve all clients, found PerClient; wrap each of its rules: "
            f"PerClient([{name}(rule), ...])"
        )


def tolerated_of_both(tolerated: int | None, rule: object) -> int | None:
    """The ``tolerated`` of a wrapper, by default that of the wrapped rule; raise if they differ."""
    inner: int | None = getattr(rule, "tolerated", None)
    if tolerated is not None and inner is not None and tolerated != inner:
        raise ValueError(f"tolerated must be that of the wrapped rule, {inner}, found {tolerated}")
    return inner if tolerated is None else tolerated


def new_bank(count: int, sent: int, memory: Tensor) -> Tensor:
    """(count, d) memory for other messages, and a row that is not finite if more were sent."""
    bank = memory[: count + (sent > count)]
    # Kernels write to it in C, which torch does not notice.
    torch.autograd.graph.increment_version(bank)
    bank[count:] = torch.nan
    return bank


def in_order(present: Tensor, bank: Tensor) -> Tensor:
    """Rows of a bank with one message for each present slot, and the last row for other slots.

    Messages that were sent but are absent count for guarantees, so that they stay in the inbox.
    """
    rows = present.flatten().cumsum(0).view(present.shape) - 1
    return rows.where(present, max(0, len(bank) - 1))
