"""References for weights by samples: one receiver and one coordinate at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.reference_tools import Answer, Message, Vector, weighted_sum


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


def sample_weights(
    messages: Sequence[Message], positions: Sequence[int], samples: Vector | None, cap: float
) -> Vector:
    """Weights by the samples of the senders, none above ``cap`` times an equal weight."""
    assert samples is not None
    weights = np.zeros(len(messages))
    claims = [float(samples[messages[position].sender]) for position in positions]
    weights[list(positions)] = shares(claims, cap)
    return weights


def mean_weights(
    messages: Sequence[Message], positions: Sequence[int], samples: Vector | None, cap: float
) -> Vector:
    """Weights of a mean: by samples if there are any, otherwise equal."""
    if samples is not None:
        return sample_weights(messages, positions, samples, cap)
    weights = np.zeros(len(messages))
    weights[list(positions)] = 1 / max(1, len(positions))
    return weights


def sample_mean_of(
    own: Vector,
    messages: Sequence[Message],
    positions: Sequence[int],
    samples: Vector | None,
    cap: float,
) -> Answer:
    """The mean of the chosen messages by samples; own has the remainder."""
    weights = sample_weights(messages, positions, samples, cap)
    if 1 - weights.sum() < 1e-12:
        return weighted_sum(own, messages, weights)
    everything = [*messages, Message(-1, own)]
    answer = weighted_sum(own, everything, np.append(weights, 1 - weights.sum()))
    return answer._replace(weights=weights)


def weighted_order_statistic(
    own: Vector, messages: Sequence[Message], weights: Vector, cut: float
) -> Answer:
    """A weighted trimmed mean or median of each coordinate, with own for what weights lack to 1."""
    used = [position for position in range(len(messages)) if weights[position] > 0]
    vectors = [messages[position].vector for position in used]
    given = [float(weights[position]) for position in used]
    if 1 - sum(given) > 1e-12:
        vectors.append(own)
        given.append(1 - sum(given))
    columns = np.stack(vectors).T
    model = np.array([trimmed_mean(list(column), given, cut) for column in columns])
    return Answer(model, None, np.abs(columns).mean(axis=1))
