"""2.5 Trim attack."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.attack_references.world import (
    Lie,
    Mask,
    World,
    everyone,
    observed_clients,
    origin,
    sign_of_sum,
    vectors,
)
from tests.references import Vector


class Range(NamedTuple):
    """The bounds of every crafted coordinate: the extreme of the vectors, and the far end beyond
    it.
    """

    extreme: Vector
    far: Vector
    undecided: Mask


def trim_attack(
    world: World, victim: int, *, scope: str = "receiver", space: str = "model", **options: Any
) -> Lie:
    """2.5 Trim attack without randomness: the far end everywhere."""
    between = trim_range(world, victim, scope=scope, space=space, **options)
    return Lie(origin(world, victim, scope, space) + between.far, between.undecided)


def trim_range(world: World, victim: int, *, form: str = "group", **options: Any) -> Range:
    """2.5 Trim attack: the range to draw from, before the origin of updates is added."""
    return (trim_group if form == "group" else trim_fang)(world, victim, **options)


def trim_group(
    world: World,
    victim: int,
    *,
    scope: str = "receiver",
    space: str = "model",
    factor: float = 2.0,
    **_: Any,
) -> Range:
    """2.5 (a): dir = sign(sum v); D = min where dir > 0, max where dir < 0, all over the vectors of
    `everyone`.

    The lie is D / r where dir * D > 0, D * r where dir * D < 0, r from 1 to ``factor``; 0 where dir
    = 0.
    """
    rows = vectors(world, everyone(world, victim, scope), space)
    direction, undecided = sign_of_sum(list(rows))
    extreme, far = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for c in range(rows.shape[1]):
        if direction[c] != 0:
            extreme[c] = rows[:, c].min() if direction[c] > 0 else rows[:, c].max()
            far[c] = extreme[c] / factor if direction[c] * extreme[c] > 0 else extreme[c] * factor
    return Range(extreme, far, undecided)


def trim_fang(
    world: World,
    victim: int,
    *,
    scope: str = "receiver",
    space: str = "model",
    factor: float = 2.0,
    **_: Any,
) -> Range:
    """2.5 (b): s = sign of the mean change that training made to benign models; max and min over
    benign vectors.

    s = -1: in [max, b max], or [max, max / b] if max is negative. s = +1: in [min / b, min], or [b
    min, min] if min is negative. b is ``factor``. Where s = 0 nothing is said, so nothing is
    decided.
    """
    clients = observed_clients(world, victim, scope)
    rows = vectors(world, clients, space)
    direction, undecided = sign_of_sum(list(vectors(world, clients, "update")))
    extreme, far = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for c in range(rows.shape[1]):
        if direction[c] < 0:
            extreme[c] = rows[:, c].max()
            far[c] = factor * extreme[c] if extreme[c] > 0 else extreme[c] / factor
        else:
            extreme[c] = rows[:, c].min()
            far[c] = extreme[c] / factor if extreme[c] > 0 else factor * extreme[c]
    return Range(extreme, far, undecided | (direction == 0))
