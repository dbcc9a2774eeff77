"""References of the rules over received models, beyond the BALANCE paper; see `references`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.reference_shares import mean_weights
from tests.references import (
    Answer,
    Message,
    Vector,
    mean_of,
    norm,
    present,
    weighted_sum,
)


def squared_distances(messages: Sequence[Message], here: Sequence[int]) -> dict[Any, float]:
    """Squared distances between messages, by both positions."""
    return {
        (a, b): float(np.sum((messages[a].vector - messages[b].vector) ** 2))
        for a in here
        for b in here
    }


def krum_order(
    messages: Sequence[Message], here: Sequence[int], tolerated: int
) -> list[tuple[float, int, int]]:
    """Scores, senders and positions in ascending order: Blanchard et al. (2017)."""
    squares = squared_distances(messages, here)
    nearest = max(1, min(len(here) - tolerated - 2, len(here) - 1))
    scored = []
    for candidate in here:
        others = sorted(squares[candidate, other] for other in here if other != candidate)
        scored.append((sum(others[:nearest]), messages[candidate].sender, candidate))
    return sorted(scored)


def multi_krum(
    own: Vector,
    messages: Sequence[Message],
    *,
    tolerated: int,
    selected: int | None = None,
    **_: Any,
) -> Answer:
    """The mean of the m lowest scores, m = n - f by default."""
    here = present(messages)
    amount = max(1, len(here) - tolerated) if selected is None else selected
    return mean_of(own, messages, [p for *_, p in krum_order(messages, here, tolerated)[:amount]])


def mean_around_median(values: Vector, amount: int) -> Answer:
    """Per coordinate, the mean of the values nearest to the median; (count, d)."""
    ordered = np.sort(values, axis=0)
    count = len(values)
    low = ordered[(count - 1) // 2]
    high = ordered[count // 2]
    # Twice the distances to the median. Those of the two middle values are equal, and a median that
    # is rounded would decide between them. Stable, so that the smaller one comes first.
    distances = np.abs((ordered - low) + (ordered - high))
    nearest = np.argsort(distances, axis=0, kind="stable")[:amount]
    kept = np.take_along_axis(ordered, nearest, axis=0)
    return Answer(kept.mean(axis=0), None, np.abs(kept).mean(axis=0))


def bulyan(own: Vector, messages: Sequence[Message], *, tolerated: int, **_: Any) -> Answer:
    """El Mhamdi et al. (2018): Krum n - 2f times, then around the median."""
    here = present(messages)
    if not here:
        return Answer(own.copy(), None, np.abs(own))
    theta = max(1, len(here) - 2 * tolerated)
    selected: list[int] = []
    while len(selected) < theta:
        left = [p for p in here if p not in selected]
        selected.append(krum_order(messages, left, tolerated)[0][2])
    values = np.stack([messages[p].vector for p in selected])
    return mean_around_median(values, max(1, theta - 2 * tolerated))


def mea_med(own: Vector, messages: Sequence[Message], *, tolerated: int, **_: Any) -> Answer:
    """Xie et al. (2018): per coordinate the n - f values nearest to the median."""
    values = [messages[p].vector for p in present(messages)]
    if not values:
        return Answer(own.copy(), None, np.abs(own))
    amount = len(values) - min(tolerated, (len(values) - 1) // 2)
    return mean_around_median(np.stack(values), amount)


def geometric_median(
    own: Vector, messages: Sequence[Message], *, nu: float = 1e-6, steps: int = 1000, **_: Any
) -> Answer:
    """Pillutla et al. (2022): Weiszfeld steps from the coordinate-wise median, to convergence.

    Near a message that almost is the median, steps shrink slowly: the limit can be noticed.
    """
    here = present(messages)
    if not here:
        return mean_of(own, messages, here)
    values = np.stack([messages[p].vector for p in here])
    v = np.median(values, axis=0)
    apart = np.array([norm(x - v) for x in values])
    # The lower median, or the largest distance if most messages are the median.
    unit = np.sort(apart)[(len(apart) - 1) // 2] or apart.max()
    shares = np.full(len(here), 1 / len(here))
    for _step in range(steps if unit > 0 else 0):
        apart = np.array([norm(x - v) for x in values])
        pulls = 1 / np.maximum(nu * unit, apart)
        shares = pulls / pulls.sum()
        moved = shares @ values
        if norm(moved - v) <= 1e-13 * unit:
            break
        v = moved
    weights = np.zeros(len(messages))
    weights[here] = shares
    return weighted_sum(own, messages, weights)


def centered_clip(
    own: Vector,
    messages: Sequence[Message],
    *,
    tau: float = 1.0,
    steps: int = 3,
    weighted: bool = False,
    cap: float = 2.0,
    samples: Vector | None = None,
    **_: Any,
) -> Answer:
    """Karimireddy et al. (2021), starting at own."""
    here = present(messages)
    parts = mean_weights(messages, here, samples if weighted else None, cap)
    v = own
    shares = np.zeros(len(messages))
    for _step in range(steps if here else 0):
        kept = np.zeros(len(messages))
        for p in here:
            distance = norm(messages[p].vector - v)
            kept[p] = parts[p] * (1.0 if distance <= tau else tau / distance)
        shares = shares * (1 - kept.sum()) + kept
        v = v + sum(kept[p] * (messages[p].vector - v) for p in here)
    terms = [shares[p] * (messages[p].vector - own) for p in here]
    magnitude = np.abs(own) + sum((np.abs(term) for term in terms), np.zeros_like(own))
    return Answer(own + sum(terms, np.zeros_like(own)), shares, magnitude)


def caf(own: Vector, messages: Sequence[Message], *, tolerated: int, **_: Any) -> Answer:
    """Allouah et al. (2025): weights fall along the direction of the largest variance."""
    here = present(messages)
    if not here:
        return mean_of(own, messages, here)
    values = np.stack([messages[p].vector for p in here])
    count = len(here)
    f = min(tolerated, (count - 1) // 2)
    c = np.ones(count)
    best = c / count
    least = np.inf
    while c.sum() > count - 2 * f + 1e-12 * count:
        shares = c / c.sum()
        rows = np.sqrt(shares)[:, None] * (values - shares @ values)
        variances, vectors = np.linalg.eigh(rows @ rows.T)
        if variances[-1] < least:
            least = variances[-1]
            best = shares
        along = np.zeros(count)
        alive = c > 0
        along[alive] = (vectors[alive, -1] / np.sqrt(shares[alive])) ** 2
        if along.max() == 0:
            break
        kept = 1 - along / along.max()
        c = np.where(kept > 1e-12, c * kept, 0.0)
    weights = np.zeros(len(messages))
    weights[here] = best
    return weighted_sum(own, messages, weights)
