"""2.7 Adaptive: probes of a rule along the line of lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.all_references import REFERENCES
from tests.attack_references.perturbation import larger_root, perturbation_of
from tests.attack_references.world import Mask, World, mean, observed_clients, vectors
from tests.references import Answer, Message, Vector, client_inputs, norm


class Probe(NamedTuple):
    """The lies mu - gamma * p to one victim, and the answers of the rule of that name."""

    rule: str
    mu: Vector
    p: Vector
    undecided: Mask
    answer: Callable[[float], Answer]
    malicious_slots: list[int]

    def lie(self, gamma: float) -> Vector:
        """The lie of strength gamma."""
        return self.mu - gamma * self.p

    def accepted(self, gamma: float) -> bool:
        """Whether the victim's rule gives weight to all malicious messages; Krum chooses one of
        them.
        """
        weights = self.answer(gamma).weights
        heard = [weights[slot] > 0 for slot in self.malicious_slots]
        return any(heard) if self.rule == "Krum" else all(heard)

    def damage(self, gamma: float) -> float:
        """2.7, the loss: the distance of the aggregate from mu."""
        return norm(self.answer(gamma).model - self.mu)


def probe(
    world: World,
    victim: int,
    rule: str,
    inputs: Mapping[str, Any],
    *,
    perturbation: str = "unit",
    scope: str = "receiver",
    center: str = "mean",
) -> Probe:
    """The line of lies for a victim that follows a rule, given by its name and by options and
    inputs.
    """
    observed = observed_clients(world, victim, scope)
    rows = vectors(world, observed if center == "mean" else [victim], "model")
    if perturbation.endswith("update"):
        movers = [victim] if perturbation == "own_update" else observed
        moves = vectors(world, movers, "update")
        p, undecided = perturbation_of(moves, "unit")
    else:
        p, undecided = perturbation_of(rows, perturbation)
    mu, mine = mean(list(rows)), client_inputs(dict(inputs), victim)

    def answer(gamma: float) -> Answer:
        lie = mu - gamma * p
        messages = [
            Message(j, lie if j in world.malicious else world.models[j])
            for j in world.hears[victim]
        ]
        return REFERENCES[rule](world.models[victim], messages, **mine)

    slots = [slot for slot, j in enumerate(world.hears[victim]) if j in world.malicious]
    return Probe(rule, mu, p, undecided, answer, slots)


def balance_limit(world: World, victim: int, threshold: float, line: Probe) -> float:
    """2.7, 'max' against BALANCE: the largest gamma with ||w_i - mu + gamma * p|| <= threshold *
    ||w_i||.
    """
    own = world.models[victim]
    return larger_root(line.mu - own, line.p, (threshold * norm(own)) ** 2)


def accepted_strengths(line: Probe, largest: float, steps: int = 400) -> list[float]:
    """The strengths on an even grid from 0 to ``largest`` that the rule accepts."""
    return [x for x in (largest * step / steps for step in range(steps + 1)) if line.accepted(x)]


def adaptive_max(line: Probe, largest: float, steps: int = 400) -> float:
    """2.7, 'max': the largest accepted gamma below ``largest``; NaN unless exactly the ones from 0
    to it are accepted.

    Found on a grid, then by bisection.
    """
    good = accepted_strengths(line, largest, steps)
    count = len(good)
    if count == 0 or good[-1] != largest * (count - 1) / steps or count == steps + 1:
        return math.nan
    low, high = good[-1], largest * count / steps
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if line.accepted(middle) else (low, middle)
    return low


def adaptive_literal(line: Probe, *, start: float = 10.0, tolerance: float = 1e-5) -> float:
    """2.7, the search as it is written: every test is compared with the one before, so the first
    always succeeds.
    """
    gamma, step, success, before = start, start, 0.0, -1.0
    while abs(success - gamma) > tolerance:
        loss = line.damage(gamma)
        if loss > before:
            success = gamma
            gamma += step / 2
        else:
            gamma -= step / 2
        step /= 2
        before = loss
    return success
