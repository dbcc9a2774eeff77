"""Tools of all references of rules: messages, answers, and sums in plain numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]


class Message(NamedTuple):
    """A model and the id of the client that sent it."""

    sender: int
    vector: Vector


class Answer(NamedTuple):
    """The expected result of a rule for one client.

    ``magnitude`` is, per coordinate, the mean absolute value of the averaged terms. Rounding errors
    are relative to it.
    """

    model: Vector
    weights: Vector | None
    magnitude: Vector


def present(messages: Sequence[Message]) -> list[int]:
    """The positions of the messages that a rule may look at: those without NaN and infinities."""
    return [
        position for position, message in enumerate(messages) if np.isfinite(message.vector).all()
    ]


def mean_of(own: Vector, messages: Sequence[Message], positions: Sequence[int]) -> Answer:
    """The mean of the chosen messages, or own if there are none."""
    weights = np.zeros(len(messages))
    for position in positions:
        weights[position] = 1 / len(positions)
    return weighted_sum(own, messages, weights)


def weighted_sum(own: Vector, messages: Sequence[Message], weights: Vector) -> Answer:
    """The sum of weighted messages, or own if nothing has weight."""
    if not weights.any():
        return Answer(own.copy(), weights, np.abs(own))
    used = [position for position in range(len(messages)) if weights[position] > 0]
    model = sum(weights[p] * messages[p].vector for p in used)
    magnitude = sum(weights[p] * np.abs(messages[p].vector) for p in used)
    return Answer(model, weights, magnitude)


def middle(ascending: Sequence[float]) -> float:
    """The median of sorted numbers: the middle one, or the mean of the two in the middle."""
    return (ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2]) / 2


def norm(vector: Vector) -> float:
    """The Euclidean norm."""
    return math.sqrt(float(np.sum(vector * vector)))


def array(tensor: Tensor) -> Vector:
    """A tensor as a float64 array."""
    return tensor.detach().double().numpy()
