"""Peers that are all in time compute the models of a simulation, bit by bit."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import rules
from tests.cases import CONTAIN_OWN
from tests.peers import runs

# A star with one more edge: clients with 1, 2 and 5 neighbors, whose gossip weights differ.
IRREGULAR = eq.Topology.from_edges(6, [(2, 0), (2, 1), (2, 3), (2, 4), (2, 5), (0, 5)])

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def test_all_rules_are_played() -> None:
    found = {name for name in rules.__all__ if is_dataclass(getattr(rules, name))}
    # A peer is one client, so it uses the rule of that client.
    assert found - {"PerClient"} == {type(rule).__name__ for rule in runs.EVERY.values()}


@pytest.mark.parametrize("rule", runs.EVERY.values(), ids=runs.EVERY)
def test_every_rule_in_threads(rule: Any) -> None:
    torch.testing.assert_close(runs.played_in_threads(rule), runs.simulated(rule), rtol=0, atol=0)


@pytest.mark.parametrize("name", [*CONTAIN_OWN, "balance", "sketch-guard"])
def test_clients_of_different_degrees(name: str) -> None:
    rule = runs.EVERY[name]
    found = runs.played_in_threads(rule, IRREGULAR)
    torch.testing.assert_close(found, runs.simulated(rule, IRREGULAR), rtol=0, atol=0)
