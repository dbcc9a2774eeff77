"""``tolerated`` beyond the guarantee of a rule: one warning, or an error if strict."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.rules import serving

OWN = torch.zeros(1)
FIVE = torch.tensor([[1.0], [2.0], [1e6], [1e6], [1e6]])
RULES: dict[str, Any] = {
    "TrimmedMean": eq.TrimmedMean,
    "Krum": eq.Krum,
    "UBAR": eq.UBAR,
    "ClippedGossip": eq.ClippedGossip,
    "CSPlus": eq.CSPlus,
    "GTS": eq.GTS,
    "RTC": eq.RTC,
    "NNA": eq.NNA,
    "IOS": eq.IOS,
    "FABA": eq.FABA,
    "Bridge": eq.Bridge,
    "Bridge K": partial(eq.Bridge, "K"),
}
# Of five neighbors: 2f < 5, 5 >= 2f + 3, f < 5; f < 5, 2f <= 5 and 2f < 5; 6 >= 2f + 3 with own.
MOST = {"TrimmedMean": 2, "Krum": 1, "UBAR": 4}
MOST |= {"ClippedGossip": 4, "CSPlus": 2, "GTS": 4, "RTC": 4}
MOST |= {"NNA": 2, "IOS": 2, "FABA": 2, "Bridge": 2, "Bridge K": 1}
RULES |= {rule.__name__: rule for rule in (eq.MultiKrum, eq.MeaMed, eq.CAF, eq.MDA, eq.SMEA)}
MOST |= {"MultiKrum": 1, "MeaMed": 2, "CAF": 2, "MDA": 2, "SMEA": 2}


def losses(models: Tensor, clients: Tensor | None = None) -> Tensor:
    return models.square().sum(1)


def complete(rule: Any, n: int = 6, **inputs: Any) -> Tensor:
    """The aggregates of n clients that all hear each other."""
    models = torch.arange(float(n))[:, None]
    out: eq.Aggregated = rule(
        models, eq.Topology.complete(n).deliver(models), loss_of=losses, **inputs
    )
    return out.model


@pytest.mark.parametrize("name", RULES)
def test_limit_does_not_warn(name: str) -> None:
    RULES[name](tolerated=MOST[name], strict=True)(OWN, FIVE, loss_of=losses)
    RULES[name](tolerated=MOST[name])(OWN, FIVE, loss_of=losses)


@pytest.mark.parametrize("name", RULES)
def test_warning_text(name: str) -> None:
    most = MOST[name]
    expected = f"tolerated must be at most {most} for client 0 with 5 neighbors, found {most + 1}: "
    with pytest.warns(eq.GuaranteeWarning, match=re.escape(expected)) as caught:
        RULES[name](tolerated=most + 1)(OWN, FIVE, loss_of=losses)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", RULES)
def test_strict_raises_beyond_the_limit(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"at most {MOST[name]} for client 0 with 5 neighbors, found 10"
    ):
        RULES[name](tolerated=10, strict=True)(OWN, FIVE, loss_of=losses)


def test_clamped_beyond_limit() -> None:
    received = torch.tensor([[1.0], [2.0], [3.0], [4.0], [50.0]])
    most = eq.TrimmedMean(tolerated=2)(OWN, received).model
    with pytest.warns(eq.GuaranteeWarning):
        assert torch.equal(eq.TrimmedMean(tolerated=9)(OWN, received).model, most)
    with pytest.warns(eq.GuaranteeWarning):
        assert eq.Krum(tolerated=9)(OWN, received).model.item() == 1


@pytest.mark.parametrize("name", RULES)
def test_first_client_is_named(name: str) -> None:
    tolerated = torch.tensor([0, 0, 1, 9, 9, 0])
    with pytest.warns(
        eq.GuaranteeWarning, match="for client 3 with 5 neighbors, found 9"
    ) as caught:
        complete(RULES[name](), tolerated=tolerated)
    assert len(caught) == 1


def test_per_client_ids() -> None:
    rule = eq.PerClient([eq.Median()] * 4 + [eq.TrimmedMean(tolerated=5), eq.Median()])
    with pytest.warns(eq.GuaranteeWarning, match="for client 4 with 5 neighbors, found 5"):
        complete(rule)


def test_no_neighbors() -> None:
    assert eq.TrimmedMean(tolerated=3, strict=True)(OWN, torch.empty(0, 1)).model == 0


def test_zero_never_warns() -> None:
    for count in (1, 2, 3):
        eq.Krum(tolerated=0)(OWN, FIVE[:count])


@pytest.mark.parametrize("own_update", ["included", "excluded", "mixed"])
def test_learn_warns_once(own_update: Any) -> None:
    rule = eq.LEARN(tolerated=3, own_update=own_update)
    with pytest.warns(
        eq.GuaranteeWarning, match="at most 2 for client 0 with 5 neighbors, found 3"
    ) as caught:
        eq.run_exchanges(rule, OWN, lambda sent: FIVE, t=7, update=OWN)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def simulator(rule: Any, **options: Any) -> eq.Simulator:
    models = torch.arange(6.0)[:, None]
    return eq.Simulator(
        lambda models, t: models + t,
        eq.Topology.complete(6),
        rule,
        models,
        loss_of=lambda t: losses,
        **options,
    )


@pytest.mark.parametrize("name", RULES)
def test_a_run_warns_once(name: str) -> None:
    with pytest.warns(eq.GuaranteeWarning) as caught:
        simulator(RULES[name](tolerated=5)).run(50)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_simulator_warns_once() -> None:
    run = simulator(eq.Krum(tolerated=5))
    with pytest.warns(eq.GuaranteeWarning):
        run.step()
    for _ in range(5):
        run.step()  # a second warning would be an error


def test_changing_graphs_warn_once() -> None:
    """Though client, degree and limit change from round to round."""
    graphs = [eq.Topology.ring(6), eq.Topology.complete(6), eq.Topology.regular(6, 3)]
    run = eq.Simulator(
        lambda models, t: models,
        lambda t: graphs[t % 3],
        eq.TrimmedMean(tolerated=4),
        torch.arange(6.0)[:, None],
    )
    with pytest.warns(eq.GuaranteeWarning) as caught:
        run.run(9)
    assert len(caught) == 1


def test_each_simulator_warns() -> None:
    for _ in range(2):
        with pytest.warns(eq.GuaranteeWarning):
            simulator(eq.Krum(tolerated=5)).run(2)


def test_loop_prints_once() -> None:
    """With Python's own filters, in a process of its own."""
    script = (
        "import torch, equipoise as eq\n"
        "for t in range(20):\n"
        "    eq.TrimmedMean(tolerated=3)(torch.zeros(1), torch.ones(5, 1))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONWARNINGS", None)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr.count("GuaranteeWarning") == 1
    assert "<string>:3: GuaranteeWarning: tolerated must be at most 2" in done.stderr


def test_attack_does_not_warn() -> None:
    known = attacks.Knowledge(
        torch.arange(6.0)[:, None],
        eq.Topology.complete(6),
        [4, 5],
        rule=eq.Krum(tolerated=4),
        inputs={"t": 0, "total": 1},
    )
    attacks.Adaptive().forge(known)
    attacks.KrumAttack().forge(known)


def test_nonfinite_keeps_limit() -> None:
    received = FIVE.clone()
    received[3:] = torch.nan
    eq.TrimmedMean(tolerated=2, strict=True)(OWN, received)


def test_limit_of_bulyan_with_own() -> None:
    """Own and five neighbors are too few for 4 f + 3 models; own and six are enough."""
    with pytest.raises(ValueError, match="at most 0 for client 0 with 5 neighbors, found 1"):
        eq.Bridge("B", tolerated=1, strict=True)(OWN, FIVE)
    eq.Bridge("B", tolerated=1, strict=True)(OWN, torch.cat([FIVE, FIVE[:1]]))


def test_limit_of_weights() -> None:
    """Two of five neighbors weigh half of all; a third one exceeds that."""
    gossip = torch.tensor([0.2, 0.2, 0.15, 0.15, 0.1])
    eq.CSPlus(tolerated=2, strict=True)(OWN, FIVE, gossip=gossip)
    with pytest.raises(ValueError, match="at most 2 for client 0 with 5 neighbors, found 3"):
        eq.CSPlus(tolerated=3, strict=True)(OWN, FIVE, gossip=gossip)
    with pytest.raises(ValueError, match="at most 1 for client 0 with 2 neighbors, found 2"):
        eq.GTS(tolerated=2, strict=True)(OWN, FIVE, gossip=torch.tensor([0.5, 0.1, 0.0, 0.0, 0.0]))


# Hyper-parameters are checked when a rule is made

BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "negative": (eq.Krum, {"tolerated": -1}, "tolerated must be an integer at least 0, found -1"),
    "fraction": (eq.Krum, {"tolerated": 1.5}, "tolerated must be an integer at least 0, found 1.5"),
    "bool": (
        eq.TrimmedMean,
        {"tolerated": True},
        "tolerated must be an integer at least 0, found True",
    ),
    "text": (eq.UBAR, {"tolerated": "1"}, "tolerated must be an integer at least 0, found '1'"),
    "negative LEARN": (
        eq.LEARN,
        {"tolerated": -1},
        "tolerated must be an integer at least 0, found -1",
    ),
    "strict": (eq.Krum, {"strict": 1}, "strict must be True or False, found 1"),
    "strict UBAR": (eq.UBAR, {"strict": None}, "strict must be True or False, found None"),
    "own_update": (
        eq.LEARN,
        {"own_update": ["mixed"]},
        "own_update must be 'included', 'excluded' or 'mixed'",
    ),
    "alpha": (eq.LEARN, {"alpha": "0.5"}, "alpha must be a number from 0 to 1, found '0.5'"),
    "weighted": (eq.FedAvg, {"weighted": "yes"}, "weighted must be True or False, found 'yes'"),
    "weighted FLTrust": (eq.FLTrust, {"weighted": 1}, "weighted must be True or False, found 1"),
    "gamma": (eq.Balance, {"gamma": True}, "gamma must be a finite number >= 0, found True"),
    "kappa": (eq.Balance, {"kappa": float("nan")}, "kappa must be a finite number >= 0, found nan"),
    "tau": (eq.SCClip, {"tau": -1.0}, "tau must be a finite number >= 0, found -1.0"),
    "tau as a list": (
        eq.SCClip,
        {"tau": [1.0]},
        "tau must be a number >= 0, 'median' or 'second_largest', found [1.0]",
    ),
    "mode": (eq.SCClip, {"mode": 3}, "mode must be 'difference' or 'norm', found 3"),
    "empty": (eq.UBAR, {"empty": "all"}, "empty must be 'best', 'closest' or 'own', found 'all'"),
}


@pytest.mark.parametrize(("rule", "options", "message"), BAD.values(), ids=BAD)
def test_options_are_validated(rule: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rule(**options)


def test_numpy_numbers() -> None:
    assert eq.Krum(tolerated=np.int64(1)).tolerated == 1  # type: ignore[arg-type]
    assert eq.Balance(gamma=np.float32(0.5)).gamma == 0.5  # type: ignore[arg-type]


def test_clients_of_a_part_are_named() -> None:
    # Receivers 0 to 3 are clients 10 to 13, of which a PerClient gives each rule some.
    own = torch.zeros(4, 1)
    slots = torch.tensor([[0, 1, 2]]).expand(4, -1)
    rule = eq.PerClient([eq.Median(), eq.Krum(strict=True), eq.Median(), eq.Krum(strict=True)])
    with (
        serving(torch.arange(10, 14)),
        pytest.raises(ValueError, match="for client 13 with 3 neighbors"),
    ):
        rule(own, eq.Inbox(own, slots), tolerated=torch.tensor([2, 0, 2, 2]))
    with (
        serving(torch.arange(10, 14)),
        serving(None),
        pytest.raises(ValueError, match="for client 3 with 3 neighbors"),
    ):
        rule(own, eq.Inbox(own, slots), tolerated=torch.tensor([2, 0, 2, 2]))
