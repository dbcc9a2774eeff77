"""Rounds on graphs, and comparisons of attacks with their references.

The comparison is of delivered messages. Lies may differ by rounding: 1e-5 in float32 and 1e-9 in
float64, relative to the largest value of that parameter at any client. Messages between malicious
clients are not compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_references import (
    ATTACK_REFERENCES,
    Lie,
    World,
)
from tests.graphs import GRAPHS, Graph, models_of
from tests.references import array

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


SCOPES = ["receiver", "global"]


SPACES = ["model", "update"]


every_graph = pytest.mark.parametrize(
    "graph", [graph for graph in GRAPHS if graph.edges], ids=lambda graph: graph.name
)


def topology_of(graph: Graph) -> eq.Topology:
    return eq.Topology.from_edges(graph.n, graph.edges, directed=True)


def knowledge(
    graph: Graph,
    d: int,
    dtype: torch.dtype,
    share: float | list[int],
    seed: int = 0,
    **details: Any,
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


def received_lies(known: Knowledge, attack: Any) -> dict[tuple[int, int], Tensor]:
    """The messages to victims along every edge (malicious sender, benign receiver)."""
    lies = attack.forge(known)
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    return {(s, i): inbox.bank[inbox.slots[i, slot]] for s, i, slot in malicious_edges(known)}


def malicious_edges(known: Knowledge) -> Iterator[tuple[int, int, int]]:
    """Yield sender, receiver and slot of every edge from a malicious to a benign client."""
    malicious = known.malicious_mask.tolist()
    for i in range(known.topology.n):
        for slot, sender in enumerate(known.topology.neighbors(i).tolist()):
            if malicious[sender] and not malicious[i]:
                yield sender, i, slot


def options_of(attack: Any) -> dict[str, Any]:
    return {field.name: getattr(attack, field.name) for field in dataclasses.fields(attack)}


def assert_agrees(attack: Any, known: Knowledge) -> None:
    world, options = World.of(known), options_of(attack)
    reference = ATTACK_REFERENCES[type(attack).__name__]
    expected: dict[tuple[int, int], Lie] = {}
    for (sender, victim), found in received_lies(known, attack).items():
        key = (
            -1 if options.get("scope") == "global" else victim,
            sender * isinstance(attack, attacks.KrumAttack),
        )
        if key not in expected:
            expected[key] = reference(world, victim, **options, sender=sender)
        assert_close_to(found, expected[key], world, f"{sender} -> {victim}")


def assert_close_to(
    found: Tensor, expected: Lie, world: World, edge: str, slack: float = 1.0
) -> None:
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


def rule_knowledge(
    rule: Any, graph: Graph, d: int, dtype: torch.dtype, share: float | list[int], seed: int
) -> Any:
    """A round whose victims follow a rule and tolerate as many as are malicious."""
    known = knowledge(graph, d, dtype, share, seed, rule=rule)
    tolerated = known.topology.malicious_neighbors(known.malicious)
    return dataclasses.replace(known, inputs={"t": 3, "total": 10, "tolerated": tolerated})


def seeded(known: Knowledge, seed: int) -> Knowledge:
    return dataclasses.replace(known, generator=torch.Generator().manual_seed(seed))
