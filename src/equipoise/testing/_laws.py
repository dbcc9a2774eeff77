"""Laws that every rule obeys, as functions that raise AssertionError.

``law(rule, own (n, d), inbox, **inputs)`` checks one law on one round; `equipoise.testing.LAWS`
names them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
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
    """One call for all clients equals n calls for one client each."""
    together = rule(own, inbox, **inputs)
    for i in range(len(own)):
        alone = rule_of(rule, i)(own[i], inbox.of(i), **inputs_of(inputs, i))
        # Relative to the largest parameter of all clients: in sums, large terms may cancel.
        require_same_model(together.model[i], alone.model, f"client {i}", unit=size_of(own))
        # A rule without weights has NaN in a batch in which other clients' rules have weights.
        expected = torch.full((inbox.k,), torch.nan) if alone.weights is None else alone.weights
        if together.weights is not None:
            require_same_weights(together.weights[i], expected, f"weights of client {i}")
        else:
            require(alone.weights is None, "client {} has weights alone but not in the batch", i)


def tensor(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """For one client, messages as a tensor (k, d) give the same result as an inbox of them."""
    for i in range(len(own)):
        own_rule = rule_of(rule, i)
        own_inputs = inputs_of(inputs, i)
        # Only the messages that are present, in the order of their slots.
        here = inbox.mask[i]
        received = inbox.bank[inbox.slots[i, here]]
        own_inputs = with_gossip(own_inputs, partial(_chosen, here))
        from_rows = own_rule(own[i], received, **own_inputs)
        from_inbox = own_rule(own[i], Inbox.of_one(received), **own_inputs)
        require_same_model(from_rows.model, from_inbox.model, f"client {i}", unit=size_of(own))
        require_same_weights(from_rows.weights, from_inbox.weights, f"weights of client {i}")


def padding(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Slots that the mask hides change nothing, with any content."""
    # Hidden slots hold NaN, zeros and infinity, under an absent, a valid and an impossible sender.
    values = torch.tensor([torch.nan, 0.0, torch.inf], dtype=own.dtype)
    bank = torch.cat([inbox.bank, values[:, None].expand(3, inbox.d)])
    extra = torch.arange(len(inbox.bank), len(bank)).expand(inbox.n, 3)
    padded = Inbox(
        bank,
        torch.cat([extra, inbox.slots], 1),
        torch.cat([torch.zeros_like(extra, dtype=torch.bool), inbox.mask], 1),
        torch.cat([torch.tensor([-1, 0, 10**6]).expand(inbox.n, 3), inbox.senders], 1),
    )
    plain = rule(own, inbox, **inputs)
    nothing = torch.tensor([torch.nan, 1.0, -1.0]).expand(inbox.n, 3)
    inputs = with_gossip(inputs, lambda weights: torch.cat([nothing.to(weights), weights], 1))
    with_padding = rule(own, padded, **inputs)
    require_same_model(with_padding.model, plain.model, unit=size_of(own))
    if plain.weights is not None:
        require(not with_padding.weights[:, :3].nan_to_num().any(), "a hidden slot has weight")
        require_same_weights(with_padding.weights[:, 3:], plain.weights)


def slot_order(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """The position of a message among the others has no effect."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(inbox.slots.shape, generator=generator).argsort(1)
    plain = rule(own, inbox, **inputs)
    # The reversed order always moves the first and the last message; a random one may not.
    for places in (order, torch.arange(inbox.k).flip(0).expand_as(order)):
        slots = inbox.slots.gather(1, places)
        mask = inbox.mask.gather(1, places)
        senders = inbox.senders.gather(1, places)
        moved_inputs = with_gossip(inputs, partial(_moved, places))
        moved = rule(own, Inbox(inbox.bank, slots, mask, senders), **moved_inputs)
        require_same_model(moved.model, plain.model, unit=size_of(own))
        expected = None if plain.weights is None else plain.weights.gather(1, places)
        require_same_weights(moved.weights, expected)


def starvation(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Without messages, or with only non-finite ones, the aggregate is the own model."""
    masked = Inbox(inbox.bank, inbox.slots, torch.zeros_like(inbox.mask), inbox.senders)
    nonfinite_only = with_bank(inbox, torch.full_like(inbox.bank, torch.nan))
    without_slots = Inbox(inbox.bank[:0], inbox.slots[:, :0])
    # Three ways to receive nothing: hidden slots, non-finite messages, and no slots.
    for starved in (masked, nonfinite_only, without_slots):
        out = rule(own, starved, **with_gossip(inputs, partial(_first, starved.k)))
        require_same_model(out.model, own, unit=size_of(own))
        has_weight = out.weights is not None and out.weights.nan_to_num().any()
        require(not has_weight, "an absent message has weight")


def nonfinite(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """A message with a NaN or an infinity counts as absent."""
    for value in (torch.nan, torch.inf):
        bank = inbox.bank.clone()
        # Every other message, in its last coordinate: a test of the first one is not enough.
        bank[::2, -1] = value
        poisoned = with_bank(inbox, bank)
        without = Inbox(bank, inbox.slots, poisoned.present, inbox.senders)
        found = rule(own, poisoned, **inputs)
        expected = rule(own, without, **inputs)
        require_same_model(found.model, expected.model, unit=size_of(own))
        require_same_weights(found.weights, expected.weights)


def consensus(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """If every message is the receiver's own model, the aggregate is that model."""
    _require_agreement(rule, own, inbox, own, **inputs)


def agreement(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """If all messages are one model near own, of the same norm, the aggregate is that model.

    The round input ``tolerated`` is 0. If the rule contains own, the aggregate is between the two.
    """
    length = own.norm(dim=1, keepdim=True)
    # 1e-3 of the length is far above rounding and far below every radius of acceptance.
    nearby = own.roll(1, 1).sign() * 1e-3 * length + own
    nearby = nearby * (length / nearby.norm(dim=1, keepdim=True)).nan_to_num(1.0)
    _require_agreement(rule, own, inbox, nearby, **inputs | {"tolerated": 0})


def purity(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """A call modifies no input, random state or autograd mode, and gives the same result again."""
    given = {"own": own}
    given |= {name: getattr(inbox, name) for name in ("bank", "slots", "mask", "senders")}
    given |= {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    before = {name: value.clone() for name, value in given.items()}
    # Shallow: the rule must keep the identical objects.
    settings = copy.copy(getattr(rule, "__dict__", {}))
    random_state = torch.random.get_rng_state()
    grad_enabled = torch.is_grad_enabled()
    # Twice: a rule that remembers the first call may answer the second differently.
    first = rule(own, inbox, **inputs)
    second = rule(own, inbox, **inputs)
    for name, value in given.items():
        require(same_bits(value, before[name]), "{} was modified", name)
    same_state = torch.equal(torch.random.get_rng_state(), random_state)
    require(same_state, "the global generator was used")
    require(torch.is_grad_enabled() == grad_enabled, "grad mode was changed")
    _require_same_settings(settings, getattr(rule, "__dict__", {}))
    _require_same_bits(first, second)
    require(not first.model.requires_grad, "the aggregate requires gradients")
    shared = shares_storage(first.model, own, inbox.bank)
    require(not shared, "the aggregate shares memory with an input")


def kept(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """The aggregate keeps shape, dtype and device; weights are one number in [0, 1] per slot."""
    out = rule(own, inbox, **inputs)
    for name in ("shape", "dtype", "device"):
        found = getattr(out.model, name)
        expected = getattr(own, name)
        require(found == expected, "the aggregate has {} {}, expected {}", name, found, expected)
    finite = out.model.isfinite().all()
    require(finite, "the aggregate of finite models is not finite: {}", out.model)
    if out.weights is not None:
        _require_weights(out.weights, inbox)


def weights_explain(
    rule: Any,
    own: Tensor,
    inbox: Inbox,
    as_used: Callable[[Tensor, Tensor], Tensor] | None = None,
    **inputs: Any,
) -> None:
    """The aggregate is the weighted sum of own and the messages, if the rule reports weights.

    ``as_used(own (d,), messages (c, d))`` transforms messages as the rule does before averaging.
    """
    out = rule(own, inbox, **inputs)
    if out.weights is None:
        return
    for i in range(len(own)):
        used = out.weights[i].nan_to_num() != 0
        require(inbox.mask[i, used].all(), "client {} gave weight to a hidden slot", i)
        if out.weights[i].isnan().any():
            continue  # a client of PerClient whose rule has no weights
        # In float64, so that only the rounding of the rule remains.
        weights = out.weights[i, used].double()
        mine = own[i].double()
        messages = inbox.bank[inbox.slots[i, used]].double()
        messages = messages if as_used is None else as_used(mine, messages)
        explained = (1 - weights.sum()) * mine + (weights[:, None] * messages).sum(0)
        require_same_model(out.model[i], explained.to(own.dtype), f"client {i}", unit=size_of(own))


# Parts of a rule and of a round.


def rule_of(rule: Any, i: int) -> Any:
    """Return the rule of client ``i``: one of PerClient's, or the rule itself."""
    return rule.rules[i] if hasattr(rule, "rules") else rule


def inputs_of(inputs: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the round inputs of client ``i``."""
    mine = dict(inputs)
    for name in ("tolerated", "update", "gossip"):
        # One value per client, (n,), (n, d) or (n, k); a single number is for all.
        if isinstance(mine.get(name), Tensor) and mine[name].dim() > 0:
            mine[name] = int(mine[name][i]) if name == "tolerated" else mine[name][i]
    if "loss_of" in mine:
        # For one client, a rule calls loss_of(models) without ids.
        loss_of = inputs["loss_of"]
        mine["loss_of"] = lambda models: loss_of(models, torch.full((len(models),), i))
    return mine


def with_gossip(inputs: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the round inputs with other gossip weights, as they belong to other slots."""
    given = inputs.get("gossip")
    return inputs if given is None else inputs | {"gossip": change(given)}


def _chosen(mask: Tensor, weights: Tensor) -> Tensor:
    return weights[mask]


def _moved(places: Tensor, weights: Tensor) -> Tensor:
    return weights.gather(1, places)


def _first(k: int, weights: Tensor) -> Tensor:
    return weights[:, :k]


def with_bank(inbox: Inbox, bank: Tensor) -> Inbox:
    """Return the inbox with other messages along the same edges."""
    return Inbox(bank, inbox.slots, inbox.mask, inbox.senders)


def _require_agreement(
    rule: Any, own: Tensor, inbox: Inbox, messages: Tensor, **inputs: Any
) -> None:
    """Require that client i, which receives only ``messages[i]``, adopts it."""
    slots = torch.arange(inbox.n)[:, None].expand(inbox.n, inbox.k)
    same = Inbox(messages, slots, inbox.mask, inbox.senders)
    # Without messages a client keeps its own model: see `starvation`.
    expected = torch.where(inbox.mask.any(1)[:, None], messages, own)
    found = rule(own, same, **inputs).model
    for i in range(len(own)):
        wanted = expected[i]
        if getattr(rule_of(rule, i), "contains_own", False):
            low = torch.minimum(own[i], wanted)
            wanted = found[i].clamp(low, torch.maximum(own[i], wanted))
        require_same_model(found[i], wanted, f"client {i}", unit=size_of(own))


def _require_same_settings(before: dict[str, Any], after: dict[str, Any]) -> None:
    names = before.keys() | after.keys()
    changed = sorted(name for name in names if before.get(name) is not after.get(name))
    require(not changed, "the rule changed its {}", ", ".join(changed))


def _require_same_bits(first: Any, second: Any) -> None:
    same = same_bits(first.model, second.model)
    require(same, "two calls differ: {} and {}", first.model, second.model)
    if first.weights is None or second.weights is None:
        both = first.weights is second.weights
        require(both, "one of two calls has weights, the other has none")
    else:
        require(same_bits(first.weights, second.weights), "the weights of two calls differ")


def _require_weights(weights: Tensor, inbox: Inbox) -> None:
    shape = inbox.slots.shape
    require(weights.shape == shape, "weights {}, expected {}", weights.shape, shape)
    floating = weights.is_floating_point()
    require(floating, "weights {}, expected floating-point numbers", weights.dtype)
    device = inbox.bank.device
    require(weights.device == device, "weights on {}, expected {}", weights.device, device)
    inside = ((weights >= 0) & (weights <= 1) | weights.isnan()).all()
    require(inside, "weights outside of 0 to 1: {}", weights)
    sums = weights.double().nan_to_num().sum(1)
    # Weights in half precision, of up to six messages, may sum to a little more than 1.
    require((sums <= 1 + 1e-3).all(), "weights sum to more than 1: {}", weights)
