"""Mistakes with clients and graphs: the error names argument, expected and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx
import pytest
import torch

import equipoise as eq
from tests.error_messages.mistakes import (
    MEDIAN,
    MODELS,
    OWN,
    PAIR,
    RECEIVED,
    RING,
    Mistake,
    check_error,
    construct,
    simulate,
    train,
)

MISTAKES: dict[str, Mistake] = {
    "all models, one client's messages": (
        lambda: MEDIAN(MODELS, RECEIVED),
        "own of shape (n, d) needs an Inbox of n receivers, found a tensor; use Topology.deliver",
    ),
    "one model, all messages": (
        lambda: MEDIAN(OWN, RING.deliver(MODELS)),
        "own must have one model per receiver, expected 4, found 1; inbox.of(i) is the inbox of "
        "client i",
    ),
    "an inbox of others": (
        lambda: MEDIAN(MODELS[:3], RING.deliver(MODELS)),
        "own must have one model per receiver, expected 4, found 3",
    ),
    "a graph of others": (
        lambda: eq.Topology.ring(5).deliver(MODELS),
        "models must be a floating-point tensor of shape (n, d) with n = 5 clients, found "
        "float32 (4, 3)",
    ),
    "a simulator's graph of others": (
        lambda: construct(topology=eq.Topology.ring(5)),
        "topology must be a Topology of 4 clients, as models has, found 5 clients",
    ),
    "a round's graph of others": (
        lambda: simulate(topology=lambda t: eq.Topology.ring(5)),
        "topology must be a Topology of 4 clients, as models has, found 5 clients",
    ),
    "a simulator's graph of networkx": (
        lambda: construct(topology=networkx.cycle_graph(4)),
        "topology must be a Topology of 4 clients, as models has, found Graph; "
        "Topology.from_networkx(graph) makes one",
    ),
    "a class for a graph": (
        lambda: construct(topology=eq.Topology),
        "topology must be a value or a function of the round, found the class Topology",
    ),
    "a simulator's rules of others": (
        lambda: construct(rule=eq.PerClient([MEDIAN] * 3)),
        "rules must be one per client, expected 4, found 3",
    ),
    "a simulator's alphas of others": (
        lambda: construct(alpha=torch.full((3,), 0.5)),
        "alpha must be a number or a tensor of shape (4,) for own of shape (4, 3), found float32 "
        "(3,)",
    ),
    "a simulator's tolerances of others": (
        lambda: construct(tolerated=torch.zeros(3, dtype=torch.int64)),
        "tolerated must be one number or one per client (4,), found (3,)",
    ),
    "rules of others": (
        lambda: eq.PerClient([MEDIAN] * 3)(MODELS, RING.deliver(MODELS)),
        "rules must be one per client, expected 4, found 3",
    ),
    "trainer of others": (
        lambda: train([PAIR] * 5),
        "models must be float32 (5, 3) like flatten(model), found float32 (4, 3)",
    ),
    "an unknown malicious client": (
        lambda: RING.deliver(MODELS, MODELS, malicious=[9]),
        "malicious must be from 0 to 3, found 9",
    ),
    "unknown malicious clients": (
        lambda: eq.Topology.regular(4, 2, malicious=[-1, 9]),
        "malicious must be from 0 to 3, found -1 to 9",
    ),
    "a share of malicious clients": (
        lambda: RING.femb(0.2),  # type: ignore[arg-type]
        "malicious must be a bool mask of shape (4,) or client ids, found 0.2",
    ),
    "lies of nobody": (
        lambda: RING.deliver(MODELS, MODELS),
        "malicious must name the clients that may lie, found None",
    ),
    "an attack of nobody": (
        lambda: simulate(attack=eq.attacks.Zero()),
        "malicious must say which clients attack, found None; [] is no client",
    ),
    "a matrix as a graph": (
        lambda: eq.Topology([[0, 1], [1, 0]]),  # type: ignore[arg-type]
        "senders must be an int64 tensor of shape (n, k), n > 0, found list; "
        "Topology.from_edges and Topology.from_adjacency take other forms",
    ),
    "a matrix for a graph": (
        lambda: eq.attacks.Knowledge(MODELS, RING.adjacency(), [0]),  # type: ignore[arg-type]
        "topology must be a Topology, found bool (4, 4)",
    ),
    "a graph that there is not": (
        lambda: eq.Topology.regular(5, 3),
        "n * degree must be even, found 5 * 3 = 15",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_error_message(make: Callable[[], Any], message: str) -> None:
    check_error(make, message)
