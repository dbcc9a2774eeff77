"""2.7 Min-max and min-sum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.attack_references.world import (
    Lie,
    Mask,
    World,
    deviation,
    mean,
    observed_clients,
    origin,
    sign_of_sum,
    vectors,
)
from tests.references import Vector, norm


def perturbation_of(rows: Vector, kind: str) -> tuple[Vector, Mask]:
    """2.7: mu / ||mu||, sign(mu), or the unbiased standard deviation of every coordinate."""
    mu, sure = mean(list(rows)), np.zeros(rows.shape[1], dtype=bool)
    if kind == "unit":
        return (mu / norm(mu) if norm(mu) > 0 else mu), sure
    if kind == "sign":
        return sign_of_sum(list(rows))
    return deviation(list(rows), unbiased=True), sure


def min_max(
    world: World,
    victim: int,
    *,
    perturbation: str = "unit",
    scope: str = "receiver",
    space: str = "model",
    **_: Any,
) -> Lie:
    """2.7, min-max: mu - gamma * p, the largest gamma with max_j ||m - v_j||^2 <= max_{j,k} ||v_j -
    v_k||^2.

    Every j bounds gamma by the larger root of ||p||^2 x^2 - 2 <mu - v_j, p> x + ||mu - v_j||^2 =
    max_{j,k}.
    """
    rows = vectors(world, observed_clients(world, victim, scope), space)
    mu, (p, undecided) = mean(list(rows)), perturbation_of(rows, perturbation)
    widest = max(norm(a - b) ** 2 for a in rows for b in rows)
    limits = [larger_root(mu - row, p, widest) for row in rows]
    gamma = min(limits) if norm(p) > 0 else 0.0
    return Lie(origin(world, victim, scope, space) + mu - gamma * p, undecided)


def larger_root(start: Vector, p: Vector, squared: float) -> float:
    """The larger x with ||start - x * p||^2 = squared; NaN if there is none, infinite for p = 0."""
    a, b, c = norm(p) ** 2, float(np.dot(start, p)), norm(start) ** 2 - squared
    if a == 0:
        return math.inf
    inside = b * b - a * c
    return (b + math.sqrt(max(inside, 0.0))) / a if inside >= -1e-12 * b * b else math.nan


def min_sum(
    world: World,
    victim: int,
    *,
    perturbation: str = "unit",
    scope: str = "receiver",
    space: str = "model",
    **_: Any,
) -> Lie:
    """2.7, min-sum: mu - gamma * p, the largest gamma with sum_j ||m - v_j||^2 <= min_k sum_j ||v_k
    - v_j||^2.

    The sum is c gamma^2 ||p||^2 + sum_j ||mu - v_j||^2, because the differences from the mean of c
    vectors cancel.
    """
    rows = vectors(world, observed_clients(world, victim, scope), space)
    mu, (p, undecided) = mean(list(rows)), perturbation_of(rows, perturbation)
    least = min(sum(norm(a - b) ** 2 for b in rows) for a in rows)
    at_mean = sum(norm(mu - row) ** 2 for row in rows)
    size = len(rows) * norm(p) ** 2
    gamma = math.sqrt(max(least - at_mean, 0.0) / size) if size > 0 else 0.0
    return Lie(origin(world, victim, scope, space) + mu - gamma * p, undecided)
