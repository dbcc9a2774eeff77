"""Laws that rules obey, as functions that raise AssertionError.

``law(rule, own (n, d), inbox, **inputs)`` checks one law on one round. The first group holds for every rule; the laws
below it hold for the rules that their docstrings name. Data without exact ties is needed where a law moves the models
(scaling by a power of two moves nothing).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise import Inbox

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


# For every rule.


def batch(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """One call for all clients is n calls for one client."""
    together = rule(own, inbox, **inputs)
    for i in range(len(own)):
        alone = rule_of(rule, i)(own[i], inbox.of(i), **inputs_of(inputs, i))
        assert_same_model(together.model[i], alone.model, f"client {i}", unit=size_of(own))
        expected = torch.full((1, inbox.k), torch.nan) if alone.weights is None else alone.weights.reshape(1, -1)
        if together.weights is not None:
            assert_same_weights(together.weights[i : i + 1], expected, f"client {i}")
        else:
            assert alone.weights is None, f"client {i} has weights alone but not in the batch"


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
    assert_same_model(with_padding.model, plain.model, unit=size_of(own))
    if plain.weights is not None:
        assert not with_padding.weights[:, :3].nan_to_num().any(), "a hidden slot has weight"
        assert_same_weights(with_padding.weights[:, 3:], plain.weights)


def slot_order(rule: Any, own: Tensor, inbox: Inbox, order: Tensor, **inputs: Any) -> None:
    """The position of a message among the others means nothing; ``order (n, k)`` permutes every row."""
    shuffled = Inbox(inbox.bank, *(x.gather(1, order) for x in (inbox.slots, inbox.mask, inbox.senders)))
    plain, moved = rule(own, inbox, **inputs), rule(own, shuffled, **inputs)
    assert_same_model(moved.model, plain.model, unit=size_of(own))
    if plain.weights is not None:
        assert_same_weights(moved.weights, plain.weights.gather(1, order))


def starvation(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Without messages, or with unreadable ones only, the aggregate is own."""
    nobody = Inbox(inbox.bank, inbox.slots, torch.zeros_like(inbox.mask), inbox.senders)
    unreadable = Inbox(torch.full_like(inbox.bank, torch.nan), inbox.slots, inbox.mask, inbox.senders)
    nowhere = Inbox(inbox.bank[:0], inbox.slots[:, :0])
    for starved in (nobody, unreadable, nowhere):
        out = rule(own, starved, **inputs)
        assert_same_model(out.model, own, unit=size_of(own))
        assert out.weights is None or not out.weights.nan_to_num().any(), "an absent message has weight"


def consensus(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Where every message is the receiver's own model, the aggregate is that model."""
    agreement(rule, own, inbox, own, **inputs)


def agreement(rule: Any, own: Tensor, inbox: Inbox, messages: Tensor, **inputs: Any) -> None:
    """Where client i receives ``messages[i]`` and nothing else, the aggregate is that message, if it is acceptable."""
    same = Inbox(messages, torch.arange(inbox.n)[:, None].expand(inbox.n, inbox.k), inbox.mask, inbox.senders)
    expected = torch.where(inbox.mask.any(1)[:, None], messages, own)
    assert_same_model(rule(own, same, **inputs).model, expected, unit=size_of(own))


def purity(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """A call changes nothing, leaves randomness and autograd alone, and can be repeated."""
    given = {"own": own, "bank": inbox.bank, "slots": inbox.slots, "mask": inbox.mask, "senders": inbox.senders}
    given |= {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    before = {name: value.clone() for name, value in given.items()}
    settings = copy.copy(vars(rule)) if hasattr(rule, "__dict__") else {}
    random_state, grad_enabled = torch.random.get_rng_state(), torch.is_grad_enabled()
    first, second = rule(own, inbox, **inputs), rule(own, inbox, **inputs)
    for name, value in given.items():
        assert same_bits(value, before[name]), f"{name} was modified"
    assert torch.equal(torch.random.get_rng_state(), random_state), "the global generator was used"
    assert torch.is_grad_enabled() == grad_enabled, "grad mode was changed"
    assert getattr(rule, "__dict__", {}).keys() == settings.keys(), "the rule changed"
    assert same_bits(first.model, second.model), "two calls differ"
    assert (first.weights is None) == (second.weights is None)
    assert first.weights is None or same_bits(first.weights, second.weights), "the weights of two calls differ"
    assert not first.model.requires_grad
    assert not shares_storage(first.model, own, inbox.bank), "the result shares memory with an input"


def written_to_out(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """``out`` receives the same aggregate, whatever was in it, for all clients and for one."""
    calls = [(rule, own, inbox, inputs)]
    calls += [(rule_of(rule, i), own[i], inbox.of(i), inputs_of(inputs, i)) for i in range(len(own))][:2]
    for one, mine, received, asked in calls:
        if mine.dim() == 1 and not mine.isfinite().all():
            continue
        out = torch.full_like(mine, torch.nan)
        written = one(mine, received, out=out, **asked).model
        assert written.data_ptr() == out.data_ptr(), "the aggregate is not in out"
        assert same_bits(out, one(mine, received, **asked).model), "out changes the aggregate"


def kept(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """The aggregate has own's shape, dtype and device; weights are one number per slot, from 0 to 1."""
    out = rule(own, inbox, **inputs)
    assert (out.model.shape, out.model.dtype, out.model.device) == (own.shape, own.dtype, own.device)
    assert out.model.isfinite().all(), "the aggregate of finite models is not finite"
    if out.weights is not None:
        assert out.weights.shape == inbox.slots.shape
        assert out.weights.is_floating_point()
        assert out.weights.device == own.device
        assert ((out.weights >= 0) & (out.weights <= 1) | out.weights.isnan()).all()
        assert (out.weights.double().sum(1) <= 1 + 1e-3).logical_or(out.weights.isnan().any(1)).all()


# For some rules.


def weights_explain(
    rule: Any, own: Tensor, inbox: Inbox, as_used: Callable[[Tensor, Tensor], Tensor] | None = None, **inputs: Any
) -> None:
    """The aggregate is the weighted sum of own and the messages: all rules that report weights.

    ``as_used(own (d,), messages (c, d))`` is what the rule makes of messages before it averages them; `to_own_norm`
    for FLTrust and `at_most_own_norm` for SCClip(mode="norm").
    """
    out = rule(own, inbox, **inputs)
    for i in range(len(own)):
        used = out.weights[i] != 0
        weights = out.weights[i, used].double()
        messages, mine = inbox.bank[inbox.slots[i, used]].double(), own[i].double()
        assert inbox.mask[i, used].all(), f"client {i} gave weight to a hidden slot"
        messages = messages if as_used is None else as_used(mine, messages)
        explained = (1 - weights.sum()) * mine + (weights[:, None] * messages).sum(0)
        assert_same_model(out.model[i], explained.to(own.dtype), f"client {i}", unit=size_of(own))


def to_own_norm(own: Tensor, messages: Tensor) -> Tensor:
    """Messages rescaled to the norm of own."""
    return messages * (own.norm() / messages.norm(dim=1, keepdim=True))


def at_most_own_norm(own: Tensor, messages: Tensor) -> Tensor:
    """Messages whose norm is larger than that of own, shortened to it."""
    return messages * (own.norm() / messages.norm(dim=1, keepdim=True)).nan_to_num(1.0).clamp(max=1.0)


def scale(rule: Any, own: Tensor, inbox: Inbox, factor: float, **inputs: Any) -> None:
    """Models in other units: all rules but UBAR, whose losses have units of their own; a number for tau scales too."""
    scaled_rule = replace(rule, tau=rule.tau * factor) if isinstance(getattr(rule, "tau", None), float) else rule
    plain = rule(own, inbox, **inputs)
    scaled = scaled_rule(own * factor, with_bank(inbox, inbox.bank * factor), **inputs)
    assert_same_model(scaled.model, plain.model * factor, unit=factor * size_of(own))
    if plain.weights is not None:
        assert_same_weights(scaled.weights, plain.weights)


def translation(rule: Any, own: Tensor, inbox: Inbox, shift: Tensor, **inputs: Any) -> None:
    """Models around another origin: FedAvg, Krum, TrimmedMean, Median, SCClip(mode="difference")."""
    plain = rule(own, inbox, **inputs)
    moved = rule(own + shift, with_bank(inbox, inbox.bank + shift), **inputs)
    assert_same_model(moved.model, plain.model + shift, unit=size_of(own) + size_of(shift))
    if plain.weights is not None:
        assert_same_weights(moved.weights, plain.weights)


def rotation(rule: Any, own: Tensor, inbox: Inbox, orthogonal: Tensor, **inputs: Any) -> None:
    """Models in another basis: all rules that look at norms, distances and angles only."""
    plain = rule(own, inbox, **inputs)
    turned = rule(rotated(own, orthogonal), with_bank(inbox, rotated(inbox.bank, orthogonal)), **inputs)
    expected = rotated(plain.model, orthogonal)
    assert_same_model(turned.model, expected, unit=size_of(own))
    if plain.weights is not None:
        assert_same_weights(turned.weights, plain.weights)


def rotated(models: Tensor, orthogonal: Tensor) -> Tensor:
    """Every row in another basis; one by one, so that equal rows stay equal."""
    return torch.stack([row @ orthogonal for row in models]) if len(models) else models


# Balance.


def balance_bound(rule: Any, own: Tensor, inbox: Inbox, t: int, total: int, **inputs: Any) -> None:
    """Whatever is sent, ||aggregate - own|| <= gamma * exp(-kappa * progress(t, total)) * ||own||."""
    moved = (rule(own, inbox, t=t, total=total, **inputs).model.double() - own.double()).norm(dim=1)
    sizes = own.double().norm(dim=1)
    radius = rule.gamma * math.exp(-rule.kappa * rule.progress(t, total)) * sizes
    assert (moved <= radius + TOLERANCE[own.dtype] * sizes).all(), f"moved by {moved}, allowed {radius}"


def balance_accepts(rule: Any, own: Tensor, inbox: Inbox, t: int, total: int, **inputs: Any) -> None:
    """Accepted is what is within the threshold, each with the same weight, whatever else was sent."""
    weights = rule(own, inbox, t=t, total=total, **inputs).weights
    fraction = rule.gamma * math.exp(-rule.kappa * rule.progress(t, total))
    for i in range(len(own)):
        accepted = weights[i] > 0
        distances = (inbox.bank[inbox.slots[i]].double() - own[i].double()).norm(dim=1)
        radius = fraction * own[i].double().norm()
        slack = 1e-6 * radius
        assert not (accepted & ~inbox.mask[i]).any(), f"client {i} accepted a hidden slot"
        assert (distances[accepted] <= radius + slack).all(), f"client {i} accepted a message that is too far"
        rejected = inbox.mask[i] & ~accepted
        assert not (distances[rejected] <= radius - slack).any(), f"client {i} rejected a message that is close"
        share = torch.full_like(weights[i][accepted], 1 / max(1, int(accepted.sum())))
        assert_same_weights(weights[i][accepted][None], share[None], f"client {i}")


def accepts_separately(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Whether a message is accepted does not depend on the others: Balance."""
    together = rule(own, inbox, **inputs).weights > 0
    for s in range(inbox.k):
        column = Inbox(inbox.bank, inbox.slots[:, s : s + 1], inbox.mask[:, s : s + 1], inbox.senders[:, s : s + 1])
        alone = rule(own, column, **inputs).weights > 0
        assert torch.equal(alone[:, 0], together[:, s]), f"slot {s} is judged by its company"


def nested(stricter: Any, laxer: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """What the stricter rule accepts, the laxer one accepts too: smaller gamma, larger kappa, of Balance."""
    few, many = stricter(own, inbox, **inputs).weights > 0, laxer(own, inbox, **inputs).weights > 0
    assert not (few & ~many).any(), "the stricter rule accepted more"


def accepts_less_later(rule: Any, own: Tensor, inbox: Inbox, earlier: int, later: int, total: int) -> None:
    """What is accepted in a later round would have been accepted earlier: Balance."""
    early, late = (rule(own, inbox, t=t, total=total).weights > 0 for t in (earlier, later))
    assert not (late & ~early).any(), "a later round accepted more"


# Bounded influence of the others.


def clipping_bound(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """||aggregate - own|| <= tau: SCClip(mode="difference") with a number for tau."""
    moved = (rule(own, inbox, **inputs).model.double() - own.double()).norm(dim=1)
    rounding = TOLERANCE[own.dtype] * (own.double().norm(dim=1) + rule.tau)
    assert (moved <= rule.tau + rounding).all(), f"moved by {moved}, allowed {rule.tau}"


def norm_bound(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """||aggregate|| <= ||own||: FLTrust and SCClip(mode="norm")."""
    sizes = own.double().norm(dim=1)
    lengths = rule(own, inbox, **inputs).model.double().norm(dim=1)
    assert (lengths <= sizes * (1 + TOLERANCE[own.dtype])).all(), f"norms {lengths}, allowed {sizes}"


def between_benign(rule: Any, own: Tensor, benign: Tensor, malicious: Tensor, **inputs: Any) -> None:
    """The aggregate lies between benign extremes, per coordinate: TrimmedMean that tolerates enough, and Median.

    One client, ``own (d,)``; the malicious must be fewer than the benign.
    """
    model = rule(own, torch.cat([malicious, benign]), **inputs).model
    low, high = benign.min(0).values, benign.max(0).values
    rounding = TOLERANCE[own.dtype] * benign.abs().max()
    assert ((model >= low - rounding) & (model <= high + rounding)).all(), f"{model} is outside of {low} to {high}"


# How laws see a rule, and compare.


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


def size_of(models: Tensor) -> float:
    """The size of a parameter, against which rounding is measured where terms cancel."""
    return float(models.double().abs().max()) if models.numel() else 0.0


def assert_same_model(actual: Tensor, expected: Tensor, who: str = "", unit: float = 0.0) -> None:
    """Equal up to rounding, relative to the largest coordinate, or to ``unit`` if that is larger."""
    assert actual.dtype == expected.dtype, f"{who}: {actual.dtype}, expected {expected.dtype}"
    largest = expected.double().abs().amax(-1, keepdim=True).clamp_min(unit)
    error = (actual.double() - expected.double()).abs()
    assert (error <= TOLERANCE[expected.dtype] * largest).all(), f"{who}: {actual}, expected {expected}"


def assert_same_weights(actual: Tensor, expected: Tensor, who: str = "") -> None:
    """The same messages accepted, with the same weights up to rounding; NaN equals NaN."""
    actual, expected = actual.double(), expected.double()
    assert torch.equal(actual != 0, expected != 0), f"{who}: weights {actual}, expected {expected}"
    close = torch.isclose(actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert close.all(), f"{who}: weights {actual}, expected {expected}"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, where NaN equals NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def shares_storage(result: Tensor, *inputs: Tensor) -> bool:
    """Whether writing to the result would write to an input."""
    if result.numel() == 0:
        return False
    return any(result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in inputs if x.numel())
