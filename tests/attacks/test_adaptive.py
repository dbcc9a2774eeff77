"""Adaptive against its reference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_references import (
    Lie,
    World,
    adaptive_literal,
    adaptive_max,
    balance_limit,
    probe,
)
from tests.attack_rounds import (
    TOLERANCE,
    assert_close_to,
    magnitude,
    options_of,
    received_lies,
    rule_knowledge,
)
from tests.graphs import GRAPHS, complete, regular
from tests.references import array, norm

ADAPTIVE_RULES: dict[str, Any] = {
    "Balance": eq.Balance(gamma=0.6),
    "Balance-wide": eq.Balance(gamma=1.5, kappa=0.0),
    "BalanceMedian": eq.BalanceMedian(gamma=0.8),
    "Krum": eq.Krum(),
    "FLTrust": eq.FLTrust(),
    "FLTrust-plain": eq.FLTrust(weighted=False),
}


def line_of(known: Knowledge, world: World, victim: int, perturbation: str, **options: str) -> Any:
    inputs = options_of(known.rule) | dict(known.inputs)
    name = type(known.rule).__name__
    return probe(world, victim, name, inputs, perturbation=perturbation, **options)


@pytest.mark.parametrize("rule", ADAPTIVE_RULES.values(), ids=ADAPTIVE_RULES)
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
def test_adaptive_max(rule: Any, perturbation: str) -> None:
    """Wherever all strengths from 0 to a limit are accepted, and no others, the lie is at the limit
    within 1e-3.
    """
    decided = 0
    for turn, graph in enumerate([regular(10, 4), GRAPHS[6]]):
        d, dtype = [(50, torch.float64), (3, torch.float32)][turn]
        known = rule_knowledge(rule, graph, d, dtype, 0.3, seed=turn)
        world = World.of(known)
        for (sender, victim), found in received_lies(
            known, attacks.Adaptive(perturbation=perturbation)
        ).items():
            line = line_of(known, world, victim, perturbation)
            reach = 3 * (norm(line.mu) + norm(world.models[victim])) / max(norm(line.p), 1e-30)
            limit = adaptive_max(line, reach, steps=20) if norm(line.p) > 0 else 0.0
            if math.isnan(limit) or line.undecided.any():
                continue
            decided += 1
            apart = norm(array(found) - line.lie(limit))
            rounding = TOLERANCE[dtype] * norm(magnitude(world))
            assert apart <= 1e-3 * limit * norm(line.p) + rounding, (
                f"{sender} -> {victim}, limit {limit}"
            )
    assert decided >= 2


@pytest.mark.parametrize("center", ["mean", "own"])
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std", "own_update", "mean_update"])
@pytest.mark.parametrize(
    ("d", "dtype"), [(1, torch.float64), (50, torch.float32), (3000, torch.float32)]
)
def test_max_against_balance(
    center: Literal["mean", "own"], perturbation: Any, d: int, dtype: torch.dtype
) -> None:
    """The limit is the root of a quadratic equation, if the start of the line is accepted."""
    if center == "own" and perturbation == "std":
        pytest.skip("a deviation of one model is 0 in the reference")
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), d, dtype, 0.25, seed=3)
    world, threshold = World.of(known), 0.9 * math.exp(-0.3)
    compared = 0
    attack = attacks.Adaptive(perturbation=perturbation, center=center)
    for (sender, victim), found in received_lies(known, attack).items():
        line = line_of(known, world, victim, perturbation, center=center)
        if not line.accepted(0.0) or line.undecided.any():
            continue
        compared += 1
        limit = balance_limit(world, victim, threshold, line)
        assert norm(array(found) - line.lie(limit)) <= 1e-3 * limit * norm(line.p), (
            f"{sender} -> {victim}"
        )
    assert compared >= 3


@pytest.mark.parametrize(
    ("d", "dtype"), [(1, torch.float64), (50, torch.float32), (3000, torch.float32)]
)
def test_own_center_shortens(d: int, dtype: torch.dtype) -> None:
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), d, dtype, 0.25, seed=3)
    threshold = 0.9 * math.exp(-0.3)
    lies = received_lies(known, attacks.Adaptive(center="own"))
    assert lies
    for (_, victim), found in lies.items():
        own = array(known.models[victim])
        assert norm(array(found) - (1 - threshold) * own) <= 1e-3 * norm(own)


def test_own_center_is_stronger() -> None:
    """The mean is some way off, and that way counts."""
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 50, torch.float64, 0.25, seed=3)
    pulls = {}
    for center in ("mean", "own"):
        lies = received_lies(known, attacks.Adaptive(center=center))  # type: ignore[arg-type]
        pulls[center] = {
            edge: norm(array(lie)) / norm(array(known.models[edge[1]]))
            for edge, lie in lies.items()
        }
    assert all(pulls["own"][edge] < pulls["mean"][edge] for edge in pulls["own"])


def test_own_center_needs_receiver() -> None:
    with pytest.raises(
        ValueError, match="scope must be 'receiver' for center='own', found 'global'"
    ):
        attacks.Adaptive(center="own", scope="global")


def test_own_update_needs_receiver() -> None:
    message = "scope must be 'receiver' for perturbation='own_update', found 'global'"
    with pytest.raises(ValueError, match=message):
        attacks.Adaptive(perturbation="own_update", scope="global")


@pytest.mark.parametrize("perturbation", ["own_update", "mean_update"])
def test_update_needs_previous(perturbation: Any) -> None:
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 5, torch.float64, 0.25, seed=3)
    with pytest.raises(ValueError, match="previous must be given to Knowledge for Adaptive"):
        attacks.Adaptive(perturbation=perturbation).forge(replace(known, previous=None))


def test_models_at_rest() -> None:
    """Without updates there is no direction, and the lie is the start of the line."""
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 5, torch.float64, 0.25, seed=3)
    at_rest = replace(known, previous=known.models)
    undo = attacks.Adaptive(center="own", perturbation="own_update")
    lies = received_lies(at_rest, undo)
    assert lies
    assert all(torch.equal(lie, known.models[victim]) for (_, victim), lie in lies.items())


def test_global_ascent() -> None:
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 20, torch.float64, 0.25, seed=3)
    world = World.of(known)
    ascent = attacks.Adaptive(perturbation="mean_update", scope="global")
    (lie,) = ascent.forge(known).rows
    line = line_of(known, world, world.victims[0], "mean_update", scope="global")
    moved = (line.mu - array(lie)) / line.p
    assert moved.min() > 0
    assert moved.max() == pytest.approx(moved.min())


def test_max_global() -> None:
    """One lie for all victims is as strong as the most careful of them allows."""
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 20, torch.float64, 0.25, seed=3)
    world = World.of(known)
    lines = {i: line_of(known, world, i, "unit", scope="global") for i in world.victims}
    assert all(line.accepted(0.0) for line in lines.values())
    limit = min(balance_limit(world, i, 0.9 * math.exp(-0.3), line) for i, line in lines.items())
    lies = attacks.Adaptive(scope="global").forge(known)
    assert len(lies.rows) == 1
    assert norm(array(lies.rows[0]) - lines[world.victims[0]].lie(limit)) <= 1e-3 * limit


@pytest.mark.parametrize(
    "rule",
    [eq.Balance(gamma=0.5), eq.FedAvg(), eq.Median(), eq.TrimmedMean()],
    ids=["Balance", "FedAvg", "Median", "TrimmedMean"],
)
@pytest.mark.parametrize("perturbation", ["unit", "std"])
@pytest.mark.parametrize("start", [0.5, 10.0])
def test_literal(rule: Any, perturbation: str, start: float) -> None:
    """The search as it is written, step by step."""
    for graph in (regular(10, 4), complete(7), GRAPHS[6]):
        known = rule_knowledge(rule, graph, 5, torch.float64, 0.3, seed=4)
        world = World.of(known)
        attack = attacks.Adaptive(
            mode="literal", perturbation=perturbation, start=start, tolerance=1e-4
        )
        for (sender, victim), found in received_lies(known, attack).items():
            line = line_of(known, world, victim, perturbation)
            gamma = adaptive_literal(line, start=start, tolerance=1e-4)
            assert_close_to(
                found, Lie(line.lie(gamma), line.undecided), world, f"{sender} -> {victim}"
            )


def test_queries_leave_out() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(7, 100, generator=generator)
    models = noise[0] + 0.01 * noise[1:]
    out = torch.full((6, 100), 7.0)
    inputs: Any = {"t": 0, "total": 9, "out": out}
    known = Knowledge(models, eq.Topology.complete(6), [0], rule=eq.Balance(), inputs=inputs)
    for perturbation in ("unit", "sign"):
        assert attacks.Adaptive(perturbation=perturbation).forge(known) is not None
    assert (out == 7).all()
