"""Tuned moves the aggregate of each victim farther than the strengths it tried before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from equipoise.testing import attacked_rounds
from equipoise.testing._attacked_rounds import delivered, random_knowledge, with_rule
from tests.attack_cases import edges_to_victims
from tests.attack_references import World, mean

ATTACKS = {
    "LIE": (attacks.LIE(z=0.5), attacks.LIE(z=0.0)),
    "LIE-global": (attacks.LIE(z=0.5, scope="global"), attacks.LIE(z=0.0, scope="global")),
    "IPM": (attacks.IPM(0.5, space="model"), attacks.IPM(0.0, space="model")),
    "IPM-negative": (attacks.IPM(-1.0, space="model"), attacks.IPM(0.0, space="model")),
    "SignFlip": (attacks.SignFlip(), attacks.SignFlip(epsilon=0.0)),
    "Dissensus": (attacks.Dissensus(), attacks.Dissensus(epsilon=0.0)),
    "Isolation": (attacks.Isolation(), attacks.Isolation(epsilon=0.0)),
    "Spectral": (attacks.Spectral(), attacks.Spectral(epsilon=0.0)),
}
RULES = [eq.Gossip(), eq.GTS(), eq.ClippedGossip(), eq.IOS(), eq.Balance(gamma=0.9)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
every_attack = pytest.mark.parametrize(("attack", "unarmed"), ATTACKS.values(), ids=ATTACKS)


def lines(known: Knowledge, attack: Any, unarmed: Any) -> dict[int, tuple[Tensor, Tensor]]:
    """The first point and the direction of the lies to each victim."""
    armed, at_zero = (delivered(known, one.forge(known)) for one in (attack, unarmed))
    return {
        i: (known.models[i], armed[sender, i] - at_zero[sender, i])
        for sender, i in edges_to_victims(known)
    }


def damage_to(known: Knowledge, victim: int, lie: Tensor) -> float:
    """The distance of one victim's aggregate from the mean of its benign neighbors."""
    world = World.of(known)
    lies = eq.Lies.per_receiver(lie.expand(len(known.models), -1), only=[victim])
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    out = known.rule(known.models, inbox, **known.inputs).model[victim]
    benign = world.benign_neighbors_of(victim) or [victim]
    goal = torch.from_numpy(mean([world.models[j] for j in benign]))
    return float((out.double() - goal).norm())


def searched(damage: Callable[[float], float], queries: int) -> float:
    """The strength for one victim: double the step, then shorten it around the best."""
    best = 0.0
    most = damage(best)
    step = 1.0
    is_growing = True
    for query in range(1, queries):
        up = is_growing or query % 2 == 0
        tested = max(0.0, best + step if up else best - step)
        found = damage(tested)
        is_better = found > most
        if is_better:
            best = tested
            most = found
        is_growing = is_growing and is_better
        step = step * 2 if is_growing else step / 2**0.5
    return best


@every_rule
@every_attack
@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
def test_agrees_with_reference(attack: Any, unarmed: Any, rule: Any) -> None:
    known = with_rule(random_knowledge(9, 5, [0, 1], dtype=torch.float64), rule)
    sent = delivered(known, attacks.Tuned(attack, queries=9).forge(known))
    for victim, (start, direction) in lines(known, attack, unarmed).items():

        def damage(s: float) -> float:
            return damage_to(known, victim, start + s * direction)  # noqa: B023

        expected = damage(searched(damage, 9))
        for sender, i in edges_to_victims(known):
            if i == victim:
                assert damage_to(known, i, sent[sender, i]) == pytest.approx(expected, rel=1e-9)


@every_rule
@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@settings(max_examples=10)
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_does_more_than_fixed_strength(rule: Any, known: Knowledge) -> None:
    """Strengths 0 and 1 are the first two queries."""
    known = with_rule(known, rule)
    sent = delivered(known, attacks.Tuned(attacks.Dissensus()).forge(known))
    for victim, (start, direction) in lines(
        known, attacks.Dissensus(), attacks.Dissensus(epsilon=0.0)
    ).items():
        tuned = {damage_to(known, i, sent[s, i]) for s, i in edges_to_victims(known) if i == victim}
        for strength in (0.0, 1.0):
            fixed = damage_to(known, victim, start + strength * direction)
            assert min(tuned) >= fixed * (1 - 1e-9)


def test_finds_the_edge_of_trimming() -> None:
    """GTS drops the farthest message: the most harmful lie is as far as the farthest benign one."""
    models = torch.tensor([[0.0], [1.0], [2.0], [4.0], [0.0]], dtype=torch.float64)
    known = Knowledge(models, eq.Topology.complete(5), [4], rule=eq.GTS(tolerated=1))
    lies = attacks.Tuned(attacks.Dissensus(), queries=40).forge(known)
    assert lies is not None
    assert lies.rows[0].item() == pytest.approx(-4, rel=1e-3)


@pytest.mark.parametrize("queries", [1, 5])
def test_queries_the_rule_that_often(queries: int) -> None:
    calls = []

    def rule(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
        calls.append(own)
        return eq.Gossip()(own, received, **inputs)

    attacks.Tuned(attacks.Dissensus(), queries).forge(
        with_rule(random_knowledge(9, 5, [0, 1]), rule)
    )
    assert len(calls) == queries


@pytest.mark.parametrize(
    "attack", [attacks.Zero(), attacks.Gaussian(), attacks.LabelFlip({3: 5}), attacks.Dissensus]
)
def test_needs_an_attack_with_strength(attack: Any) -> None:
    with pytest.raises(ValueError, match="attack must be an attack on messages with a strength"):
        attacks.Tuned(attack)


def test_needs_a_rule() -> None:
    known = Knowledge(torch.ones(3, 1), eq.Topology.complete(3), [0])
    with pytest.raises(ValueError, match="rule must be a rule with one exchange per round"):
        attacks.Tuned(attacks.Dissensus()).forge(known)
