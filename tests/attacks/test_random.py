"""Random attacks: the distribution of their lies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equipoise import attacks
from tests.attack_references import (
    Range,
    World,
    origin,
    trim_range,
)
from tests.attack_rounds import (
    SCOPES,
    SPACES,
    TOLERANCE,
    knowledge,
    options_of,
    received_lies,
    seeded,
)
from tests.graphs import complete, regular
from tests.references import array, norm


def assert_uniform(values: np.ndarray, what: str) -> None:
    """Kolmogorov's distance of values from the uniform distribution on [0, 1], at less than one
    error in 1e6.
    """
    ordered = np.sort(values)
    steps = np.arange(len(values) + 1) / len(values)
    distance = max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max())
    assert distance < 2.7 / math.sqrt(len(values)), what


@pytest.mark.parametrize("std", [200**0.5, 0.1])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gaussian(std: float, dtype: torch.dtype) -> None:
    """Every malicious client broadcasts its own noise around zero, for any models."""
    known = seeded(knowledge(complete(7), 4000, dtype, [1, 4, 5]), 0)
    lies = received_lies(known, attacks.Gaussian(std=std))
    for sender in (1, 4, 5):
        noise = [lies[sender, victim] for victim in (0, 2, 3, 6)]
        assert all(torch.equal(noise[0], other) for other in noise)
        shares = 0.5 * (1 + torch.erf(noise[0].double() / (std * math.sqrt(2))))
        assert_uniform(shares.numpy(), f"sender {sender}")
    assert (
        abs(float(torch.corrcoef(torch.stack([lies[s, 0] for s in (1, 4, 5)])).triu(1).abs().max()))
        < 0.1
    )


def test_gaussian_default() -> None:
    assert attacks.Gaussian() == attacks.Gaussian(std=math.sqrt(200))


@pytest.mark.parametrize("form", ["group", "fang"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("factor", [2.0, 3.5])
def test_random_trim(form: str, scope: str, space: str, factor: float) -> None:
    """The group draws r, Fang et al. draw the value itself: uniformly, once for every coordinate
    and attacker.
    """
    known = seeded(knowledge(regular(10, 4), 1500, torch.float64, [0, 1, 2]), 5)
    attack = attacks.TrimAttack(form=form, scope=scope, space=space, factor=factor)
    world, draws = World.of(known), {}
    for (sender, victim), found in received_lies(known, attack).items():
        between = trim_range(world, victim, **options_of(attack))
        crafted = array(found) - origin(world, victim, scope, space)
        drawn = draw_of(form, factor, crafted, between)
        clear = ~between.undecided & (np.abs(between.extreme) > 1e-3)
        assert ((drawn > -1e-9) & (drawn < 1 + 1e-9))[clear].all(), f"{sender} -> {victim}"
        assert_uniform(drawn[clear], f"{sender} -> {victim}")
        earlier = draws.setdefault(sender, np.where(clear, drawn, np.nan))
        both = clear & ~np.isnan(earlier)
        np.testing.assert_allclose(earlier[both], drawn[both], atol=1e-9)
    assert len(draws) == 3
    draws = {sender: np.nan_to_num(drawn, nan=0.5) for sender, drawn in draws.items()}
    assert (np.abs(np.corrcoef(np.stack(list(draws.values()))) - np.eye(len(draws))) < 0.15).all()


def draw_of(form: str, factor: float, crafted: np.ndarray, between: Range) -> np.ndarray:
    """The number in [0, 1] that a coordinate was made of: (r - 1) / (factor - 1), or its place in
    the interval.
    """
    extreme, far = between.extreme, between.far
    if form == "fang":
        return (crafted - extreme) / (far - extreme)
    r = np.where(np.abs(far) < np.abs(extreme), extreme / crafted, crafted / extreme)
    return (r - 1) / (factor - 1)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("space", SPACES)
def test_krum_noise(scope: str, space: str) -> None:
    """The first attacker tells the lie itself, the others something at most ``noise`` from it."""
    known = seeded(knowledge(complete(9), 20, torch.float64, [1, 4, 6]), 1)
    exact = received_lies(known, attacks.KrumAttack(noise=0.0, scope=scope, space=space))
    noisy = received_lies(known, attacks.KrumAttack(scope=scope, space=space))
    sizes = {edge: norm(array(noisy[edge] - exact[edge])) for edge in exact}
    assert all(sizes[1, victim] == 0 for victim in (0, 2, 3, 5, 7, 8))
    assert all(
        0 < sizes[sender, victim] <= 0.01 + 1e-12
        for sender in (4, 6)
        for victim in (0, 2, 3, 5, 7, 8)
    )
