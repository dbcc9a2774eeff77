"""One round as an omniscient adversary sees it, and what all reference attacks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.references import Vector, array

Mask = NDArray[np.bool_]


# Sums that cancel to less than this share of their terms have a sign that rounding may change.
UNDECIDED = 1e-5


class World(NamedTuple):
    """One round: models after and before local training, who hears whom, and who is malicious."""

    models: Vector
    previous: Vector | None
    hears: tuple[tuple[int, ...], ...]
    malicious: frozenset[int]

    @classmethod
    def of(cls, known: Any) -> World:
        """The content of a `Knowledge`, as arrays."""
        hears = tuple(tuple(known.topology.neighbors(i).tolist()) for i in range(known.topology.n))
        malicious = frozenset(i for i in range(known.topology.n) if bool(known.malicious_mask[i]))
        return cls(
            array(known.models),
            None if known.previous is None else array(known.previous),
            hears,
            malicious,
        )

    @property
    def benign(self) -> list[int]:
        """Everybody who is not malicious."""
        return [i for i in range(len(self.models)) if i not in self.malicious]

    @property
    def victims(self) -> list[int]:
        """Benign clients that hear a malicious one."""
        return [i for i in self.benign if self.malicious_neighbors_of(i)]

    def malicious_neighbors_of(self, i: int) -> list[int]:
        """The malicious clients that client ``i`` hears."""
        return [j for j in self.hears[i] if j in self.malicious]

    def benign_neighbors_of(self, i: int) -> list[int]:
        """The benign clients that client ``i`` hears."""
        return [j for j in self.hears[i] if j not in self.malicious]


class Lie(NamedTuple):
    """The message to one victim.

    ``undecided`` marks coordinates where a sum is zero but for rounding, and the formula takes its
    sign.
    """

    vector: Vector
    undecided: Mask


def observed_clients(world: World, victim: int, scope: str) -> list[int]:
    """The benign clients to hide among: the victim's benign neighbors, itself if it has none, or
    all benign ones.
    """
    if scope == "global":
        return world.benign
    return world.benign_neighbors_of(victim) or [victim]


def everyone(world: World, victim: int, scope: str) -> list[int]:
    """All clients whose before-attack vectors count, malicious ones too: the victim's neighbors,
    or all clients.
    """
    return list(range(len(world.models))) if scope == "global" else list(world.hears[victim])


def malicious_among(world: World, victim: int, scope: str) -> list[int]:
    """The malicious ones among `everyone`."""
    return [j for j in everyone(world, victim, scope) if j in world.malicious]


def vector_of(world: World, j: int, space: str) -> Vector:
    """The client's model, or what local training changed in it."""
    return world.models[j] if space == "model" else world.models[j] - world.previous[j]


def vectors(world: World, clients: Sequence[int], space: str) -> Vector:
    """(c, d) the vectors of some clients."""
    return np.stack([vector_of(world, j, space) for j in clients])


def origin(world: World, victim: int, scope: str, space: str) -> Vector:
    """The origin that a crafted vector is added to: none for a model; for an update, the victim's
    w^t or the benign mean.
    """
    if space == "model":
        return np.zeros(world.models.shape[1])
    return last_model(world, victim, scope)


def last_model(world: World, victim: int, scope: str) -> Vector:
    """The w^t of the victim, or the mean of all benign ones."""
    return (
        mean([world.previous[j] for j in world.benign])
        if scope == "global"
        else world.previous[victim]
    )


def mean(rows: Sequence[Vector]) -> Vector:
    """The sum over the number."""
    return sum(rows[1:], rows[0]) / len(rows)


def deviation(rows: Sequence[Vector], *, unbiased: bool = False) -> Vector:
    """The standard deviation of every coordinate; of a single vector it is 0."""
    if len(rows) == 1:
        return np.zeros_like(rows[0])
    squares = sum((row - mean(rows)) ** 2 for row in rows)
    return np.sqrt(squares / (len(rows) - 1 if unbiased else len(rows)))


def sign_of_sum(rows: Sequence[Vector]) -> tuple[Vector, Mask]:
    """The sign of the sum of every coordinate, and where rounding may decide it."""
    total, terms = sum(rows), sum(np.abs(row) for row in rows)
    return np.sign(total), (np.abs(total) <= UNDECIDED * terms) & (terms > 0) & (len(rows) > 1)


def decided(vector: Vector) -> Lie:
    """A lie whose every coordinate is sure."""
    return Lie(vector, np.zeros(vector.shape, dtype=bool))
