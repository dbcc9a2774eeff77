"""References for weights by samples: one receiver and one coordinate at a time, in Python."""

from __future__ import annotations

import math
from collections.abc import Sequence


def shares(claims: Sequence[float], cap: float) -> list[float]:
    """min(scale * claim, cap / k), where bisection finds the scale for which they sum to 1."""
    k = len(claims)
    total = sum(claims)
    if math.isinf(cap):
        return [claim / total if total > 0 else 0.0 for claim in claims]
    limit = cap / k if k else 0.0
    if limit * sum(claim > 0 for claim in claims) <= 1:
        return [limit if claim > 0 else 0.0 for claim in claims]
    low = 0.0
    high = limit / min(claim for claim in claims if claim > 0)
    for _ in range(200):
        scale = (low + high) / 2
        if sum(min(scale * claim, limit) for claim in claims) < 1:
            low = scale
        else:
            high = scale
    return [min(high * claim, limit) for claim in claims]


def trimmed_mean(values: Sequence[float], weights: Sequence[float], cut: float) -> float:
    """The mean without weight ``cut`` at both ends; the weighted median from 1/2 on."""
    if cut >= 0.5 - 1e-12:
        return median(values, weights)
    left = [list(pair) for pair in sorted(zip(values, weights, strict=True)) if pair[1] > 0]
    for end in (left, left[::-1]):
        rest = cut
        for pair in end:
            removed = min(rest, pair[1])
            pair[1] -= removed
            rest -= removed
    return sum(value * weight for value, weight in left) / sum(weight for _, weight in left)


def median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The least value up to which half of the weight lies; at half, its mean with the next."""
    ordered = [pair for pair in sorted(zip(values, weights, strict=True)) if pair[1] > 0]
    half = sum(weight for _, weight in ordered) / 2
    below = 0.0
    for i, (value, weight) in enumerate(ordered):
        below += weight
        if abs(below - half) < 1e-12 and i + 1 < len(ordered):
            return value / 2 + ordered[i + 1][0] / 2
        if below >= half:
            return value
    raise AssertionError("a value has weight")
