"""Laws of the rules that their docstrings name, as functions that raise AssertionError.

Laws that move the models need data without exact ties; scaling by a power of two moves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.messages import Inbox
from equipoise.testing._asserts import (
    TOLERANCE,
    require,
    require_same_model,
    require_same_weights,
    same_bits,
    size_of,
)
from equipoise.testing._laws import inputs_of, rule_of, with_bank


def written_to_out(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """``out`` receives the same aggregate, whatever was in it, for all clients and for one: all of
    equipoise's.
    """
    calls = [(rule, own, inbox, inputs)]
    calls += [
        (rule_of(rule, i), own[i], inbox.of(i), inputs_of(inputs, i)) for i in range(len(own))
    ][:2]
    for one, mine, received, asked in calls:
        if mine.dim() == 1 and not mine.isfinite().all():
            continue
        out = torch.full_like(mine, torch.nan)
        written = one(mine, received, out=out, **asked).model
        require(written.data_ptr() == out.data_ptr(), "the aggregate is not in out")
        require(same_bits(out, one(mine, received, **asked).model), "out changes the aggregate")


# In other units, around another origin, in another basis.


def scale(rule: Any, own: Tensor, inbox: Inbox, factor: float, **inputs: Any) -> None:
    """Models in other units: all rules but UBAR, whose losses have units of their own; a number for
    tau scales too.
    """
    scaled_rule = rule
    for name in ("tau", "radius"):
        if isinstance(getattr(rule, name, None), float):
            scaled_rule = replace(rule, **{name: getattr(rule, name) * factor})
    plain = rule(own, inbox, **inputs)
    scaled = scaled_rule(own * factor, with_bank(inbox, inbox.bank * factor), **inputs)
    require_same_model(scaled.model, plain.model * factor, unit=factor * size_of(own))
    require_same_weights(scaled.weights, plain.weights)


def translation(rule: Any, own: Tensor, inbox: Inbox, shift: Tensor, **inputs: Any) -> None:
    """Translated models: FedAvg, Krum, TrimmedMean, Median, SCClip(mode="difference"), and
    all rules that contain own."""
    plain = rule(own, inbox, **inputs)
    moved = rule(own + shift, with_bank(inbox, inbox.bank + shift), **inputs)
    require_same_model(moved.model, plain.model + shift, unit=size_of(own) + size_of(shift))
    require_same_weights(moved.weights, plain.weights)


def rotation(rule: Any, own: Tensor, inbox: Inbox, orthogonal: Tensor, **inputs: Any) -> None:
    """Models in another basis: all rules that look at norms, distances and angles only."""
    plain = rule(own, inbox, **inputs)
    turned = rule(
        rotated(own, orthogonal), with_bank(inbox, rotated(inbox.bank, orthogonal)), **inputs
    )
    require_same_model(turned.model, rotated(plain.model, orthogonal), unit=size_of(own))
    require_same_weights(turned.weights, plain.weights)


def rotated(models: Tensor, orthogonal: Tensor) -> Tensor:
    """Every row in another basis; one by one, so that equal rows stay equal."""
    return torch.stack([row @ orthogonal for row in models]) if len(models) else models


# Acceptance


def accepts_separately(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """Whether a message is accepted does not depend on the others: Balance."""
    together = rule(own, inbox, **inputs).weights > 0
    for s in range(inbox.k):
        column = Inbox(
            inbox.bank,
            inbox.slots[:, s : s + 1],
            inbox.mask[:, s : s + 1],
            inbox.senders[:, s : s + 1],
        )
        alone = rule(own, column, **inputs).weights > 0
        require(torch.equal(alone[:, 0], together[:, s]), "slot {} depends on other messages", s)


def nested(stricter: Any, laxer: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """The laxer rule accepts all messages that the stricter one accepts: Balance with a smaller
    gamma or a larger kappa.
    """
    few, many = stricter(own, inbox, **inputs).weights > 0, laxer(own, inbox, **inputs).weights > 0
    require(
        not (few & ~many).any(), "the stricter rule accepted more: {}, the laxer one {}", few, many
    )


# Bounded influence.


def norm_bound(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """||aggregate|| <= ||own||: FLTrust and SCClip(mode="norm")."""
    sizes = own.double().norm(dim=1)
    lengths = rule(own, inbox, **inputs).model.double().norm(dim=1)
    require(
        (lengths <= sizes * (1 + TOLERANCE[own.dtype])).all(),
        "norms {}, allowed {}",
        lengths,
        sizes,
    )


def between_benign(
    rule: Any, own: Tensor, benign: Tensor, malicious: Tensor, **inputs: Any
) -> None:
    """The aggregate lies between benign extremes, per coordinate: TrimmedMean that tolerates
    enough, and Median.

    One client, ``own (d,)``; the malicious must be fewer than the benign.
    """
    model = rule(own, torch.cat([malicious, benign]), **inputs).model
    low, high = benign.min(0).values, benign.max(0).values
    rounding = TOLERANCE[own.dtype] * benign.abs().max()
    inside = ((model >= low - rounding) & (model <= high + rounding)).all()
    require(inside, "{} is outside of {} to {}", model, low, high)
