"""2.8 LIE, 2.9 dissensus, 2.10 others, and the table of all references."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from tests.attack_references.krum import krum_attack
from tests.attack_references.perturbation import min_max, min_sum
from tests.attack_references.trim import trim_attack
from tests.attack_references.world import (
    Lie,
    World,
    decided,
    deviation,
    mean,
    observed_clients,
    origin,
    vectors,
)


def lie_strength(n: int, m: int) -> float:
    """2.8: z = Phi^-1((n - m - s) / (n - m)), s = floor(n / 2 + 1) - m; NaN where that is no
    probability in (0, 1).
    """
    s = math.floor(n / 2 + 1) - m
    share = (n - m - s) / (n - m) if n > m else math.nan
    return NormalDist().inv_cdf(share) if 0 < share < 1 else math.nan


def lie(
    world: World,
    victim: int,
    *,
    z: float | None = None,
    scope: str = "receiver",
    space: str = "model",
    sign: int = -1,
    **_: Any,
) -> Lie:
    """2.8 LIE: mu + sign * z * sigma, with the population standard deviation; z from all n clients,
    m malicious.
    """
    rows = list(vectors(world, observed_clients(world, victim, scope), space))
    strength = lie_strength(len(world.models), len(world.malicious)) if z is None else z
    return decided(
        origin(world, victim, scope, space) + mean(rows) + sign * strength * deviation(rows)
    )


def dissensus(
    world: World, victim: int, *, epsilon: float = 1.5, weights: str = "uniform", **_: Any
) -> Lie:
    """2.9: w_i - epsilon * sum_{benign j in N_i} W_ij (w_j - w_i) / sum_{malicious k in N_i} W_ik.

    W is the same for all neighbors, or Metropolis: 1 / (1 + max(deg_i, deg_j)).
    """
    own = world.models[victim]

    def weight(j: int) -> float:
        return (
            1.0
            if weights == "uniform"
            else 1 / (1 + max(len(world.hears[victim]), len(world.hears[j])))
        )

    pull = sum(
        (weight(j) * (world.models[j] - own) for j in world.benign_neighbors_of(victim)),
        np.zeros_like(own),
    )
    return decided(
        own - epsilon * pull / sum(weight(k) for k in world.malicious_neighbors_of(victim))
    )


def ipm(
    world: World,
    victim: int,
    *,
    epsilon: float = 1.0,
    scope: str = "receiver",
    space: str = "update",
    **_: Any,
) -> Lie:
    """2.10 IPM: minus epsilon times the mean of the benign vectors."""
    rows = list(vectors(world, observed_clients(world, victim, scope), space))
    return decided(origin(world, victim, scope, space) - epsilon * mean(rows))


def sign_flip(world: World, victim: int, **options: Any) -> Lie:
    """2.10 SignFlip: minus the mean of the benign vectors."""
    return ipm(world, victim, **options | {"epsilon": 1.0})


def mimic(world: World, victim: int, *, target: int | None = None, **_: Any) -> Lie:
    """2.10 Mimic: copy one benign client, by default the first finite one."""
    finite = [j for j in world.benign if np.isfinite(world.models[j]).all()]
    return decided(world.models[finite[0] if target is None else target])


def zero(world: World, victim: int, **_: Any) -> Lie:
    """Nothing but zeros."""
    return decided(np.zeros(world.models.shape[1]))


def non_finite(world: World, victim: int, *, value: float = math.nan, **_: Any) -> Lie:
    """2.10 Inf: the same value, NaN or infinite, everywhere."""
    return decided(np.full(world.models.shape[1], value))


def spectral(world: World, victim: int, *, epsilon: float = 1.0, **_: Any) -> Lie:
    """w_i + epsilon * phi_i * sum over benign j of phi_j w_j, phi the unit Fiedler vector of the
    benign graph.

    An edge in either direction counts. Where the second smallest eigenvalue is a multiple one, phi
    is not unique and nothing is decided.
    """
    benign = world.benign
    joined = np.array(
        [[float(a in world.hears[b] or b in world.hears[a]) for b in benign] for a in benign]
    )
    np.fill_diagonal(joined, 0.0)
    values, phis = np.linalg.eigh(np.diag(joined.sum(1)) - joined)
    own = world.models[victim]
    if len(benign) < 2 or (values[1:3] - values[1] < 1e-6).sum() > 1 or values[1] < 1e-6:
        return Lie(own, np.ones(own.shape, dtype=bool))
    phi = phis[:, 1]
    mode = sum(phi[a] * world.models[j] for a, j in enumerate(benign))
    return decided(own + epsilon * phi[benign.index(victim)] * mode)


ATTACK_REFERENCES: dict[str, Callable[..., Lie]] = {
    "KrumAttack": krum_attack,
    "TrimAttack": trim_attack,
    "LIE": lie,
    "Dissensus": dissensus,
    "SignFlip": sign_flip,
    "IPM": ipm,
    "MinMax": min_max,
    "MinSum": min_sum,
    "Mimic": mimic,
    "NonFinite": non_finite,
    "Zero": zero,
    "Spectral": spectral,
}
