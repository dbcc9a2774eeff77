"""Every message attack sends what its slow reference says, on every graph and at every size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_references import (
    ATTACK_REFERENCES,
    World,
    lie_strength,
    mean,
    observed_clients,
    origin,
    vectors,
)
from tests.attack_rounds import (
    SCOPES,
    SPACES,
    assert_agrees,
    every_graph,
    knowledge,
    options_of,
    received_lies,
    topology_of,
)
from tests.graphs import Graph, both_ways, complete, regular
from tests.references import array, norm

SIZES = [(1, torch.float32), (3, torch.float64), (50, torch.float32)]


SHARES = [0.2, 0.5, 0.8]


def spread(attack: type, *, everywhere: bool = True, **options: Any) -> dict[str, Any]:
    """An attack in every scope and space, or in two of the four combinations."""
    places = (
        [(scope, space) for scope in SCOPES for space in SPACES]
        if everywhere
        else list(zip(SCOPES, SPACES, strict=True))
    )
    name = "-".join([attack.__name__, *(f"{value}" for value in options.values())])
    return {
        f"{name}-{scope}-{space}": attack(scope=scope, space=space, **options)
        for scope, space in places
    }


ATTACKS: dict[str, Any] = {
    **spread(attacks.KrumAttack, form="group", noise=0.0),
    "KrumAttack-fang-receiver": attacks.KrumAttack(form="fang", noise=0.0),
    "KrumAttack-fang-global": attacks.KrumAttack(form="fang", noise=0.0, scope="global"),
    **spread(attacks.TrimAttack, form="group", random=False),
    **spread(attacks.TrimAttack, form="fang", random=False),
    "TrimAttack-factor-5": attacks.TrimAttack(factor=5.0, random=False),
    **spread(attacks.LIE, z=1.5),
    **spread(attacks.LIE, everywhere=False, z=0.3, sign=1),
    "Dissensus": attacks.Dissensus(),
    "Dissensus-metropolis": attacks.Dissensus(epsilon=0.7, weights="metropolis"),
    **spread(attacks.SignFlip),
    **spread(attacks.IPM, everywhere=False, epsilon=0.1),
    **spread(attacks.MinMax),
    **spread(attacks.MinMax, everywhere=False, perturbation="sign"),
    **spread(attacks.MinMax, everywhere=False, perturbation="std"),
    **spread(attacks.MinSum),
    **spread(attacks.MinSum, everywhere=False, perturbation="sign"),
    **spread(attacks.MinSum, everywhere=False, perturbation="std"),
    "Mimic": attacks.Mimic(),
    "NonFinite": attacks.NonFinite(),
    "NonFinite-inf": attacks.NonFinite(value=-math.inf),
    "Zero": attacks.Zero(),
    "Spectral": attacks.Spectral(),
    "Spectral-strong": attacks.Spectral(epsilon=20.0),
}


every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


@every_attack
@every_graph
def test_every_graph(attack: Any, graph: Graph) -> None:
    """From a few to most clients malicious; sizes and dtypes take turns."""
    for turn, share in enumerate(SHARES):
        d, dtype = SIZES[(turn + graph.n) % len(SIZES)]
        assert_agrees(attack, knowledge(graph, d, dtype, share, seed=turn))


@every_attack
@pytest.mark.parametrize(("d", "dtype"), [(3, torch.float32), (50, torch.float64)])
def test_random_rounds(attack: Any, d: int, dtype: torch.dtype) -> None:
    for seed in range(2):
        assert_agrees(
            attack, knowledge(regular(12, 5), d, dtype, 0.25 + 0.3 * seed, seed=10 + seed)
        )


@every_attack
def test_long_models(attack: Any) -> None:
    assert_agrees(attack, knowledge(regular(12, 6), 3000, torch.float32, [0, 5, 7], seed=1))


SCENES = ["one camp", "two camps", "a benign giant elsewhere", "a malicious giant elsewhere"]


def near_consensus(scene: str) -> Knowledge:
    """Two cliques with one edge between them; clients of a clique differ by 1e-3 of their norm, and
    update by as much.

    The cliques agree as well, or have nothing in common, or the first has a client of 1e4 times the
    norm.
    """
    cliques = [(a + base, b + base) for base in (0, 6) for a in range(6) for b in range(a)]
    generator = torch.Generator().manual_seed(0)
    camps = torch.randn(2, 400, generator=generator)[torch.arange(12) // 6 * (scene != "one camp")]
    models = camps + 1e-3 * torch.randn(12, 400, generator=generator)
    if "giant" in scene:
        models[3 if "benign" in scene else 0] *= 1e4
    previous = models - 1e-3 * torch.randn(12, 400, generator=generator)
    topology = topology_of(both_ways("two-cliques", 12, [*cliques, (5, 6)]))
    return Knowledge(models, topology, [0, 8, 11], previous=previous)


FINITE = [
    name
    for name in ATTACKS
    if not any(other in name for other in ("global", "Spectral", "NonFinite"))
]


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("scene", SCENES)
def test_near_consensus(name: str, scene: str) -> None:
    """A lie's difference to the mean is right to 1 %, next to the rounding of larger numbers."""
    attack, known = ATTACKS[name], near_consensus(scene)
    world, options = World.of(known), options_of(attack)
    space = options.get("space", "model")
    lies = {edge: lie for edge, lie in received_lies(known, attack).items() if edge[1] >= 6}
    assert len(lies) == 8  # from clients 8 and 11 to 6, 7, 9 and 10
    for (sender, victim), found in lies.items():
        expected = ATTACK_REFERENCES[type(attack).__name__](world, victim, **options)
        rows = vectors(world, observed_clients(world, victim, "receiver"), space)
        middle = origin(world, victim, "receiver", space) + mean(list(rows))
        wrong = np.where(expected.undecided, 0.0, array(found) - expected.vector)
        assert norm(wrong) <= 0.01 * norm(expected.vector - middle) + 1e-6 * norm(middle), (
            f"{sender} -> {victim}"
        )


@pytest.mark.parametrize(
    "graph", [regular(20, 10), regular(30, 4), complete(15)], ids=lambda graph: graph.name
)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("scope", SCOPES)
def test_lie_default_z(graph: Graph, count: int, scope: str) -> None:
    known = knowledge(graph, 7, torch.float64, list(range(count)))
    assert not math.isnan(lie_strength(graph.n, count))
    assert_agrees(attacks.LIE(scope=scope), known)


@pytest.mark.parametrize(
    ("n", "m", "z"), [(20, 4, 0.157), (30, 6, 0.210), (11, 2, 0.140), (10, 1, -0.140)]
)
def test_lie_z_table(n: int, m: int, z: float) -> None:
    """The table of the definitions; a small neighborhood makes z zero or negative."""
    assert lie_strength(n, m) == pytest.approx(z, abs=6e-4)
    assert lie_strength(10, 2) == 0


@pytest.mark.parametrize("target", [2, 5])
def test_mimic_target(target: int) -> None:
    assert_agrees(attacks.Mimic(target=target), knowledge(regular(10, 4), 5, torch.float32, [0, 1]))


@every_graph
def test_isolation_is_dissensus(graph: Graph) -> None:
    known = knowledge(graph, 5, torch.float32, 0.4)
    alone = received_lies(known, attacks.Dissensus(epsilon=1.0))
    for edge, lie in received_lies(known, attacks.Isolation()).items():
        assert torch.equal(lie, alone[edge])
