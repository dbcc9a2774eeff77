"""The types that rules take and return, and the concepts behind them.

A *rule* turns a client's own model and the messages that it received into an aggregate. One call
serves one client, ``rule(own (d,), received (k, d))``, and all clients of a graph,
``rule(own (n, d), inbox)``. Hyper-parameters are fields of the rule. Values that change from round
to round are keywords of the call. State is an input and an output: a rule holds none, so that any
caller, attackers included, can call it twice without side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict


# Compared by identity: `==` of tensors has no single truth value.
@dataclass(frozen=True, eq=False)
class Aggregated:
    """The result of a rule.

    ``model`` is the aggregate, in the shape and dtype of ``own``. ``weights`` has one number per
    slot, the weight of its message; 0 means rejected or absent. The remainder,
    ``1 - weights.sum(-1)``, is the weight of the client's own model. ``weights`` is ``None`` for
    coordinate-wise rules. ``state`` is to be passed to the call of the next round.
    """

    model: Tensor
    weights: Tensor | None = None
    state: Any = None


class RoundInputs(TypedDict, total=False):
    """The keywords of a call of a rule, which ignores those that it does not need.

    - ``t, total``: the round, from 0, and the number of rounds.
    - ``tolerated``: how many malicious neighbors to expect, one number or one per client; it takes
      precedence over the rule's own.
    - ``samples``: the number of training examples of each client, by id.
    - ``gossip``: the weight of each message in gossip averaging, one number per slot, (n, k), or
      (k,) for one client: `Topology.gossip_weights` returns them. They are at least 0, and those of
      a client sum to at most 1; own has the remainder, and the weight of every message that is
      absent. Without this input, rules that read it give all present messages and own equal
      weights.
    - ``loss_of``: losses of candidate models on the data of the receiver. For one client it is
      ``loss_of(models (c, d)) -> (c,)``. For many clients it is
      ``loss_of(models (c, d), clients (c,)) -> (c,)``, which evaluates model j on the data of
      ``clients[j]``.
    - ``update``: the change that local training made to own.
    - ``generator``: the source of randomness.
    - ``state``: the state that the rule returned in the previous round.
    - ``out``: a tensor like own for the aggregate. Its memory, from the first to the last element,
      must not contain any part of own, the messages or other inputs. For large models this saves
      the allocation of new memory, which can take longer than the arithmetic.
    """

    # The type allows any subset. A missing input is found at run time, by the rule's ``needs``.
    t: int
    total: int
    tolerated: int | Tensor
    samples: Tensor
    gossip: Tensor
    loss_of: Callable[..., Tensor]
    update: Tensor
    generator: torch.Generator
    state: Any
    out: Tensor
