"""2.4 Krum attack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.attack_references.world import (
    UNDECIDED,
    Lie,
    World,
    decided,
    everyone,
    last_model,
    malicious_among,
    observed_clients,
    origin,
    vector_of,
)
from tests.references import Message, Vector, krum, norm


def krum_attack(world: World, victim: int, *, form: str = "group", **options: Any) -> Lie:
    """2.4 Krum attack: a lie against the direction of Krum's choice, as far as Krum still chooses
    it.
    """
    return (krum_group if form == "group" else krum_fang)(world, victim, **options)


def krum_group(
    world: World,
    victim: int,
    *,
    scope: str = "receiver",
    space: str = "model",
    sender: int | None = None,
    **_: Any,
) -> Lie:
    """2.4 (a): -lambda * sign(Krum of all before-attack vectors); lambda = 1, 1/2, ... until chosen
    or <= 1e-5.

    With n <= 2 vectors it is the sender's own, v -> -v.
    """
    before = {j: vector_of(world, j, space) for j in everyone(world, victim, scope)}
    if len(before) <= 2:
        return decided(origin(world, victim, scope, space) - before[sender])
    f = len(malicious_among(world, victim, scope))
    direction = np.sign(before[chosen_by_krum(before, f)])
    size = 1.0
    while not krum_chooses_lie(world, before, -size * direction, f) and size > 1e-5:
        size /= 2
    return decided(origin(world, victim, scope, space) - size * direction)


def krum_fang(world: World, victim: int, *, scope: str = "receiver", **_: Any) -> Lie:
    """2.4 (b): w_Re - lambda * sign(Krum before - w_Re); lambda = lambda_max, /2, ... until chosen
    or < 1e-5.

    In model space; w_Re is the victim's w^t.
    """
    before = {j: world.models[j] for j in everyone(world, victim, scope)}
    f = len(malicious_among(world, victim, scope))
    start = last_model(world, victim, scope)
    step = before[chosen_by_krum(before, f)] - start
    direction = np.sign(step)
    size = largest_krum_step(world, victim, scope, start)
    while not krum_chooses_lie(world, before, start - size * direction, f) and size >= 1e-5:
        size /= 2
    close = np.abs(step) <= UNDECIDED * np.abs(start)
    return Lie(start - size * direction, close if scope == "global" else np.zeros_like(close))


def largest_krum_step(world: World, victim: int, scope: str, start: Vector) -> float:
    """lambda_max = min_i sum_{l in k nearest benign} D(w_l, w_i) / ((m-2c-1) sqrt(d)) + max_l
    D(w_l, w_Re) / sqrt(d).

    For m messages, c of them malicious, and k = m-c-2. Where the victim hears too few benign
    clients for these numbers to be positive, they are 1; an empty sum is 0.
    """
    benign = [world.models[j] for j in observed_clients(world, victim, scope)]
    m, c = len(everyone(world, victim, scope)), len(malicious_among(world, victim, scope))
    k = max(m - c - 2, 1)
    root = math.sqrt(len(start))
    sums = []
    for i, mine in enumerate(benign):
        apart = sorted(norm(mine - other) for j, other in enumerate(benign) if j != i)
        sums.append(sum(apart[:k]))
    return (
        min(sums) / (max(m - 2 * c - 1, 1) * root)
        + max(norm(mine - start) for mine in benign) / root
    )


def chosen_by_krum(candidates: Mapping[int, Vector], tolerated: int) -> int:
    """Whose vector Krum takes."""
    messages = [Message(j, candidates[j]) for j in sorted(candidates)]
    answer = krum(np.zeros_like(messages[0].vector), messages, tolerated=tolerated)
    return messages[int(np.argmax(answer.weights))].sender


def krum_chooses_lie(
    world: World, before: Mapping[int, Vector], lie: Vector, tolerated: int
) -> bool:
    """Whether Krum takes the lie when every malicious client tells it."""
    told = {j: lie if j in world.malicious else vector for j, vector in before.items()}
    return chosen_by_krum(told, tolerated) in world.malicious
