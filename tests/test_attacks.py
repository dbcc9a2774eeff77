"""Every message attack tells every victim what its slow reference says, on every kind of graph and at every size.

Compared is what victims are delivered. Lies may differ by rounding: 1e-5 in float32 and 1e-9 in float64, relative to
the largest value of that parameter at any client. What malicious clients tell each other is their affair.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_references import (
    ATTACK_REFERENCES,
    Lie,
    Range,
    World,
    adaptive_literal,
    adaptive_max,
    balance_limit,
    crowd,
    krum_attack,
    larger_root,
    lie_strength,
    mean,
    origin,
    probe,
    trim_range,
    vectors,
)
from tests.graphs import GRAPHS, Graph, both_ways, complete, models_of, regular
from tests.references import array, norm

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
SIZES = [(1, torch.float32), (3, torch.float64), (50, torch.float32)]
SHARES = [0.2, 0.5, 0.8]

SCOPES = ["receiver", "global"]
SPACES = ["model", "update"]


def spread(attack: type, *, everywhere: bool = True, **options: Any) -> dict[str, Any]:
    """An attack in every scope and space, or in two of the four combinations."""
    places = (
        [(scope, space) for scope in SCOPES for space in SPACES]
        if everywhere
        else list(zip(SCOPES, SPACES, strict=True))
    )
    name = "-".join([attack.__name__, *(f"{value}" for value in options.values())])
    return {f"{name}-{scope}-{space}": attack(scope=scope, space=space, **options) for scope, space in places}


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
every_graph = pytest.mark.parametrize("graph", [graph for graph in GRAPHS if graph.edges], ids=lambda graph: graph.name)


def topology_of(graph: Graph) -> eq.Topology:
    return eq.Topology.from_edges(graph.n, graph.edges, directed=True)


def knowledge(
    graph: Graph, d: int, dtype: torch.dtype, share: float | list[int], seed: int = 0, **details: Any
) -> Knowledge:
    """A round on a graph in which a share of the clients, or the given ones, are malicious."""
    generator = torch.Generator().manual_seed(seed)
    models = models_of(graph, d, dtype, seed)
    update = 0.1 * torch.randn(models.shape, generator=generator, dtype=torch.float64)
    order = torch.randperm(graph.n, generator=generator).tolist()
    malicious = sorted(order[: round(share * graph.n)]) if isinstance(share, float) else share
    previous = (models.double() - update).to(dtype)
    details = {"inputs": {"t": 3, "total": 10}} | details
    return Knowledge(models, topology_of(graph), malicious, previous=previous, **details)


def told(known: Knowledge, attack: Any) -> dict[tuple[int, int], Tensor]:
    """What victims are delivered along every edge (malicious sender, benign receiver)."""
    lies = attack.forge(known)
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    return {(s, i): inbox.bank[inbox.slots[i, slot]] for s, i, slot in dishonest_edges(known)}


def dishonest_edges(known: Knowledge) -> Iterator[tuple[int, int, int]]:
    """Sender, receiver and the receiver's slot, for every edge from a malicious to a benign client."""
    liars = known.malicious_mask.tolist()
    for i in range(known.topology.n):
        for slot, sender in enumerate(known.topology.neighbors(i).tolist()):
            if liars[sender] and not liars[i]:
                yield sender, i, slot


def options_of(attack: Any) -> dict[str, Any]:
    return {field.name: getattr(attack, field.name) for field in dataclasses.fields(attack)}


def assert_agrees(attack: Any, known: Knowledge) -> None:
    world, options = World.of(known), options_of(attack)
    reference = ATTACK_REFERENCES[type(attack).__name__]
    expected: dict[tuple[int, int], Lie] = {}
    for (sender, victim), found in told(known, attack).items():
        key = -1 if options.get("scope") == "global" else victim, sender * isinstance(attack, attacks.KrumAttack)
        if key not in expected:
            expected[key] = reference(world, victim, **options, sender=sender)
        assert_told(found, expected[key], world, f"{sender} -> {victim}")


def assert_told(found: Tensor, expected: Lie, world: World, edge: str, slack: float = 1.0) -> None:
    same = (array(found) == expected.vector) | (np.isnan(array(found)) & np.isnan(expected.vector))
    difference = np.abs(np.where(same, 0.0, array(found)) - np.where(same, 0.0, expected.vector))
    allowed = slack * TOLERANCE[found.dtype] * (magnitude(world) + np.abs(expected.vector))
    wrong = ~(same | (difference <= allowed) | expected.undecided)
    worst = int(np.argmax(wrong))
    assert not wrong.any(), (
        f"{edge}, {wrong.sum()} of {len(wrong)} coordinates, first {worst}: "
        f"{array(found)[worst]}, expected {expected.vector[worst]} within {allowed[worst]}"
    )


def magnitude(world: World) -> np.ndarray:
    """The largest absolute value of every parameter: what rounding errors are relative to."""
    before = 0.0 if world.previous is None else np.abs(world.previous).max(0)
    return np.maximum(np.abs(world.models).max(0), before)


# Against the references


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
        assert_agrees(attack, knowledge(regular(12, 5), d, dtype, 0.25 + 0.3 * seed, seed=10 + seed))


@every_attack
def test_long_models(attack: Any) -> None:
    assert_agrees(attack, knowledge(regular(12, 6), 3000, torch.float32, [0, 5, 7], seed=1))


SCENES = ["one camp", "two camps", "a benign giant elsewhere", "a malicious giant elsewhere"]


def near_consensus(scene: str) -> Knowledge:
    """Two cliques with one edge between them; clients of a clique differ by 1e-3 of their norm, and update by as much.

    The cliques agree as well, or have nothing in common, or the first has a client of 1e4 times the norm.
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


FINITE = [name for name in ATTACKS if not any(other in name for other in ("global", "Spectral", "NonFinite"))]


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("scene", SCENES)
def test_near_consensus(name: str, scene: str) -> None:
    """What a lie adds to the crowd is right to 1 %: it must not drown in the rounding of far larger numbers."""
    attack, known = ATTACKS[name], near_consensus(scene)
    world, options = World.of(known), options_of(attack)
    space = options.get("space", "model")
    lies = {edge: lie for edge, lie in told(known, attack).items() if edge[1] >= 6}
    assert len(lies) == 8  # from clients 8 and 11 to 6, 7, 9 and 10
    for (sender, victim), found in lies.items():
        expected = ATTACK_REFERENCES[type(attack).__name__](world, victim, **options)
        rows = vectors(world, crowd(world, victim, "receiver"), space)
        middle = origin(world, victim, "receiver", space) + mean(list(rows))
        wrong = np.where(expected.undecided, 0.0, array(found) - expected.vector)
        assert norm(wrong) <= 0.01 * norm(expected.vector - middle) + 1e-6 * norm(middle), f"{sender} -> {victim}"


@pytest.mark.parametrize("graph", [regular(20, 10), regular(30, 4), complete(15)], ids=lambda graph: graph.name)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("scope", SCOPES)
def test_lie_computes_its_strength(graph: Graph, count: int, scope: str) -> None:
    known = knowledge(graph, 7, torch.float64, list(range(count)))
    assert not math.isnan(lie_strength(graph.n, count))
    assert_agrees(attacks.LIE(scope=scope), known)


@pytest.mark.parametrize(("n", "m", "z"), [(20, 4, 0.157), (30, 6, 0.210), (11, 2, 0.140), (10, 1, -0.140)])
def test_values_of_lies_strength(n: int, m: int, z: float) -> None:
    """The table of the definitions: also that a small neighbourhood would make z zero or negative."""
    assert lie_strength(n, m) == pytest.approx(z, abs=6e-4)
    assert lie_strength(10, 2) == 0


@pytest.mark.parametrize("target", [2, 5])
def test_mimic_of_a_given_client(target: int) -> None:
    assert_agrees(attacks.Mimic(target=target), knowledge(regular(10, 4), 5, torch.float32, [0, 1]))


@every_graph
def test_isolation_is_dissensus_at_one(graph: Graph) -> None:
    known = knowledge(graph, 5, torch.float32, 0.4)
    alone = told(known, attacks.Dissensus(epsilon=1.0))
    for edge, lie in told(known, attacks.Isolation()).items():
        assert torch.equal(lie, alone[edge])


# Adaptive

ADAPTIVE_RULES: dict[str, Any] = {
    "Balance": eq.Balance(gamma=0.6),
    "Balance-wide": eq.Balance(gamma=1.5, kappa=0.0),
    "BalanceMedian": eq.BalanceMedian(gamma=0.8),
    "Krum": eq.Krum(),
    "FLTrust": eq.FLTrust(),
    "FLTrust-plain": eq.FLTrust(weighted=False),
}


def rule_knowledge(rule: Any, graph: Graph, d: int, dtype: torch.dtype, share: float | list[int], seed: int) -> Any:
    """A round whose victims follow a rule and tolerate as many as are malicious."""
    known = knowledge(graph, d, dtype, share, seed, rule=rule)
    tolerated = known.topology.malicious_neighbors(known.malicious)
    return dataclasses.replace(known, inputs={"t": 3, "total": 10, "tolerated": tolerated})


def line_of(known: Knowledge, world: World, victim: int, perturbation: str, scope: str = "receiver") -> Any:
    inputs = options_of(known.rule) | dict(known.inputs)
    return probe(world, victim, type(known.rule).__name__, inputs, perturbation=perturbation, scope=scope)


@pytest.mark.parametrize("rule", ADAPTIVE_RULES.values(), ids=ADAPTIVE_RULES)
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
def test_adaptive_max(rule: Any, perturbation: str) -> None:
    """Wherever all strengths from 0 to a limit are accepted, and no others, the lie is at the limit within 1e-3."""
    decided = 0
    for turn, graph in enumerate([regular(10, 4), GRAPHS[6]]):
        d, dtype = [(50, torch.float64), (3, torch.float32)][turn]
        known = rule_knowledge(rule, graph, d, dtype, 0.3, seed=turn)
        world = World.of(known)
        for (sender, victim), found in told(known, attacks.Adaptive(perturbation=perturbation)).items():
            line = line_of(known, world, victim, perturbation)
            reach = 3 * (norm(line.mu) + norm(world.models[victim])) / max(norm(line.p), 1e-30)
            limit = adaptive_max(line, reach, steps=20) if norm(line.p) > 0 else 0.0
            if math.isnan(limit) or line.undecided.any():
                continue
            decided += 1
            apart = norm(array(found) - line.lie(limit))
            rounding = TOLERANCE[dtype] * norm(magnitude(world))
            assert apart <= 1e-3 * limit * norm(line.p) + rounding, f"{sender} -> {victim}, limit {limit}"
    assert decided >= 2


@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@pytest.mark.parametrize(("d", "dtype"), [(1, torch.float64), (50, torch.float32), (3000, torch.float32)])
def test_adaptive_max_against_balance(perturbation: str, d: int, dtype: torch.dtype) -> None:
    """The limit is the root of a quadratic equation, if the mean of the crowd is accepted."""
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), d, dtype, 0.25, seed=3)
    world, threshold = World.of(known), 0.9 * math.exp(-0.3)
    compared = 0
    for (sender, victim), found in told(known, attacks.Adaptive(perturbation=perturbation)).items():
        line = line_of(known, world, victim, perturbation)
        if not line.accepted(0.0) or line.undecided.any():
            continue
        compared += 1
        limit = balance_limit(world, victim, threshold, line)
        assert norm(array(found) - line.lie(limit)) <= 1e-3 * limit * norm(line.p), f"{sender} -> {victim}"
    assert compared >= 3


@pytest.mark.parametrize(("d", "dtype"), [(1, torch.float64), (50, torch.float32), (3000, torch.float32)])
def test_adaptive_around_own_shortens_it_by_all_that_balance_allows(d: int, dtype: torch.dtype) -> None:
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), d, dtype, 0.25, seed=3)
    threshold = 0.9 * math.exp(-0.3)
    lies = told(known, attacks.Adaptive(center="own"))
    assert lies
    for (_, victim), found in lies.items():
        own = array(known.models[victim])
        assert norm(array(found) - (1 - threshold) * own) <= 1e-3 * norm(own)


def test_adaptive_around_own_takes_more_from_balance_than_around_the_mean() -> None:
    """The mean is some way off, and that way counts."""
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 50, torch.float64, 0.25, seed=3)
    pulls = {}
    for center in ("mean", "own"):
        lies = told(known, attacks.Adaptive(center=center))  # type: ignore[arg-type]
        pulls[center] = {edge: norm(array(lie)) / norm(array(known.models[edge[1]])) for edge, lie in lies.items()}
    assert all(pulls["own"][edge] < pulls["mean"][edge] for edge in pulls["own"])


def test_adaptive_around_own_is_for_each_victim() -> None:
    with pytest.raises(ValueError, match="scope must be 'receiver' for center='own', found 'global'"):
        attacks.Adaptive(center="own", scope="global")


def test_adaptive_max_for_everybody() -> None:
    """One lie for all victims is as strong as the most careful of them allows."""
    known = rule_knowledge(eq.Balance(gamma=0.9), regular(12, 6), 20, torch.float64, 0.25, seed=3)
    world = World.of(known)
    lines = {i: line_of(known, world, i, "unit", "global") for i in world.victims}
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
def test_adaptive_literal(rule: Any, perturbation: str, start: float) -> None:
    """The search as it is written, step by step."""
    for graph in (regular(10, 4), complete(7), GRAPHS[6]):
        known = rule_knowledge(rule, graph, 5, torch.float64, 0.3, seed=4)
        world = World.of(known)
        attack = attacks.Adaptive(mode="literal", perturbation=perturbation, start=start, tolerance=1e-4)
        for (sender, victim), found in told(known, attack).items():
            line = line_of(known, world, victim, perturbation)
            gamma = adaptive_literal(line, start=start, tolerance=1e-4)
            assert_told(found, Lie(line.lie(gamma), line.undecided), world, f"{sender} -> {victim}")


# By hand


def by_hand(
    values: list[float], malicious: list[int], previous: list[float] | None = None, **details: Any
) -> Knowledge:
    """Clients with one parameter that all hear each other."""
    models = torch.tensor(values, dtype=torch.float64)[:, None]
    before = None if previous is None else torch.tensor(previous, dtype=torch.float64)[:, None]
    return Knowledge(models, eq.Topology.complete(len(values)), malicious, previous=before, **details)


# Client 0 hears 3 and 5 from benign clients, whose mean is 4 and standard deviation 1, and client 3, whose model is -2.
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
    "trim-fang": (attacks.TrimAttack(form="fang", random=False), 1.5),  # 3 and 5 grew; the smallest is 3
    "krum": (attacks.KrumAttack(noise=0.0), -(2.0**-17)),  # the pair 3, 5 always wins
    "mimic": (attacks.Mimic(), 1.0),
    "zero": (attacks.Zero(), 0.0),
}


@pytest.mark.parametrize(("attack", "expected"), HAND.values(), ids=HAND)
def test_by_hand(attack: Any, expected: float) -> None:
    known = by_hand([1.0, 3.0, 5.0, -2.0], [3], previous=[0.5, 1.0, 1.0, 0.0])
    reference = ATTACK_REFERENCES[type(attack).__name__](World.of(known), 0, **options_of(attack))
    assert reference.vector == pytest.approx([expected])
    assert told(known, attack)[3, 0].tolist() == pytest.approx([expected])


def test_krum_attack_by_hand_wins_with_two_of_three() -> None:
    """Two equal lies are each other's nearest neighbour, so Krum takes them as they are: -1 against positive models."""
    known = by_hand([1.0, 3.0, 5.0, -2.0], [2, 3])
    assert krum_attack(World.of(known), 0).vector == pytest.approx([-1.0])
    assert [told(known, attacks.KrumAttack(noise=0.0))[s, 0].item() for s in (2, 3)] == [-1.0, -1.0]


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(("space", "expected"), [("model", [-3.0, -5.0]), ("update", [0.5 - 2, 0.5 - 4])])
def test_krum_attack_reverses_where_there_are_two_messages(noise: float, space: Any, expected: list[float]) -> None:
    """In a ring, each malicious client tells minus its own; everybody else in a larger graph is told the same."""
    known = by_hand([1.0, 3.0, 7.0, 5.0], [1, 3], previous=[0.5, 1.0, 1.0, 1.0])
    attack, ring = attacks.KrumAttack(noise=noise, space=space), eq.Topology.ring(4)
    lies = told(dataclasses.replace(known, topology=ring), attack)
    assert [lies[s, 0].item() for s in (1, 3)] == pytest.approx(expected)
    alone = told(dataclasses.replace(known, topology=ring, malicious=[3]), attack)
    assert alone[3, 0].item() == pytest.approx(expected[1])


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_victim_of_few_messages_changes_nothing_for_others(noise: float) -> None:
    """Client 9 hears two clients in one graph, three in the other; some of those it hears have no model."""
    edges, attack = list(regular(9, 4).edges), attacks.KrumAttack(noise=noise)
    few, more = (Graph("", 10, tuple([*edges, *((s, 9) for s in hears)])) for hears in ((0, 1), (0, 1, 2)))
    known = knowledge(more, 4, torch.float32, [0, 1, 4])
    known = dataclasses.replace(known, models=known.models.index_fill(0, torch.tensor(1), torch.nan), previous=None)
    expected = told(seeded(known, 3), attack)
    found = told(seeded(dataclasses.replace(known, topology=topology_of(few)), 3), attack)
    assert torch.equal(found[0, 9], -known.models[0])
    assert found[1, 9].isfinite().all()
    assert all(torch.allclose(found[edge], expected[edge], atol=1e-5) for edge in found if edge[1] != 9)


def test_krum_attack_of_fang_by_hand() -> None:
    """Client 0 started at 0 and hears 3, 4, 6 and, from client 4, 5: all choices tie, so client 1's is Krum's.

    lambda_max is 1, the least distance to the nearest, plus 6, the largest from the start. Krum never takes
    -lambda, so it halves 20 times to below 1e-5.
    """
    known = by_hand([1.0, 3.0, 4.0, 6.0, 5.0], [4], previous=[0.0] * 5)
    assert krum_attack(World.of(known), 0, form="fang").vector == pytest.approx([-7 / 2**20])
    assert told(known, attacks.KrumAttack(form="fang", noise=0.0))[4, 0].tolist() == pytest.approx([-7 / 2**20])


@pytest.mark.parametrize(
    ("rule", "mode", "expected"),
    [
        (eq.Balance(gamma=0.3), "max", 7.0),  # 0.3 * 10 below
        (eq.Balance(gamma=0.3, kappa=0.0), "max", 7.0),
        (eq.Balance(gamma=0.3), "literal", 0.0),  # the first test succeeds though the lie is rejected
        (eq.FedAvg(), "literal", -10.0),  # every test does more damage: 10 + 5 + 2.5 + ...
        (eq.FLTrust(), "max", 0.0),  # up to the sign
        (eq.BalanceMedian(gamma=0.3), "max", 10.0),  # nobody may be further than the median, 0
    ],
)
def test_adaptive_by_hand(rule: Any, mode: str, expected: float) -> None:
    """Everybody benign has 10."""
    known = by_hand([10.0] * 4, [3], rule=rule, inputs={"t": 0, "total": 5})
    assert told(known, attacks.Adaptive(mode=mode))[3, 0].item() == pytest.approx(expected, abs=0.011)


def test_a_root_by_hand() -> None:
    """||(3, 0) - x (1, 0)|| = 5 at -2 and 8."""
    assert larger_root(np.array([3.0, 0.0]), np.array([1.0, 0.0]), 25.0) == pytest.approx(8.0)
    assert math.isnan(larger_root(np.array([0.0, 3.0]), np.array([1.0, 0.0]), 4.0))


# Random attacks: facts instead of values


def seeded(known: Knowledge, seed: int) -> Knowledge:
    return dataclasses.replace(known, generator=torch.Generator().manual_seed(seed))


def assert_uniform(values: np.ndarray, what: str) -> None:
    """Kolmogorov's distance of values from the uniform distribution on [0, 1], at less than one error in 1e6."""
    ordered = np.sort(values)
    steps = np.arange(len(values) + 1) / len(values)
    distance = max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max())
    assert distance < 2.7 / math.sqrt(len(values)), what


@pytest.mark.parametrize("std", [200**0.5, 0.1])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gaussian(std: float, dtype: torch.dtype) -> None:
    """Every malicious client broadcasts noise of its own around zero, whatever the models are."""
    known = seeded(knowledge(complete(7), 4000, dtype, [1, 4, 5]), 0)
    lies = told(known, attacks.Gaussian(std=std))
    for sender in (1, 4, 5):
        noise = [lies[sender, victim] for victim in (0, 2, 3, 6)]
        assert all(torch.equal(noise[0], other) for other in noise)
        shares = 0.5 * (1 + torch.erf(noise[0].double() / (std * math.sqrt(2))))
        assert_uniform(shares.numpy(), f"sender {sender}")
    assert abs(float(torch.corrcoef(torch.stack([lies[s, 0] for s in (1, 4, 5)])).triu(1).abs().max())) < 0.1


def test_gaussian_has_variance_200() -> None:
    assert attacks.Gaussian() == attacks.Gaussian(std=math.sqrt(200))


@pytest.mark.parametrize("form", ["group", "fang"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("factor", [2.0, 3.5])
def test_random_trim(form: str, scope: str, space: str, factor: float) -> None:
    """The group draws r, Fang et al. draw the value itself: uniformly, once for every coordinate and attacker."""
    known = seeded(knowledge(regular(10, 4), 1500, torch.float64, [0, 1, 2]), 5)
    attack = attacks.TrimAttack(form=form, scope=scope, space=space, factor=factor)
    world, draws = World.of(known), {}
    for (sender, victim), found in told(known, attack).items():
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
    """The number in [0, 1] that a coordinate was made of: (r - 1) / (factor - 1), or its place in the interval."""
    extreme, far = between.extreme, between.far
    if form == "fang":
        return (crafted - extreme) / (far - extreme)
    r = np.where(np.abs(far) < np.abs(extreme), extreme / crafted, crafted / extreme)
    return (r - 1) / (factor - 1)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("space", SPACES)
def test_krum_attack_with_noise(scope: str, space: str) -> None:
    """The first attacker tells the lie itself, the others something at most ``noise`` from it."""
    known = seeded(knowledge(complete(9), 20, torch.float64, [1, 4, 6]), 1)
    exact = told(known, attacks.KrumAttack(noise=0.0, scope=scope, space=space))
    noisy = told(known, attacks.KrumAttack(scope=scope, space=space))
    sizes = {edge: norm(array(noisy[edge] - exact[edge])) for edge in exact}
    assert all(sizes[1, victim] == 0 for victim in (0, 2, 3, 5, 7, 8))
    assert all(0 < sizes[sender, victim] <= 0.01 + 1e-12 for sender in (4, 6) for victim in (0, 2, 3, 5, 7, 8))


# Who follows an attack, and when


@pytest.mark.parametrize(("t", "active"), [(0, False), (2, False), (3, True), (6, True), (7, False), (9, False)])
def test_window(t: int, active: bool) -> None:
    """From start, before stop."""
    known = knowledge(regular(10, 4), 3, torch.float32, [0, 1], inputs={"t": t, "total": 10})
    window = attacks.Window(attacks.Zero(), start=3, stop=7)
    assert (window.forge(known) is not None) == active
    for (sender, _), found in told(known, window).items():
        assert torch.equal(found, torch.zeros(3) if active else known.models[sender])


FLIP = attacks.LabelFlip({3: 5})


@pytest.mark.parametrize(
    "attack",
    [
        attacks.OnlyClients(FLIP, (0,)),
        attacks.Combined(attacks.Zero(), FLIP),
        attacks.InModelSpace(attacks.Window(FLIP, 0, 5)),
        attacks.Window(attacks.Combined(FLIP), 0, 5),
    ],
    ids=repr,
)
def test_a_window_does_not_take_the_data_of_a_combination_for_clean(attack: Any) -> None:
    text = r"attack must have a method poison, found \w+, .* poisoners\(attack, client, t\)"
    with pytest.raises(ValueError, match=text):
        attacks.Window(attack, 0, 5).poison(torch.zeros(2, 1), torch.tensor([3, 3]))


@pytest.mark.parametrize(
    ("attack", "flips"),
    [
        (FLIP, True),
        (attacks.Window(FLIP, 0, 1), True),
        (attacks.Zero(), False),
        (attacks.Combined(attacks.Zero(), attacks.OnlyClients(attacks.InModelSpace(attacks.MinMax()), (0,))), False),
    ],
    ids=repr,
)
def test_a_window_poisons_as_its_attack_does(attack: Any, flips: bool) -> None:
    labels = attacks.Window(attack, 0, 5).poison(torch.zeros(2, 1), torch.tensor([3, 3]))[1]
    assert labels.tolist() == [5 if flips else 3] * 2


@pytest.mark.parametrize("attack", [attacks.Zero(), attacks.LIE(z=1.0), attacks.Mimic(), attacks.MinMax()], ids=repr)
def test_only_some_follow(attack: Any) -> None:
    """The others tell the truth, and what the followers say does not depend on who else follows."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    everybody = told(known, attack)
    for (sender, victim), found in told(known, attacks.OnlyClients(attack, clients=[0, 7])).items():
        expected = known.models[3] if sender == 3 else everybody[sender, victim]
        assert torch.allclose(found, expected, rtol=1e-12), f"{sender} -> {victim}"


@pytest.mark.parametrize("kind", [list, set, iter, torch.tensor, np.array], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("masked", [False, True], ids=["ids", "mask"])
@settings(max_examples=20)
@given(clients=st.lists(st.integers(0, 6), unique=True))
def test_only_takes_clients_of_any_kind(kind: Any, masked: bool, clients: list[int]) -> None:
    """Masks and ids, as everywhere; who is named is poisoned, and nobody else, and equal attacks are equal."""
    if masked and kind is set:
        return
    flip, known = attacks.LabelFlip({3: 5}), knowledge(complete(7), 2, torch.float32, [0, 3, 6])
    attack = attacks.OnlyClients(flip, kind([i in clients for i in range(7)] if masked else clients))
    assert attack == attacks.OnlyClients(flip, clients=tuple(clients))
    assert hash(attack) == hash(attacks.OnlyClients(flip, clients=tuple(clients)))
    assert [i for i in range(7) if attacks.poisoners(attack, i)] == sorted(clients)
    lies = dataclasses.replace(attack, attack=attacks.Zero()).forge(known)
    assert ([] if lies is None else lies.senders.unique().tolist()) == sorted({0, 3, 6} & set(clients))


def test_only_benign_clients_change_nothing() -> None:
    """Who is not malicious follows no attack."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    for (sender, _), found in told(known, attacks.OnlyClients(attacks.Zero(), clients=[1, 2])).items():
        assert torch.equal(found, known.models[sender])


@pytest.mark.parametrize(
    "attack", [attacks.Zero(), attacks.LIE(z=1.0), attacks.Dissensus(), attacks.KrumAttack(noise=0.0)], ids=repr
)
def test_lies_about_models_are_told_as_the_updates_that_lead_there(attack: Any) -> None:
    """A victim that follows the update arrives at what it would be told if models were sent."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    origin = known.previous
    assert origin is not None
    sent = known.models - origin
    updates = dataclasses.replace(known, models=sent, previous=torch.zeros_like(sent), origin=origin)
    expected, found = told(known, attack), told(updates, attacks.InModelSpace(attack))
    assert found.keys() == expected.keys()
    for sender, victim in found:
        torch.testing.assert_close(origin[victim] + found[sender, victim], expected[sender, victim])
    plain = told(known, attacks.InModelSpace(attack))
    assert all(torch.equal(plain[edge], expected[edge]) for edge in expected)


# Models that are not finite


def survivors() -> dict[str, Any]:
    """Attacks that learn from benign models, in all their forms."""
    return {
        repr(attack): attack
        for attack in (
            *(attacks.LIE(z=1.0), attacks.IPM(), attacks.SignFlip(), attacks.MinMax(), attacks.MinSum()),
            *(attacks.Dissensus(), attacks.Spectral(), attacks.Adaptive(rule=eq.Balance(kappa=0))),
            *(attacks.TrimAttack(form, random=False) for form in ("group", "fang")),
            *(attacks.KrumAttack(form, noise=0.0) for form in ("group", "fang")),
        )
    }


@pytest.mark.parametrize("attack", survivors().values(), ids=survivors())
def test_one_broken_victim_does_not_spoil_the_lies_to_others(attack: Any) -> None:
    """On a ring, client 2 hears malicious clients only, and has nobody else to be compared with."""
    known = knowledge(complete(8), 4, torch.float32, [1, 3])
    models = known.models.index_fill(0, torch.tensor(2), torch.nan)
    broken = dataclasses.replace(known, models=models, topology=eq.Topology.ring(8))
    lies = attack.forge(broken)
    assert sorted(set(lies.receivers.tolist())) == [0, 2, 4]
    for receiver, row in zip(lies.receivers.tolist(), lies.rows[lies.which], strict=True):
        assert receiver == 2 or row.isfinite().all(), receiver


@pytest.mark.parametrize("broken", [[1], [1, 2], [2, 5], [1, 2, 4]], ids=str)
def test_mimic_repeats_somebody_who_has_a_model(broken: list[int]) -> None:
    known = knowledge(complete(7), 4, torch.float32, [0, 3])
    models = known.models.index_fill(0, torch.tensor(broken), torch.inf)
    assert_agrees(attacks.Mimic(), dataclasses.replace(known, models=models))
    alive = next(i for i in (1, 2, 4, 5, 6) if i not in broken)
    assert torch.equal(told(dataclasses.replace(known, models=models), attacks.Mimic())[0, 6], known.models[alive])


def test_mimic_says_nothing_where_nobody_has_a_model() -> None:
    models = torch.full((3, 4), torch.nan).index_fill(0, torch.tensor(1), 1.0)
    assert attacks.Mimic().forge(Knowledge(models, eq.Topology.complete(3), [1])) is None


@pytest.mark.parametrize("attack", [attacks.TrimAttack(random=False), attacks.KrumAttack(noise=0.0)], ids=repr)
def test_a_malicious_client_without_a_model_is_not_in_the_crowd(attack: Any) -> None:
    known = knowledge(complete(6), 4, torch.float32, [0, 1])
    broken = dataclasses.replace(known, models=known.models.index_fill(0, torch.tensor(0), torch.nan), previous=None)
    for edge, found in told(broken, attack).items():
        assert found.isfinite().all(), edge
        assert (found != 0).any(), edge


@pytest.mark.parametrize("scope", ["receiver", "global"])
@pytest.mark.parametrize("name", ["LIE", "IPM", "SignFlip", "MinMax", "MinSum", "KrumAttack", "TrimAttack", "Adaptive"])
def test_where_nobody_is_left_there_is_nothing_to_say(name: str, scope: str) -> None:
    models = torch.full((3, 4), torch.nan).index_fill(0, torch.tensor(1), 1.0)
    known = Knowledge(models, eq.Topology.complete(3), [1], previous=models, rule=eq.Balance(kappa=0))
    assert getattr(attacks, name)(scope=scope).forge(known) is None


def test_the_base_of_a_global_lie_is_that_of_those_who_are_left() -> None:
    known = knowledge(complete(8), 4, torch.float32, [1, 3])
    assert known.previous is not None
    lost = torch.tensor(5)
    models, previous = (x.index_fill(0, lost, torch.nan) for x in (known.models, known.previous))
    broken = dataclasses.replace(known, models=models, previous=previous)
    lies = attacks.KrumAttack("fang", noise=0.0, scope="global").forge(broken)
    assert lies is not None
    assert lies.rows.isfinite().all()


@pytest.mark.parametrize(
    "attack",
    [attacks.LIE(z=1.0, scope="global"), attacks.MinSum(perturbation="std", scope="global")],
    ids=repr,
)
def test_deviations_of_huge_models_do_not_overflow(attack: Any) -> None:
    known = knowledge(complete(6), 3, torch.float32, [0])
    huge = dataclasses.replace(known, models=known.models * torch.tensor([1, 1, 1e30, 1, 1, 1])[:, None], previous=None)
    lies = attack.forge(huge)
    assert lies.rows.isfinite().all()
    if isinstance(attack, attacks.LIE):
        crowd = huge.models[1:].double()
        torch.testing.assert_close(lies.rows[0].double(), crowd.mean(0) - crowd.std(0, correction=0), rtol=1e-5, atol=0)


def test_asking_a_rule_writes_nothing_to_its_output() -> None:
    models, out = torch.randn(100) + 0.01 * torch.randn(6, 100), torch.full((6, 100), 7.0)
    inputs: Any = {"t": 0, "total": 9, "out": out}
    known = Knowledge(models, eq.Topology.complete(6), [0], rule=eq.Balance(), inputs=inputs)
    for perturbation in ("unit", "sign"):
        assert attacks.Adaptive(perturbation=perturbation).forge(known) is not None
    assert (out == 7).all()


def test_a_knowledge_needs_parameters_and_models_that_match() -> None:
    graph = eq.Topology.complete(4)
    with pytest.raises(ValueError, match="models must have parameters, found none"):
        Knowledge(torch.zeros(4, 0), graph, [0])
    for name in ("previous", "origin"):
        with pytest.raises(ValueError, match=rf"{name} must be like models, float32 \(4, 2\), found int"):
            Knowledge(torch.zeros(4, 2), graph, [0], **{name: 3})  # type: ignore[arg-type]


def test_the_slowest_mode_of_a_graph_that_falls_apart() -> None:
    """Malicious client 2 is all that joins 0 and 1 to 3 and 4: these are driven away from those."""
    graph = eq.Topology.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    models = torch.tensor([[10.0], [11.0], [0.0], [30.0], [32.0]])
    lies = attacks.Spectral().forge(Knowledge(models, graph, [2]))
    assert lies is not None
    mode = 0.5 * (10 + 11 - 30 - 32)  # of the vector (1, 1, -1, -1) / 2
    torch.testing.assert_close(lies.rows, torch.tensor([[11 + 0.5 * mode], [30 - 0.5 * mode]]))


def test_together() -> None:
    """Each malicious client follows the last of the attacks that has something for it."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7, 8])
    mixed = attacks.Combined(
        attacks.OnlyClients(attacks.Zero(), clients=[0, 3]),
        attacks.OnlyClients(attacks.Mimic(target=5), clients=[3]),
        attacks.OnlyClients(attacks.NonFinite(value=math.inf), clients=[7]),
    )
    says = {0: torch.zeros(4), 3: known.models[5], 7: torch.full((4,), math.inf), 8: known.models[8]}
    lies = told(known, mixed)
    assert {sender for sender, _ in lies} == {0, 3, 7, 8}
    for (sender, victim), found in lies.items():
        assert torch.equal(found, says[sender].to(found)), f"{sender} -> {victim}"


def test_together_with_an_attack_of_everybody() -> None:
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    mimics, flips = told(known, attacks.Mimic()), told(known, attacks.SignFlip())
    lies = told(known, attacks.Combined(attacks.SignFlip(), attacks.OnlyClients(attacks.Mimic(), clients=[3])))
    for edge, found in lies.items():
        assert torch.equal(found, (mimics if edge[0] == 3 else flips)[edge])
    overridden = told(known, attacks.Combined(attacks.OnlyClients(attacks.Mimic(), clients=[3]), attacks.SignFlip()))
    for edge, found in overridden.items():
        assert torch.equal(found, flips[edge])


def test_windows_of_different_attacks() -> None:
    """One attack in the first half of the rounds, another one in the second."""
    halves = attacks.Combined(attacks.Window(attacks.Zero(), 0, 5), attacks.Window(attacks.Mimic(), 5, 10))
    for t in range(11):
        known = knowledge(complete(5), 2, torch.float32, [4], inputs={"t": t, "total": 11})
        expected = known.models[4] if t == 10 else torch.zeros(2) if t < 5 else known.models[0]
        assert torch.equal(told(known, halves)[4, 0], expected)
    assert halves.forge(known) is None


# Spectral


def two_clusters() -> Graph:
    """Clients 0 to 3 and 4 to 7 hear each other, 3 and 4 too, and everybody hears client 8."""
    cliques = [(a + base, b + base) for base in (0, 4) for a in range(4) for b in range(a)]
    return both_ways("two-clusters", 9, [*cliques, (3, 4), *((i, 8) for i in range(8))])


def test_spectral_pushes_clusters_apart() -> None:
    """Lies to the two sides of the benign graph's bottleneck are opposite, and cancel over all benign clients."""
    known = knowledge(two_clusters(), 6, torch.float64, [8])
    pushes = {i: lie - known.models[i] for (_, i), lie in told(known, attacks.Spectral()).items()}
    assert sorted(pushes) == list(range(8))
    assert all(push.isfinite().all() and push.norm() > 0 for push in pushes.values())
    for left in range(4):
        for right in range(4, 8):
            assert float(pushes[left] @ pushes[right]) < 0
    assert torch.stack(list(pushes.values())).sum(0).abs().max() < 1e-9
    again = told(known, attacks.Spectral())
    assert all(torch.equal(again[8, i] - known.models[i], push) for i, push in pushes.items())


# What is asked for


@pytest.mark.parametrize(
    "attack",
    [
        attacks.SignFlip(),
        attacks.IPM(),
        attacks.LIE(space="update"),
        attacks.MinMax(space="update"),
        attacks.MinSum(space="update", scope="global"),
        attacks.KrumAttack(space="update"),
        attacks.KrumAttack(form="fang", noise=0.0),
        attacks.TrimAttack(space="update"),
        attacks.TrimAttack(form="fang"),
    ],
    ids=repr,
)
def test_previous_models_are_asked_for(attack: Any) -> None:
    known = dataclasses.replace(knowledge(regular(10, 4), 3, torch.float32, [0, 1]), previous=None)
    with pytest.raises(ValueError, match="previous"):
        attack.forge(known)


@pytest.mark.parametrize("mode", ["max", "literal"])
def test_adaptive_asks_for_the_rule(mode: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        attacks.Adaptive(mode=mode).forge(knowledge(regular(10, 4), 3, torch.float32, [0, 1]))


def test_window_asks_for_the_round() -> None:
    known = knowledge(regular(10, 4), 3, torch.float32, [0, 1], inputs={})
    with pytest.raises(ValueError, match=r"\bt\b"):
        attacks.Window(attacks.Zero(), 0, 5).forge(known)


@pytest.mark.parametrize(
    ("attack", "options", "named"),
    [
        (attacks.KrumAttack, {"form": "other"}, "form"),
        (attacks.TrimAttack, {"form": "other"}, "form"),
        (attacks.LIE, {"scope": "other"}, "scope"),
        (attacks.LIE, {"space": "other"}, "space"),
        (attacks.SignFlip, {"space": "other"}, "space"),
        (attacks.IPM, {"scope": "other"}, "scope"),
        (attacks.MinMax, {"perturbation": "other"}, "perturbation"),
        (attacks.MinSum, {"perturbation": "other"}, "perturbation"),
        (attacks.Adaptive, {"mode": "other"}, "mode"),
        (attacks.Adaptive, {"perturbation": "other"}, "perturbation"),
        (attacks.Adaptive, {"center": "other"}, "center"),
        (attacks.Dissensus, {"weights": "other"}, "weights"),
        (attacks.Gaussian, {"std": -1.0}, "std"),
    ],
)
def test_unknown_options_are_named(attack: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        attack(**options)


def test_mimic_needs_a_benign_client() -> None:
    with pytest.raises(ValueError, match="target"):
        attacks.Mimic(target=1).forge(knowledge(regular(10, 4), 3, torch.float32, [0, 1]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: attacks.Gaussian("a"), "std must be a finite number >= 0, found 'a'"),
        (lambda: attacks.FeatureNoise(std=None), "std must be a finite number >= 0, found None"),
        (lambda: attacks.LIE(z="a"), "z must be a finite number, found 'a'"),
        (
            lambda: attacks.Backdoor(attacks.EveryNth(1), scale="a"),
            "scale must be a finite number > 0 or None, found 'a'",
        ),
        (lambda: attacks.NonFinite("a"), "value must be NaN or infinite, found 'a'"),
        (lambda: attacks.NonFinite(None), "value must be NaN or infinite, found None"),
        (lambda: attacks.Adaptive(rule=eq.Balance), "rule must be a rule .* found the class Balance; "),
        (lambda: attacks.Adaptive(rule=3), "rule must be a rule .* found int; "),
        (lambda: attacks.Mimic(1.0), r"target must be an integer at least 0, found 1\.0"),
        (lambda: attacks.Window(attacks.Zero(), "a", 2), "start must be an integer at least 0, found 'a'"),
        (lambda: attacks.Window("x", 0, 1), "attack must have a method forge or a method poison, found str"),
        (lambda: attacks.OnlyClients(attacks.Zero, (1,)), "attack must have a method forge or a method poison, found "),
        (
            lambda: attacks.OnlyClients(attacks.Zero(), 3),
            r"clients must be a bool mask of shape \(n,\) or client ids, found 3",
        ),
        (
            lambda: attacks.OnlyClients(attacks.Zero(), [0.5]),
            r"clients must be a bool mask of shape \(n,\) or client ids, found float64 \(1,\)",
        ),
        (lambda: attacks.OnlyClients(attacks.Zero(), [-1]), "clients must be at least 0, found -1"),
        (
            lambda: attacks.OnlyClients(attacks.Zero(), (2, 2)),
            "clients must name every client once, found client 2 more than once",
        ),
        (lambda: attacks.InModelSpace(3), "attack must have a method forge or a method poison, found int"),
        (lambda: attacks.Combined(attacks.Zero(), 3), "attack must have a method forge or a method poison, found int"),
    ],
)
def test_options_that_are_none(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_where_everybody_is_malicious_nobody_hides() -> None:
    assert attacks.lie_z_max(3, 3) == 0


def test_attacks_on_data_tell_no_lies_in_combinations() -> None:
    known = knowledge(complete(5), 3, torch.float32, [0, 1])
    flip = attacks.LabelFlip({3: 5})
    assert attacks.OnlyClients(flip, clients=(0,)).forge(known) is None
    assert attacks.InModelSpace(flip).forge(known) is None
    assert (
        attacks.InModelSpace(attacks.Window(attacks.Zero(), 5, 9)).forge(
            dataclasses.replace(known, origin=known.models)
        )
        is None
    )
    assert attacks.poisoners(attacks.InModelSpace(flip), client=0) == (flip,)
    assert attacks.Combined(flip, flip).forge(known) is None
    both = attacks.Combined(flip, attacks.OnlyClients(attacks.Zero(), clients=(1,))).forge(known)
    assert both is not None
    assert both.senders.unique().tolist() == [1]
