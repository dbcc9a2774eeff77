"""The interfaces of equipoise, as prose and protocols.

A *rule* turns a client's own model and the messages it received into an aggregate. One call serves one client,
``rule(own (d,), received (k, d))``, and all clients of a graph, ``rule(own (n, d), inbox)``. Hyper-parameters
live in the rule, everything that changes from round to round is a keyword of the call, and state goes in and comes
out: a rule holds none, so it can be called twice, or by an attacker, without consequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict


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
