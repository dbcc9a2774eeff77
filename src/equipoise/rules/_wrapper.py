"""The base of wrappers: rules that change the messages before another rule aggregates them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.kernels import chunks, column_blocks, new_output
from equipoise.messages import Inbox
from equipoise.rules._guarantees import serving
from equipoise.rules._receiver_blocks import of_clients
from equipoise.rules.aggregator import Aggregator, MultiExchange
from equipoise.rules.base import Rule, as_diagnostic
from equipoise.rules.per_client import PerClient
from equipoise.topology import Guarantee, Neighbors, NotChecked
from equipoise.types import Aggregated

# Elements of other messages that are made at a time: 16 MiB of float32, which stay in a cache.
CHANGED = 1 << 22
# Columns of a block, at least. Blocks that start at a multiple of this have whole vector registers,
# so that the result of a client does not depend on the size of blocks.
COLUMNS = 1024


class Changed(NamedTuple):
    """Other messages for some receivers.

    Message s of receiver i is row ``slots[i, s]`` of ``rows`` rows, or absent if that is
    ``rows``: messages that were sent but are absent count for guarantees. ``write(columns, out)``
    writes some columns of the rows. ``explain`` turns weights (r, k') of the other messages into
    weights (r, k) of the received ones.
    """

    rows: int
    slots: Tensor
    mask: Tensor
    senders: Tensor
    write: Callable[[slice, Tensor], None]
    explain: Callable[[Tensor], Tensor]


class Wrapper(Rule):
    """A rule that aggregates other messages, which `change` makes of the received ones.

    The other messages are made for a few receivers at a time and, if the wrapped rule is
    coordinate-wise, for some columns at a time.
    """

    rule: Aggregator

    @property
    def isotropic(self) -> bool:  # type: ignore[override]
        """Whether the wrapped rule is; wrappers use norms and angles only."""
        return getattr(self.rule, "isotropic", False)

    @property
    def contains_own(self) -> bool:
        """Whether the aggregate of the wrapped rule contains own."""
        return getattr(self.rule, "contains_own", False)

    @property
    def guarantee(self) -> Guarantee | None:  # type: ignore[override]
        """That of the wrapped rule, if it is about each aggregate."""
        found = getattr(self.rule, "guarantee", None)
        if found is None or isinstance(found, Neighbors):
            return found
        # A consensus needs more than robust aggregates: the messages are not those of the theorem.
        return NotChecked("the theorem is about the rule without wrapper")

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
    def change(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Changed | None:
        """Other messages for the receivers of an inbox, or None if these are the received ones.

        The receivers' own models are (r, d).
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
        memory = Memory(inbox.bank)
        for some in self._blocks(inbox):
            receivers = torch.arange(inbox.n, device=inbox.slots.device)[some]
            part = {name: of_clients(name, value, receivers) for name, value in inputs.items()}
            heard = inbox.of(receivers)
            changed = self.change(own[some], heard, **part)
            part = {name: value for name, value in part.items() if not name.startswith("_")}
            # Receivers are renumbered from 0 here; warnings must name the clients of the graph.
            with serving(receivers):
                if changed is None:
                    theirs = self._apply(own[some], heard, part, model[some])
                else:
                    theirs = self._apply_changed(own[some], changed, part, model[some], memory)
            has_weights &= theirs is not None
            if theirs is not None and inbox.k:
                found = theirs.double()
                weights[some] = found if changed is None else changed.explain(found)
        return Aggregated(model, as_diagnostic(weights, own) if has_weights else None, state)

    def _apply_changed(
        self, own: Tensor, changed: Changed, inputs: Any, target: Tensor, memory: Memory
    ) -> Tensor | None:
        """Write aggregates of other messages to the target; return the weights of these."""
        weights = None
        others = None
        rows = changed.rows + bool((changed.slots[changed.mask] == changed.rows).any())
        width = own.shape[1]
        if self._is_coordinatewise:
            width = max(COLUMNS, CHANGED // max(1, rows) // COLUMNS * COLUMNS)
        for columns in column_blocks(own.shape[1], width):
            bank = memory.matrix(rows, columns.stop - columns.start)
            changed.write(columns, bank[: changed.rows])
            bank[changed.rows :] = torch.nan
            if others is None:
                others = Inbox(bank, changed.slots, changed.mask, changed.senders)
            else:
                others = others.with_bank(bank)
            weights = self._apply(own[:, columns], others, inputs, target[:, columns])
        return weights

    def _apply(self, own: Tensor, inbox: Inbox, inputs: Any, target: Tensor) -> Tensor | None:
        """Write aggregates to the target; return the weights of the messages."""
        theirs = self.rule(own, inbox, **inputs)
        # State would have to be split by client, in a way that only the rule knows.
        if theirs.state is not None:
            raise ValueError(
                f"rule must hold no state in {type(self).__name__}, "
                f"found {theirs.state!r:.80} of {self.rule}"
            )
        target.copy_(theirs.model)
        return theirs.weights

    @property
    def _is_coordinatewise(self) -> bool:
        """Whether the rule may aggregate some columns at a time."""
        return getattr(self.rule, "coordinatewise", False)

    def _check_given(self, inputs: Mapping[str, Any]) -> None:
        """The wrapped rule checks its own inputs, and is named by the error."""

    def _blocks(self, inbox: Inbox) -> Iterator[slice]:
        """Receivers whose messages are changed together."""
        # Messages are d long, or in blocks of columns, and weights between them k.
        width = COLUMNS if self._is_coordinatewise else inbox.d
        return chunks(inbox.n, max(1, inbox.k) * max(width, inbox.k), CHANGED)


class Memory:
    """Memory of matrices that are used one after the other.

    Touching new memory takes longer than writing to it.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._memory = like.new_empty(0)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """A matrix with arbitrary values, which the next call may overwrite."""
        if self._memory.numel() < rows * columns:
            self._memory = new_output(self._like, rows * columns)
        # Kernels write to it in C, which torch does not notice.
        torch.autograd.graph.increment_version(self._memory)
        return self._memory[: rows * columns].view(rows, columns)


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


def in_order(present: Tensor) -> Tensor:
    """Rows of other messages with one for each present slot, and their number for other slots."""
    rows = present.flatten().cumsum(0).view(present.shape) - 1
    return rows.where(present, int(present.sum()))
