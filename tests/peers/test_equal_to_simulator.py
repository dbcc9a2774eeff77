"""Peers that are all in time compute the models of a simulation, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq
from tests.cases import LEARNS, RULES
from tests.peers import runs

# A simulation draws the buckets of each round with a generator, peers with the seed of the rule.
EVERY = {name: rule for name, rule in {**RULES, **LEARNS}.items() if name != "bucketing"}

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


@pytest.mark.parametrize("rule", EVERY.values(), ids=EVERY)
def test_every_rule_in_threads(rule: Any) -> None:
    network = eq.peers.InMemoryNetwork()

    def make(client: int) -> eq.Peer:
        name = runs.NAMES[client]
        neighbors = runs.neighbors_of(client)
        return eq.Peer(name, neighbors, names=runs.NAMES, transport=network.transport(name))

    torch.testing.assert_close(
        runs.played_in_threads(rule, make), runs.simulated(rule), rtol=0, atol=0
    )
