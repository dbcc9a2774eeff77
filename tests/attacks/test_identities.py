"""Equations that single attacks fulfil."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from equipoise.testing import attacked_rounds
from equipoise.testing._attacked_rounds import delivered, random_knowledge
from tests.attack_cases import edges_to_victims, few_examples
from tests.attack_references import (
    World,
    deviation,
    lie_strength,
    mean,
    observed_clients,
    origin,
    perturbation_of,
    vectors,
)
from tests.references import array, norm


@pytest.mark.parametrize("attack", [attacks.MinMax, attacks.MinSum])
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@pytest.mark.parametrize(("scope", "space"), [("receiver", "model"), ("global", "update")])
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_bounds_are_tight(
    attack: type, perturbation: str, scope: str, space: str, known: Knowledge
) -> None:
    world = World.of(known)
    messages = delivered(
        known, attack(perturbation=perturbation, scope=scope, space=space).forge(known)
    )
    for sender, victim in edges_to_victims(known):
        rows = vectors(world, observed_clients(world, victim, scope), space)
        lie = array(messages[sender, victim]) - origin(world, victim, scope, space)
        apart = [norm(lie - row) ** 2 for row in rows]
        between = [[norm(a - b) ** 2 for b in rows] for a in rows]
        found = max(apart) if attack is attacks.MinMax else sum(apart)
        limit = max(map(max, between)) if attack is attacks.MinMax else min(map(sum, between))
        assert found <= limit * (1 + 1e-6) + 1e-12, f"{sender} -> {victim}"
        if perturbation_of(rows, perturbation)[0].any():
            assert found >= limit * (1 - 1e-3) - 1e-12, f"{sender} -> {victim}"


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("scope", "space"), [("receiver", "model"), ("global", "model"), ("receiver", "update")]
)
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)), z=st.floats(-3, 3))
def test_lie_moves_by_deviations(
    sign: int, scope: str, space: str, known: Knowledge, z: float
) -> None:
    world = World.of(known)
    messages = delivered(known, attacks.LIE(z=z, sign=sign, scope=scope, space=space).forge(known))
    for sender, victim in edges_to_victims(known):
        rows = list(vectors(world, observed_clients(world, victim, scope), space))
        moved = array(messages[sender, victim]) - origin(world, victim, scope, space) - mean(rows)
        assert moved == pytest.approx(sign * z * deviation(rows), abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(10, 6), (10, 7), (10, 9), (2, 1), (5, 3)])
def test_lie_malicious_majority(n: int, m: int) -> None:
    """Where most are malicious the formula has no z, but lies stay finite."""
    assert math.isnan(lie_strength(n, m))
    assert attacks.LIE().forge(random_knowledge(n, 3, list(range(m)), p=1.0)).rows.isfinite().all()


@few_examples
@given(known=attacked_rounds())
def test_isolation_cancels_gossip(known: Knowledge) -> None:
    """The mean of a victim's messages is the victim's own model: FedAvg does not move it."""
    lies = attacks.Dissensus(epsilon=1.0).forge(known)
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    moved = (eq.FedAvg()(known.models, inbox).model - known.models)[known.victims].abs()
    rounding = {torch.float32: 1e-5, torch.float64: 1e-13}[known.models.dtype]
    assert (moved <= rounding * (1 + known.models.abs().max())).all()


@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)), epsilon=st.floats(0, 5))
def test_dissensus_reverses_gossip(known: Knowledge, epsilon: float) -> None:
    """With epsilon the sum of all differences is (1 - epsilon) times what benign neighbors
    contribute.
    """
    messages = delivered(known, attacks.Dissensus(epsilon=epsilon).forge(known))
    for i in known.victims.tolist():
        pulls = {s: messages[s, i] - known.models[i] for s in known.topology.neighbors(i).tolist()}
        benign = sum(
            (pull for s, pull in pulls.items() if not known.malicious_mask[s]),
            torch.zeros_like(known.models[i]),
        )
        assert torch.allclose(sum(pulls.values()), (1 - epsilon) * benign, rtol=0, atol=1e-10)


@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_metropolis_isolation(known: Knowledge) -> None:
    """Weighed by 1 / (1 + the larger degree), the differences cancel."""
    messages = delivered(known, attacks.Dissensus(epsilon=1.0, weights="metropolis").forge(known))
    degrees = known.topology.degrees.tolist()
    for i in known.victims.tolist():
        moved = torch.zeros_like(known.models[i])
        for s in known.topology.neighbors(i).tolist():
            moved += (messages[s, i] - known.models[i]) / (1 + max(degrees[i], degrees[s]))
        assert moved.abs().max() < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("attack", "option"),
    [
        (attacks.Adaptive, "start"),
        (attacks.Adaptive, "tolerance"),
        (attacks.Dissensus, "epsilon"),
        (attacks.Gaussian, "std"),
        (attacks.IPM, "epsilon"),
        (attacks.KrumAttack, "noise"),
        (attacks.LIE, "z"),
        (attacks.SignFlip, "epsilon"),
        (attacks.Spectral, "epsilon"),
        (attacks.TrimAttack, "factor"),
    ],
)
def test_strengths_must_be_finite(attack: Any, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        attack(**{option: value})


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_random_trim_is_flag(value: Any) -> None:
    with pytest.raises(ValueError, match=f"random must be True or False, found {value!r}"):
        attacks.TrimAttack(random=value)
