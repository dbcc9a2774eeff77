"""Lies computed by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_references import (
    ATTACK_REFERENCES,
    World,
    krum_attack,
    larger_root,
)
from tests.attack_rounds import knowledge, options_of, received_lies, seeded, topology_of
from tests.graphs import Graph, regular


def by_hand(
    values: list[float], malicious: list[int], previous: list[float] | None = None, **details: Any
) -> Knowledge:
    """Clients with one parameter that all hear each other."""
    models = torch.tensor(values, dtype=torch.float64)[:, None]
    before = None if previous is None else torch.tensor(previous, dtype=torch.float64)[:, None]
    return Knowledge(
        models, eq.Topology.complete(len(values)), malicious, previous=before, **details
    )


# Client 0 hears 3 and 5 from benign clients, whose mean is 4 and standard deviation 1, and client
# 3, whose model is -2.
HAND: dict[str, tuple[Any, float]] = {
    "lie": (attacks.LIE(z=1.0), 3.0),
    "lie-plus": (attacks.LIE(z=2.0, sign=1), 6.0),
    "lie-update": (attacks.LIE(z=1.0, space="update"), 0.5 + 3.0 - 1.0),
    "sign-flip-model": (attacks.SignFlip(space="model"), -4.0),
    "sign-flip-update": (attacks.SignFlip(), 0.5 - 3.0),
    "sign-flip-update-global": (attacks.SignFlip(scope="global"), 2.5 / 3 - 6.5 / 3),
    "sign-flip-model-global": (attacks.SignFlip(scope="global", space="model"), -3.0),
    "ipm": (attacks.IPM(epsilon=0.5, space="model"), -2.0),
    "dissensus": (attacks.Dissensus(), 1 - 1.5 * (2 + 4)),
    "dissensus-metropolis": (attacks.Dissensus(epsilon=1.0, weights="metropolis"), 1 - (2 + 4)),
    "min-max": (attacks.MinMax(), 3.0),  # |4 - gamma - 5| = 2
    "min-max-std": (attacks.MinMax(perturbation="std"), 3.0),
    "min-sum": (attacks.MinSum(), 3.0),  # 2 + 2 gamma^2 = 4
    "trim": (attacks.TrimAttack(random=False), -4.0),  # the sum is positive, the smallest is -2
    "trim-fang": (
        attacks.TrimAttack(form="fang", random=False),
        1.5,
    ),  # 3 and 5 grew; the smallest is 3
    "krum": (attacks.KrumAttack(noise=0.0), -(2.0**-17)),  # the pair 3, 5 always wins
    "mimic": (attacks.Mimic(), 1.0),
    "zero": (attacks.Zero(), 0.0),
}


@pytest.mark.parametrize(("attack", "expected"), HAND.values(), ids=HAND)
def test_by_hand(attack: Any, expected: float) -> None:
    known = by_hand([1.0, 3.0, 5.0, -2.0], [3], previous=[0.5, 1.0, 1.0, 0.0])
    reference = ATTACK_REFERENCES[type(attack).__name__](World.of(known), 0, **options_of(attack))
    assert reference.vector == pytest.approx([expected])
    assert received_lies(known, attack)[3, 0].tolist() == pytest.approx([expected])


def test_krum_wins_two_of_three() -> None:
    """Two equal lies are each other's nearest neighbor, so Krum takes them as they are: -1 against
    positive models.
    """
    known = by_hand([1.0, 3.0, 5.0, -2.0], [2, 3])
    assert krum_attack(World.of(known), 0).vector == pytest.approx([-1.0])
    assert [received_lies(known, attacks.KrumAttack(noise=0.0))[s, 0].item() for s in (2, 3)] == [
        -1.0,
        -1.0,
    ]


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(
    ("space", "expected"), [("model", [-3.0, -5.0]), ("update", [0.5 - 2, 0.5 - 4])]
)
def test_krum_negates_two_messages(noise: float, space: Any, expected: list[float]) -> None:
    """In a ring, each malicious client tells minus its own; everybody else in a larger graph is
    told the same.
    """
    known = by_hand([1.0, 3.0, 7.0, 5.0], [1, 3], previous=[0.5, 1.0, 1.0, 1.0])
    attack, ring = attacks.KrumAttack(noise=noise, space=space), eq.Topology.ring(4)
    lies = received_lies(dataclasses.replace(known, topology=ring), attack)
    assert [lies[s, 0].item() for s in (1, 3)] == pytest.approx(expected)
    alone = received_lies(dataclasses.replace(known, topology=ring, malicious=[3]), attack)
    assert alone[3, 0].item() == pytest.approx(expected[1])


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_krum_negation_is_local(noise: float) -> None:
    """Client 9 hears two clients in one graph, three in the other; some of those it hears have no
    model.
    """
    edges, attack = list(regular(9, 4).edges), attacks.KrumAttack(noise=noise)
    few, more = (
        Graph("", 10, tuple([*edges, *((s, 9) for s in hears)])) for hears in ((0, 1), (0, 1, 2))
    )
    known = knowledge(more, 4, torch.float32, [0, 1, 4])
    known = dataclasses.replace(
        known, models=known.models.index_fill(0, torch.tensor(1), torch.nan), previous=None
    )
    expected = received_lies(seeded(known, 3), attack)
    found = received_lies(seeded(dataclasses.replace(known, topology=topology_of(few)), 3), attack)
    assert torch.equal(found[0, 9], -known.models[0])
    assert found[1, 9].isfinite().all()
    assert all(
        torch.allclose(found[edge], expected[edge], atol=1e-5) for edge in found if edge[1] != 9
    )


def test_krum_fang_by_hand() -> None:
    """Client 0 started at 0 and hears 3, 4, 6 and, from client 4, 5: all choices tie, so client 1's
    is Krum's.

    lambda_max is 1, the least distance to the nearest, plus 6, the largest from the start. Krum
    never takes
    -lambda, so it halves 20 times to below 1e-5.
    """
    known = by_hand([1.0, 3.0, 4.0, 6.0, 5.0], [4], previous=[0.0] * 5)
    assert krum_attack(World.of(known), 0, form="fang").vector == pytest.approx([-7 / 2**20])
    assert received_lies(known, attacks.KrumAttack(form="fang", noise=0.0))[
        4, 0
    ].tolist() == pytest.approx([-7 / 2**20])


@pytest.mark.parametrize(
    ("rule", "mode", "expected"),
    [
        (eq.Balance(gamma=0.3), "max", 7.0),  # 0.3 * 10 below
        (eq.Balance(gamma=0.3, kappa=0.0), "max", 7.0),
        (
            eq.Balance(gamma=0.3),
            "literal",
            0.0,
        ),  # the first test succeeds though the lie is rejected
        (eq.FedAvg(), "literal", -10.0),  # every test does more damage: 10 + 5 + 2.5 + ...
        (eq.FLTrust(), "max", 0.0),  # up to the sign
        (eq.BalanceMedian(gamma=0.3), "max", 10.0),  # nobody may be further than the median, 0
    ],
)
def test_adaptive(rule: Any, mode: str, expected: float) -> None:
    """Everybody benign has 10."""
    known = by_hand([10.0] * 4, [3], rule=rule, inputs={"t": 0, "total": 5})
    assert received_lies(known, attacks.Adaptive(mode=mode))[3, 0].item() == pytest.approx(
        expected, abs=0.011
    )


def test_larger_root() -> None:
    """||(3, 0) - x (1, 0)|| = 5 at -2 and 8."""
    assert larger_root(np.array([3.0, 0.0]), np.array([1.0, 0.0]), 25.0) == pytest.approx(8.0)
    assert math.isnan(larger_root(np.array([0.0, 3.0]), np.array([1.0, 0.0]), 4.0))
