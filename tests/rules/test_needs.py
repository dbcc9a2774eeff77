"""Rules declare the round inputs that they read."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.rules import Rule
from tests.cases import CONTAIN_OWN, LEARNS, RULES


@pytest.mark.parametrize("rule", [*RULES.values(), *LEARNS.values()], ids=[*RULES, *LEARNS])
def test_needs_are_round_inputs(rule: Any) -> None:
    assert set(rule.needs) <= set(eq.RoundInputs.__annotations__)


@pytest.mark.parametrize("name", [*RULES, *LEARNS])
def test_which_contain_own(name: str) -> None:
    expected = name in CONTAIN_OWN
    assert (RULES | LEARNS)[name].contains_own is expected
    assert eq.default_alpha((RULES | LEARNS)[name]) == (0.0 if expected else 0.5)


@pytest.mark.parametrize("rule", [*RULES.values(), *LEARNS.values()], ids=[*RULES, *LEARNS])
def test_inputs_are_keyword_only(rule: Any) -> None:
    for name in ("__call__", "aggregate", "accept", "exchanges"):
        method = getattr(type(rule), name, None)
        if method is not None:
            parameters = inspect.signature(method).parameters.values()
            by_keyword = [one for one in parameters if one.name in eq.RoundInputs.__annotations__]
            assert {one.kind for one in by_keyword} <= {inspect.Parameter.KEYWORD_ONLY}, name


@pytest.mark.parametrize(
    ("rule", "needs"),
    [
        (eq.Balance(), ("t", "total")),
        (eq.Balance(kappa=0), ()),
        (eq.FedAvg(), ()),
        (eq.FedAvg(weighted=True), ("samples",)),
        (eq.UBAR(), ("loss_of", "tolerated")),
        (eq.Gossip(), ("gossip",)),
        (eq.GTS(), ("tolerated", "gossip")),
        (eq.NNA(), ("tolerated",)),
        (eq.Bridge(), ("tolerated",)),
        (eq.Bridge("M"), ()),
        (eq.SCClip(), ()),
        (eq.SCClip(contains_own=True), ("gossip",)),
        (eq.LEARN(), ("t", "update", "tolerated")),
        (
            eq.PerClient([eq.Krum(), eq.Balance(), eq.UBAR()]),
            ("tolerated", "t", "total", "loss_of"),
        ),
    ],
    ids=repr,
)
def test_needs(rule: Any, needs: tuple[str, ...]) -> None:
    assert rule.needs == needs


class Undeclared(Rule):
    """A rule that does not declare its inputs."""

    def aggregate(self, own: torch.Tensor, inbox: eq.Inbox, **inputs: Any) -> eq.Aggregated:
        return eq.Aggregated(own + inputs["update"])


def test_undeclared_needs() -> None:
    assert Undeclared().needs is None
    assert eq.PerClient([eq.Median(), Undeclared()]).needs is None
    assert eq.PerClient([eq.Median(), lambda own, received, **_: own]).needs is None


def test_undeclared_gets_update() -> None:
    simulator = eq.Simulator(
        trainer=lambda models, t: models + 1,
        topology=eq.Topology.ring(3),
        rule=Undeclared(),
        models=torch.zeros(3, 2),
        alpha=0.0,
    )
    simulator.run(1)
    assert torch.equal(simulator.models, torch.full((3, 2), 2.0))


def test_per_client_names_the_rule() -> None:
    rule = eq.PerClient([eq.Balance()])
    with pytest.raises(TypeError, match=r"Balance needs t and total: pass t=\.\.\., total=\.\.\."):
        rule(torch.ones(1, 2), eq.Inbox.of_one(torch.ones(1, 2)))
