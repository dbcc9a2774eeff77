"""Rules in plain torch for many receivers at once, as an expert would write them.

Each takes ``own (b, d)``, ``received (b, k, d)`` and ``tolerated (b,)``, and returns ``(b, d)``.
There is no treatment of edge cases: every message is finite and every client has k of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def fedavg(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    return received.mean(dim=1)


def median(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    k = received.shape[1]
    ordered = received.sort(dim=1).values
    return (ordered[:, (k - 1) // 2] + ordered[:, k // 2]) / 2


def trimmed_mean(own: Tensor, received: Tensor, *, tolerated: Tensor, **_: Any) -> Tensor:
    k = received.shape[1]
    cut = tolerated.clamp(max=(k - 1) // 2)[:, None]
    ranks = torch.arange(k)
    kept = ((ranks >= cut) & (ranks < k - cut)).to(received.dtype)
    return weighted_mean(kept, received.sort(dim=1).values)


def krum(own: Tensor, received: Tensor, *, tolerated: Tensor, **_: Any) -> Tensor:
    k = received.shape[1]
    # Relative to own: the Gram matrix of models that nearly agree would lose their differences.
    steps = received - own[:, None]
    products = torch.bmm(steps, steps.mT)
    lengths = products.diagonal(dim1=1, dim2=2)
    squares = lengths[:, :, None] + lengths[:, None] - 2 * products
    squares.diagonal(dim1=1, dim2=2).fill_(-1)  # below rounding errors, so that itself comes first
    sums = squares.sort(dim=2).values[:, :, 1:].cumsum(dim=2)
    nearest = (k - tolerated - 2).clamp(min=1)
    scores = sums.gather(2, (nearest - 1)[:, None, None].expand(-1, k, 1))[:, :, 0]
    return received[torch.arange(len(received)), scores.argmin(dim=1)]


def balance(own: Tensor, received: Tensor, **inputs: Any) -> Tensor:
    return balance_of(own, received, torch.cdist(own[:, None], received)[:, 0], **inputs)


def balance_in_cache(own: Tensor, received: Tensor, **inputs: Any) -> Tensor:
    """Faster than cdist if the differences stay in the cache, and slower if not."""
    return balance_of(own, received, (received - own[:, None]).norm(dim=2), **inputs)


def balance_of(
    own: Tensor,
    received: Tensor,
    distances: Tensor,
    *,
    t: int,
    total: int,
    gamma: float = 0.3,
    kappa: float = 1.0,
    **_: Any,
) -> Tensor:
    limits = gamma * math.exp(-kappa * t / total) * own.norm(dim=1, keepdim=True)
    accepted = distances <= limits
    means = weighted_mean(accepted.to(own.dtype), received)
    return torch.where(accepted.any(dim=1, keepdim=True), means, own)


def weighted_mean(weights: Tensor, received: Tensor) -> Tensor:
    sums = torch.bmm(weights[:, None], received)[:, 0]
    return sums / weights.sum(dim=1, keepdim=True).clamp(min=1)


RULES: dict[str, Callable[..., Tensor]] = {
    "FedAvg": fedavg,
    "Krum": krum,
    "TrimmedMean": trimmed_mean,
    "Median": median,
    "Balance": balance,
}
RULES_IN_CACHE = RULES | {"Balance": balance_in_cache}
