"""References of the rules over received models, beyond the BALANCE paper; see `references`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.references import Answer, Message, Vector, mean_of, present


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
    median = ordered[(count - 1) // 2] / 2 + ordered[count // 2] / 2
    # Stable, so that of two values equally far the smaller one comes first.
    nearest = np.argsort(np.abs(ordered - median), axis=0, kind="stable")[:amount]
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


RECEIVED: dict[str, Callable[..., Answer]] = {
    "MultiKrum": multi_krum,
    "Bulyan": bulyan,
    "MeaMed": mea_med,
}
