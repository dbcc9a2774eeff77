"""The interfaces of equipoise, as prose and protocols.

A *rule* turns a client's own model and the messages it received into an aggregate. One call serves one client,
``rule(own (d,), received (k, d))``, and all clients of a graph, ``rule(own (n, d), inbox)``. Hyper-parameters
live in the rule, everything that changes from round to round is a keyword of the call, and state goes in and comes
out: a rule holds none, so it can be called twice, or by an attacker, without consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

if TYPE_CHECKING:
    from equipoise.attacks import Knowledge
    from equipoise.messages import Inbox, Lies


@dataclass(frozen=True, eq=False)
class Aggregated:
    """What a rule returns.

    ``model`` is the aggregate, shaped and typed like ``own``. ``weights`` is what each message contributed, one number
    per slot, and ``1 - weights.sum(-1)`` is what own contributed; 0 is a message that was rejected or absent. It is
    ``None`` for rules that choose coordinate by coordinate. ``state`` is what to pass back in the next round.
    """

    model: Tensor
    weights: Tensor | None = None
    state: Any = None


class RoundInputs(TypedDict, total=False):
    """What a rule may ask for, by keyword; it ignores what it does not need.

    ``t, total``: the round, from 0, and the number of rounds. ``tolerated``: how many malicious neighbours to expect,
    one number or one per client; it overrides the rule's own. ``samples``: training examples of every sender, by client
    id. ``loss_of``: losses of candidate models on the receiver's data, ``loss_of(models (c, d)) -> (c,)`` in the
    one-client call, ``loss_of(models (c, d), clients (c,)) -> (c,)`` for many clients, where candidate j is judged
    on the data of ``clients[j]``. ``update``: the change that local training made to own. ``generator``: the source
    of randomness. ``state``: what the rule returned as state in the last round. ``out``: a tensor like own to write the
    aggregate to, with memory of its own: between its first and its last element there must be none of own, of the
    messages, or of other inputs. For large models that saves the system's clearing of new memory, which can take longer
    than the arithmetic.
    """

    t: int
    total: int
    tolerated: int | Tensor
    samples: Tensor
    loss_of: Callable[..., Tensor]
    update: Tensor
    generator: torch.Generator
    state: Any
    out: Tensor


@runtime_checkable
class Aggregator(Protocol):
    """A rule that talks once a round."""

    def __call__(self, own: Tensor, received: Tensor | Inbox, **inputs: Unpack[RoundInputs]) -> Aggregated:
        """Aggregate for one client (``own (d,)``) or for all clients of an inbox (``own (n, d)``)."""
        ...


@runtime_checkable
class MultiExchange(Protocol):
    """A rule that talks several times a round.

    ``exchanges`` is a generator: it yields what every client sends, is sent back what they received, and returns the
    aggregate. The model to mix the aggregate with is the last one that it yielded. A rule that first exchanges updates
    may say so, to attackers of its messages, in a method ``sends_updates(exchange, t) -> bool``.
    """

    def exchanges(self, own: Tensor, **inputs: Unpack[RoundInputs]) -> Generator[Tensor, Tensor | Inbox, Aggregated]:
        """Yield messages, receive inboxes, return the aggregate."""
        ...


@runtime_checkable
class DataAttack(Protocol):
    """An attack on what a malicious client trains on; it then trains and sends like everybody else."""

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Poisoned copies of a malicious client's examples and labels; the given tensors stay as they are."""
        ...


@runtime_checkable
class MessageAttack(Protocol):
    """An attack on what malicious clients send.

    The adversary is rushing and knows everything: see `equipoise.attacks.Knowledge`. It returns lies per sender, per
    receiver or per edge, or None to tell the truth. Whatever it returns, only malicious clients' messages change:
    that is decided where messages are delivered.
    """

    def forge(self, known: Knowledge) -> Lies | None:
        """What malicious clients say this round instead of their models."""
        ...


class Trainer(Protocol):
    """Local training of all clients: any function from models and round to models.

    A trainer may have more, which `equipoise.Simulator` uses if it is there: ``poisoned(attack, malicious)``, a
    trainer whose malicious clients train on poisoned examples; ``loss_of(t)``, the losses that UBAR asks for;
    ``samples``, how many examples every client has; ``restarted()``, the trainer as it was before
    its first round.

    Three more methods are for checkpoints. ``state_dict()``, a flat dict of tensors, and
    ``load_state_dict(state)`` save and restore all that the trainer remembers from round to round,
    such as the moments of Adam. ``fingerprint()``, a string that identifies the training data,
    makes it an error to resume with other data.

    Using a checkpoint with a trainer that has no ``state_dict`` warns that a resumed run may differ.
    If the models and the round alone determine what it returns, set ``stateless = True`` on the
    trainer, which may be a function.
    """

    def __call__(self, models: Tensor, t: int) -> Tensor:
        """The models (n, d) after local training in round t; the given ones stay as they are."""
        ...


Attack: TypeAlias = DataAttack | MessageAttack
"""An attack on data, on messages, or, if it has both methods, on both."""
