"""References of the rules that contain own; see `tests.references` for their conventions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.reference_tools import (
    Answer,
    Message,
    Vector,
    middle,
    norm,
    present,
)

# Equal on paper: sums of weights, which are rounded.
SAME = 1e-9
# Equal on paper: distances from a mean, of which float64 rounds the last three digits at most.
TIE = 1e-13


def edge_weights(messages: Sequence[Message], gossip: Vector | None) -> Vector:
    """W_ij where a message is present, or 1 / (number of present messages + 1)."""
    weights = np.zeros(len(messages))
    here = present(messages)
    for position in here:
        weights[position] = 1 / (len(here) + 1) if gossip is None else gossip[position]
    return weights


def tolerated_weight(weights: Vector, tolerated: int) -> float:
    """b: the sum of the f largest weights."""
    return float(sum(sorted(weights, reverse=True)[:tolerated]))


def other_weight(weights: Vector, tolerated: int) -> float:
    """Sum w - b: the sum of all but the f largest weights."""
    return float(sum(sorted(weights, reverse=True)[tolerated:]))


def own_and(own: Vector, messages: Sequence[Message], weights: Vector) -> Answer:
    """The weighted sum of messages, and own with the remainder to 1."""
    rest = 1 - float(weights.sum())
    rest = 0.0 if abs(rest) < 1e-12 else rest
    model = rest * own
    magnitude = abs(rest) * np.abs(own)
    for position in np.flatnonzero(weights):
        model = model + weights[position] * messages[position].vector
        magnitude = magnitude + weights[position] * np.abs(messages[position].vector)
    return Answer(model, weights, magnitude)


def by_distance(own: Vector, messages: Sequence[Message]) -> list[tuple[float, int, int]]:
    """(distance to own, sender, position) of the present messages, nearest first."""
    here = present(messages)
    return sorted((norm(messages[p].vector - own), messages[p].sender, p) for p in here)


def gossip(own: Vector, messages: Sequence[Message], *, gossip: Any = None, **_: Any) -> Answer:
    """x' = x + sum w_j (x_j - x)."""
    return own_and(own, messages, edge_weights(messages, gossip))


def clipped(own: Vector, messages: Sequence[Message], weights: Vector, radius: float) -> Answer:
    """x' = x + sum w_j min(1, tau / d_j) (x_j - x)."""
    factors = np.zeros(len(messages))
    for distance, _, position in by_distance(own, messages):
        factors[position] = 1.0 if distance <= radius else radius / distance
    return own_and(own, messages, weights * factors)


def nearest_part(
    own: Vector, messages: Sequence[Message], weights: Vector, amount: float
) -> Vector:
    """kappa_j = clamp(amount - sum of the weights before j, 0, w_j), nearest first."""
    parts = np.zeros(len(messages))
    before = 0.0
    for _, _, position in by_distance(own, messages):
        weight = weights[position]
        left = amount - before
        if left >= weight - SAME * amount:
            parts[position] = weight
        elif left > SAME * amount:
            parts[position] = left
        before += weight
    return parts


def radius_of(own: Vector, messages: Sequence[Message], parts: Vector, b: float) -> float:
    """sqrt(sum w_j d_j^2 / b), or infinity for b = 0."""
    total = sum(parts[p] * distance**2 for distance, _, p in by_distance(own, messages))
    return math.sqrt(total / b) if b > 0 else math.inf


def clipped_gossip(
    own: Vector, messages: Sequence[Message], *, tolerated: int, gossip: Any = None, **_: Any
) -> Answer:
    """tau = sqrt(sum_{j in S} w_j d_j^2 / b), S the nearest of total weight sum w - b."""
    weights = edge_weights(messages, gossip)
    b = tolerated_weight(weights, tolerated)
    parts = nearest_part(own, messages, weights, other_weight(weights, tolerated))
    return clipped(own, messages, weights, radius_of(own, messages, parts, b))


def cs_plus(
    own: Vector, messages: Sequence[Message], *, tolerated: int, gossip: Any = None, **_: Any
) -> Answer:
    """tau = max{tau : sum_{d_j >= tau} w_j >= 2b}; 0 if sum w < 2b."""
    weights = edge_weights(messages, gossip)
    b = tolerated_weight(weights, tolerated)
    if b == 0:
        return clipped(own, messages, weights, math.inf)
    distances = by_distance(own, messages)
    radius = 0.0
    for candidate, _, _ in distances:
        reached = sum(weights[p] for distance, _, p in distances if distance >= candidate)
        if reached >= 2 * b * (1 - SAME):
            radius = candidate
    return clipped(own, messages, weights, radius)


def gts(
    own: Vector, messages: Sequence[Message], *, tolerated: int, gossip: Any = None, **_: Any
) -> Answer:
    """x' = x + sum kappa_j (x_j - x), kappa the nearest part of weight sum w - b."""
    weights = edge_weights(messages, gossip)
    return own_and(
        own, messages, nearest_part(own, messages, weights, other_weight(weights, tolerated))
    )


def rtc(
    own: Vector, messages: Sequence[Message], *, tolerated: int, gossip: Any = None, **_: Any
) -> Answer:
    """Remove the farthest while they weigh at most b, clip the rest to sqrt(sum_S w d^2 / b)."""
    weights = edge_weights(messages, gossip)
    b = tolerated_weight(weights, tolerated)
    remaining = weights.copy()
    removed = 0.0
    for _, _, position in reversed(by_distance(own, messages)):
        removed += weights[position]
        if removed > b * (1 + SAME):
            break
        remaining[position] = 0.0
    return clipped(own, messages, remaining, radius_of(own, messages, remaining, b))


def nna(own: Vector, messages: Sequence[Message], *, tolerated: int, **_: Any) -> Answer:
    """The mean of the n - f vectors nearest to x, own included, n = k + 1."""
    nearest = by_distance(own, messages)
    chosen = nearest[: max(0, len(nearest) - tolerated)]
    weights = np.zeros(len(messages))
    for _, _, position in chosen:
        weights[position] = 1 / (len(chosen) + 1)
    return own_and(own, messages, weights)


def drop_farthest(left: list[int], messages: Sequence[Message], mean: Vector) -> None:
    """Remove the message farthest from the mean; of equally far ones that of the highest id."""
    distances = {p: norm(messages[p].vector - mean) for p in left}
    farthest = max(distances.values())
    tied = [p for p in left if distances[p] >= farthest * (1 - TIE)]
    left.remove(max(tied, key=lambda p: messages[p].sender))


def ios(
    own: Vector, messages: Sequence[Message], *, tolerated: int, gossip: Any = None, **_: Any
) -> Answer:
    """f times: c = (w_0 x + sum_U w_j x_j) / (w_0 + sum_U w_j), drop argmax ||x_j - c||."""
    weights = edge_weights(messages, gossip)
    rest = max(0.0, 1 - float(weights.sum()))
    left = [p for p in present(messages) if weights[p] > 0]
    for _ in range(min(tolerated, len(left))):
        total = rest + sum(weights[p] for p in left)
        mean = rest / total * own + sum(weights[p] / total * messages[p].vector for p in left)
        drop_farthest(left, messages, mean)
    total = rest + sum(weights[p] for p in left)
    shares = np.zeros(len(messages))
    for p in left:
        shares[p] = weights[p] / total
    return own_and(own, messages, shares)


def faba(own: Vector, messages: Sequence[Message], *, tolerated: int, **_: Any) -> Answer:
    """f times: drop the farthest from mean_U; x' = ((k - f) mean_U + x) / (k - f + 1)."""
    left = present(messages)
    for _ in range(min(tolerated, len(left))):
        drop_farthest(left, messages, np.mean([messages[p].vector for p in left], axis=0))
    weights = np.zeros(len(messages))
    weights[left] = 1 / (len(left) + 1)
    return own_and(own, messages, weights)


def bridge(
    own: Vector,
    messages: Sequence[Message],
    *,
    variant: str,
    tolerated: int | None = None,
    **_: Any,
) -> Answer:
    """T: trimmed mean of N, and own; M: median, K: Krum, B: Bulyan, of N and own."""
    # That module imports the one that imports this one.
    from tests.received_references import bulyan

    here = present(messages)
    if not here:
        weights = np.zeros(len(messages)) if variant == "K" else None
        return Answer(own.copy(), weights, np.abs(own))
    received = np.stack([messages[p].vector for p in here])
    if variant == "M":
        ordered = np.sort(np.concatenate([own[None], received]), axis=0)
        model = np.array([middle(list(column)) for column in ordered.T])
        return Answer(model, None, np.abs(ordered).max(axis=0))
    assert tolerated is not None
    if variant == "B":
        return bulyan(own, [*messages, Message(-1, own)], tolerated=tolerated)
    if variant == "T":
        f = min(tolerated, (len(here) - 1) // 2)
        kept = np.sort(received, axis=0)[f : len(here) - f]
        everything = np.concatenate([kept, own[None]])
        return Answer(everything.mean(axis=0), None, np.abs(everything).mean(axis=0))
    models = [*received, own]
    names = [*[messages[p].sender for p in here], -1]
    nearest = max(1, min(len(models) - tolerated - 2, len(models) - 1))
    scores = []
    for i, model in enumerate(models):
        squares = sorted(
            float(np.sum((model - other) ** 2)) for j, other in enumerate(models) if j != i
        )
        scores.append((sum(squares[:nearest]), names[i], i))
    best = min(scores)[2]
    weights = np.zeros(len(messages))
    if best < len(here):
        weights[here[best]] = 1.0
    return own_and(own, messages, weights)


GOSSIP: dict[str, Callable[..., Answer]] = {
    "Bridge": bridge,
    "CSPlus": cs_plus,
    "ClippedGossip": clipped_gossip,
    "FABA": faba,
    "GTS": gts,
    "Gossip": gossip,
    "IOS": ios,
    "NNA": nna,
    "RTC": rtc,
}
