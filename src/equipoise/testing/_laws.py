"""Laws that every rule obeys, as functions that raise AssertionError.

``law(rule, own (n, d), inbox, **inputs)`` checks one law on one round; `equipoise.testing.LAWS` names them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.messages import Inbox
from equipoise.testing._asserts import (
    require,
    require_same_model,
    require_same_weights,
    same_bits,
    shares_storage,
    size_of,
)


def batch(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """One call for all clients is n calls for one client."""
    together = rule(own, inbox, **inputs)
    for i in range(len(own)):
        alone = rule_of(rule, i)(own[i], inbox.of(i), **inputs_of(inputs, i))
        require_same_model(together.model[i], alone.model, f"client {i}", unit=size_of(own))
        expected = torch.full((inbox.k,), torch.nan) if alone.weights is None else alone.weights
        if together.weights is not None:
            require_same_weights(together.weights[i], expected, f"weights of client {i}")
        else:
            require(alone.weights is None, "client {} has weights alone but not in the batch", i)


def tensor(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """For one client, messages as the rows of a tensor (k, d) are the same as an inbox of them."""
    for i in range(len(own)):
        mine, asked = rule_of(rule, i), inputs_of(inputs, i)
        received = inbox.bank[inbox.slots[i, inbox.mask[i]]]
        rows, boxed = mine(own[i], received, **asked), mine(own[i], Inbox.of_one(received), **asked)
        require_same_model(rows.model, boxed.model, f"client {i}", unit=size_of(own))
        require_same_weights(rows.weights, boxed.weights, f"weights of client {i}")


def padding(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Slots that the mask hides change nothing, whatever they hold."""
    rubbish = torch.stack([torch.full((inbox.d,), value, dtype=own.dtype) for value in (torch.nan, 0.0, torch.inf)])
    bank = torch.cat([inbox.bank, rubbish])
    extra = torch.arange(len(inbox.bank), len(bank)).expand(inbox.n, 3)
    padded = Inbox(
        bank,
        torch.cat([extra, inbox.slots], 1),
        torch.cat([torch.zeros_like(extra, dtype=torch.bool), inbox.mask], 1),
        torch.cat([torch.tensor([-1, 0, 10**6]).expand(inbox.n, 3), inbox.senders], 1),
    )
    plain, with_padding = rule(own, inbox, **inputs), rule(own, padded, **inputs)
    require_same_model(with_padding.model, plain.model, unit=size_of(own))
    if plain.weights is not None:
        require(not with_padding.weights[:, :3].nan_to_num().any(), "a hidden slot has weight")
        require_same_weights(with_padding.weights[:, 3:], plain.weights)


def slot_order(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """The position of a message among the others means nothing."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(inbox.slots.shape, generator=generator).argsort(1)
    plain = rule(own, inbox, **inputs)
    for places in (order, torch.arange(inbox.k).flip(0).expand_as(order)):
        slots, mask, senders = (x.gather(1, places) for x in (inbox.slots, inbox.mask, inbox.senders))
        moved = rule(own, Inbox(inbox.bank, slots, mask, senders), **inputs)
        require_same_model(moved.model, plain.model, unit=size_of(own))
        require_same_weights(moved.weights, None if plain.weights is None else plain.weights.gather(1, places))


def starvation(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Without messages, or with unreadable ones only, the aggregate is own."""
    nobody = Inbox(inbox.bank, inbox.slots, torch.zeros_like(inbox.mask), inbox.senders)
    unreadable = with_bank(inbox, torch.full_like(inbox.bank, torch.nan))
    nowhere = Inbox(inbox.bank[:0], inbox.slots[:, :0])
    for starved in (nobody, unreadable, nowhere):
        out = rule(own, starved, **inputs)
        require_same_model(out.model, own, unit=size_of(own))
        require(out.weights is None or not out.weights.nan_to_num().any(), "an absent message has weight")


def nonfinite(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """A message with a NaN or an infinity is absent."""
    for value in (torch.nan, torch.inf):
        bank = inbox.bank.clone()
        bank[::2, -1] = value
        poisoned = with_bank(inbox, bank)
        without = Inbox(bank, inbox.slots, poisoned.present, inbox.senders)
        found, expected = rule(own, poisoned, **inputs), rule(own, without, **inputs)
        require_same_model(found.model, expected.model, unit=size_of(own))
        require_same_weights(found.weights, expected.weights)


def consensus(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Where every message is the receiver's own model, the aggregate is that model."""
    _agreed(rule, own, inbox, own, **inputs)


def agreement(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Where all messages are one model, near own and of its norm, and none is to be tolerated, it is the aggregate."""
    nearby = own.roll(1, 1).sign() * 1e-3 * own.norm(dim=1, keepdim=True) + own
    nearby = nearby * (own.norm(dim=1, keepdim=True) / nearby.norm(dim=1, keepdim=True)).nan_to_num(1.0)
    _agreed(rule, own, inbox, nearby, **inputs | {"tolerated": 0})


def purity(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """A call changes nothing, leaves randomness and autograd alone, and can be repeated."""
    given = {"own": own, "bank": inbox.bank, "slots": inbox.slots, "mask": inbox.mask, "senders": inbox.senders}
    given |= {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    before = {name: value.clone() for name, value in given.items()}
    settings = copy.copy(getattr(rule, "__dict__", {}))
    random_state, grad_enabled = torch.random.get_rng_state(), torch.is_grad_enabled()
    first, second = rule(own, inbox, **inputs), rule(own, inbox, **inputs)
    for name, value in given.items():
        require(same_bits(value, before[name]), "{} was modified", name)
    require(torch.equal(torch.random.get_rng_state(), random_state), "the global generator was used")
    require(torch.is_grad_enabled() == grad_enabled, "grad mode was changed")
    _require_same_settings(settings, getattr(rule, "__dict__", {}))
    _require_same_bits(first, second)
    require(not first.model.requires_grad, "the aggregate requires gradients")
    require(not shares_storage(first.model, own, inbox.bank), "the aggregate shares memory with an input")


def kept(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """The aggregate has own's shape, dtype and device; weights are one number per slot, from 0 to 1."""
    out = rule(own, inbox, **inputs)
    for name in ("shape", "dtype", "device"):
        found, expected = getattr(out.model, name), getattr(own, name)
        require(found == expected, "the aggregate has {} {}, expected {}", name, found, expected)
    require(out.model.isfinite().all(), "the aggregate of finite models is not finite: {}", out.model)
    if out.weights is not None:
        _require_weights(out.weights, inbox)


def weights_explain(
    rule: Any, own: Tensor, inbox: Inbox, as_used: Callable[[Tensor, Tensor], Tensor] | None = None, **inputs: Any
) -> None:
    """The aggregate is the weighted sum of own and the messages, if the rule reports weights.

    ``as_used(own (d,), messages (c, d))`` is what the rule makes of messages before it averages them.
    """
    out = rule(own, inbox, **inputs)
    if out.weights is None:
        return
    for i in range(len(own)):
        used = out.weights[i].nan_to_num() != 0
        require(inbox.mask[i, used].all(), "client {} gave weight to a hidden slot", i)
        if out.weights[i].isnan().any():
            continue  # PerClient, for a client whose rule has no weights
        weights, mine = out.weights[i, used].double(), own[i].double()
        messages = inbox.bank[inbox.slots[i, used]].double()
        messages = messages if as_used is None else as_used(mine, messages)
        explained = (1 - weights.sum()) * mine + (weights[:, None] * messages).sum(0)
        require_same_model(out.model[i], explained.to(own.dtype), f"client {i}", unit=size_of(own))


# How laws see a rule and a round.


def rule_of(rule: Any, i: int) -> Any:
    """The rule of client ``i``: one of PerClient's, or the rule itself."""
    return rule.rules[i] if hasattr(rule, "rules") else rule


def inputs_of(inputs: dict[str, Any], i: int) -> dict[str, Any]:
    """The round inputs of client ``i``, from those of all clients."""
    mine = dict(inputs)
    for name in ("tolerated", "update"):
        if isinstance(mine.get(name), Tensor) and mine[name].dim() > 0:
            mine[name] = int(mine[name][i]) if name == "tolerated" else mine[name][i]
    if "loss_of" in mine:
        loss_of = inputs["loss_of"]
        mine["loss_of"] = lambda models: loss_of(models, torch.full((len(models),), i))
    return mine


def with_bank(inbox: Inbox, bank: Tensor) -> Inbox:
    """The same edges with other messages."""
    return Inbox(bank, inbox.slots, inbox.mask, inbox.senders)


def _agreed(rule: Any, own: Tensor, inbox: Inbox, messages: Tensor, **inputs: Any) -> None:
    """Client i receives ``messages[i]`` and nothing else."""
    same = Inbox(messages, torch.arange(inbox.n)[:, None].expand(inbox.n, inbox.k), inbox.mask, inbox.senders)
    expected = torch.where(inbox.mask.any(1)[:, None], messages, own)
    require_same_model(rule(own, same, **inputs).model, expected, unit=size_of(own))


def _require_same_settings(before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) is not after.get(name))
    require(not changed, "the rule changed its {}", ", ".join(changed))


def _require_same_bits(first: Any, second: Any) -> None:
    require(same_bits(first.model, second.model), "two calls differ: {} and {}", first.model, second.model)
    if first.weights is None or second.weights is None:
        require(first.weights is second.weights, "one of two calls has weights, the other has none")
    else:
        require(same_bits(first.weights, second.weights), "the weights of two calls differ")


def _require_weights(weights: Tensor, inbox: Inbox) -> None:
    require(weights.shape == inbox.slots.shape, "weights {}, expected {}", weights.shape, inbox.slots.shape)
    require(weights.is_floating_point(), "weights {}, expected floating-point numbers", weights.dtype)
    require(weights.device == inbox.bank.device, "weights on {}, expected {}", weights.device, inbox.bank.device)
    require(((weights >= 0) & (weights <= 1) | weights.isnan()).all(), "weights outside of 0 to 1: {}", weights)
    sums = weights.double().nan_to_num().sum(1)
    require((sums <= 1 + 1e-3).all(), "weights sum to more than 1: {}", weights)
