"""Laws of single rules, as functions that raise AssertionError; see also `equipoise.testing`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from equipoise import Inbox
from equipoise.testing._asserts import TOLERANCE, require_same_weights


def balance_limit(rule: Any, t: int, total: int) -> float:
    """gamma * exp(-kappa * progress(t, total)), where progress is t / total unless given."""
    passed = rule.progress(t, total) if rule.progress else t / total
    return float(rule.gamma * math.exp(-rule.kappa * passed))


def balance_bound(rule: Any, own: Tensor, inbox: Inbox, t: int, total: int, **inputs: Any) -> None:
    """||aggregate - own|| <= gamma * exp(-kappa * progress(t, total)) * ||own||, always."""
    moved = (rule(own, inbox, t=t, total=total, **inputs).model.double() - own.double()).norm(dim=1)
    sizes = own.double().norm(dim=1)
    radius = balance_limit(rule, t, total) * sizes
    assert (moved <= radius + TOLERANCE[own.dtype] * sizes).all(), (
        f"moved by {moved}, allowed {radius}"
    )


def balance_accepts(
    rule: Any, own: Tensor, inbox: Inbox, t: int, total: int, **inputs: Any
) -> None:
    """The messages within the threshold are accepted, with equal weights."""
    weights = rule(own, inbox, t=t, total=total, **inputs).weights
    fraction = balance_limit(rule, t, total)
    for i in range(len(own)):
        accepted = weights[i] > 0
        distances = (inbox.bank[inbox.slots[i]].double() - own[i].double()).norm(dim=1)
        radius = fraction * own[i].double().norm()
        slack = 1e-6 * radius
        assert not (accepted & ~inbox.mask[i]).any(), f"client {i} accepted a hidden slot"
        assert (distances[accepted] <= radius + slack).all(), (
            f"client {i} accepted a message that is too far"
        )
        rejected = inbox.mask[i] & ~accepted
        assert not (distances[rejected] <= radius - slack).any(), (
            f"client {i} rejected a message that is close"
        )
        share = torch.full_like(weights[i][accepted], 1 / max(1, int(accepted.sum())))
        require_same_weights(weights[i][accepted], share, f"client {i}")


def accepts_less_later(
    rule: Any, own: Tensor, inbox: Inbox, earlier: int, later: int, total: int
) -> None:
    """A message accepted in a later round is accepted in an earlier one: Balance."""
    early, late = (rule(own, inbox, t=t, total=total).weights > 0 for t in (earlier, later))
    assert not (late & ~early).any(), "a later round accepted more"


def clipping_bound(rule: Any, own: Tensor, inbox: Inbox, **inputs: Any) -> None:
    """||aggregate - own|| <= tau: SCClip(mode="difference") with a number for tau."""
    moved = (rule(own, inbox, **inputs).model.double() - own.double()).norm(dim=1)
    rounding = TOLERANCE[own.dtype] * (own.double().norm(dim=1) + rule.tau)
    assert (moved <= rule.tau + rounding).all(), f"moved by {moved}, allowed {rule.tau}"


def to_own_norm(own: Tensor, messages: Tensor) -> Tensor:
    """Messages rescaled to the norm of own, as FLTrust averages them."""
    return messages * (own.norm() / messages.norm(dim=1, keepdim=True))


def at_most_own_norm(own: Tensor, messages: Tensor) -> Tensor:
    """Messages clipped to the norm of own, as SCClip(mode="norm") averages them."""
    return messages * (own.norm() / messages.norm(dim=1, keepdim=True)).nan_to_num(1.0).clamp(
        max=1.0
    )
