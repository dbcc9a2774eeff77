"""What rules that contain own guarantee, whatever malicious neighbors send."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.testing import RuleRound, rounds
from equipoise.testing._asserts import require_same_model, size_of
from tests.gossip_rounds import Neighborhood, neighborhoods

# Laws hold for any `tolerated`, also beyond the guarantees.
pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

many = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
a_few = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])

RHO = {
    "CSPlus": (eq.CSPlus(), 2.0),
    "GTS": (eq.GTS(), 4.0),
    "ClippedGossip": (eq.ClippedGossip(), 25 / 16),
}


def moved_by(rule: Any, case: Neighborhood) -> torch.Tensor:
    out = rule(case.own, case.received, gossip=case.gossip, tolerated=case.tolerated)
    return out.model - case.own


@pytest.mark.parametrize(("rule", "rho"), RHO.values(), ids=RHO)
@many
@given(neighborhoods())
def test_rho_inequality(rule: Any, rho: float, case: Neighborhood) -> None:
    """|F - sum_S w z|^2 <= rho b sum_S w |z|^2 for all S that leave out a weight of at most b."""
    move = moved_by(rule, case)
    steps = case.received - case.own
    b = case.tolerated_weight()
    for benign in case.benign_sets():
        weights = case.gossip[benign]
        error = (move - weights @ steps[benign]).square().sum()
        spread = (weights * steps[benign].square().sum(1)).sum()
        assert error <= rho * b * spread + 1e-12 * (1 + spread)


@pytest.mark.parametrize(
    ("rule", "lies", "benign", "rho"),
    [
        # A tie, which a lower client id decides: the lies are taken, and benign messages left out.
        (eq.GTS(), [-1.0] * 4, [1.0] * 4, 4.0),
        (eq.RTC(), [-1.0] * 4, [1.0] * 4, 4.0),
        # The radius is 1, and the benign message is clipped to half of its distance.
        (eq.ClippedGossip(), [-1e9] * 4, [2.0], 25 / 16),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rho_is_reached(rule: Any, lies: list[float], benign: list[float], rho: float) -> None:
    received = torch.tensor([*lies, *benign, *[0.0] * 8], dtype=torch.float64)[:, None]
    out = rule(torch.zeros(1, dtype=torch.float64), received, tolerated=4)
    weight = 1 / (len(received) + 1)
    error = (out.model - weight * received[4:].sum()).square()
    spread = 4 * weight * weight * received[4:].square().sum()
    assert error / spread == pytest.approx(rho)


@pytest.mark.parametrize(
    "rule", [eq.CSPlus(), eq.GTS(), eq.NNA()], ids=lambda rule: type(rule).__name__
)
@many
@given(neighborhoods(), st.integers(0, 2**31))
def test_within_farthest_benign(rule: Any, case: Neighborhood, seed: int) -> None:
    """The aggregate moves no farther than the farthest benign message."""
    order = torch.randperm(len(case.received), generator=torch.Generator().manual_seed(seed))
    benign = order[case.tolerated :]
    distances = (case.received - case.own).norm(dim=1)
    limit = distances[benign].max() if len(benign) else torch.tensor(0.0)
    assert moved_by(rule, case).norm() <= limit * (1 + 1e-9) + 1e-12


@many
@given(neighborhoods(), st.floats(0, 3))
def test_clipping_bound_with_weights(case: Neighborhood, tau: float) -> None:
    """||aggregate - own|| <= tau times the weight of the messages."""
    move = moved_by(eq.SCClip(tau=tau, contains_own=True), case)
    assert move.norm() <= tau * case.gossip.sum() * (1 + 1e-9) + 1e-12


# Special cases


NOTHING_TOLERATED = {
    "ClippedGossip": eq.ClippedGossip(tolerated=0),
    "CSPlus": eq.CSPlus(tolerated=0),
    "GTS": eq.GTS(tolerated=0),
    "RTC": eq.RTC(tolerated=0),
    "IOS": eq.IOS(tolerated=0),
    "SCClip": eq.SCClip(tau=1e300, contains_own=True),
}


@pytest.mark.parametrize("rule", NOTHING_TOLERATED.values(), ids=NOTHING_TOLERATED)
@a_few
@given(rounds(hostile=False))
def test_gossip_without_malicious(rule: Any, case: RuleRound) -> None:
    gossip = case.inputs.get("gossip")
    found = rule(case.own, case.inbox, gossip=gossip)
    expected = eq.Gossip()(case.own, case.inbox, gossip=gossip)
    require_same_model(found.model, expected.model, unit=size_of(case.own))
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "rule",
    [eq.NNA(tolerated=0), eq.FABA(tolerated=0), eq.Bridge(tolerated=0)],
    ids=lambda rule: type(rule).__name__,
)
@a_few
@given(rounds(hostile=False))
def test_mean_without_malicious(rule: Any, case: RuleRound) -> None:
    expected = eq.Gossip()(case.own, case.inbox).model
    require_same_model(rule(case.own, case.inbox).model, expected, unit=size_of(case.own))


@a_few
@given(rounds(hostile=False))
def test_bridge_is_rule_with_own(case: RuleRound) -> None:
    """A median or Krum over the messages and own, given as one more message of the lowest id."""
    for i in range(case.inbox.n):
        heard = case.inbox.bank[case.inbox.slots[i, case.inbox.mask[i]]]
        senders = 1 + case.inbox.senders[i, case.inbox.mask[i]]
        bank = torch.cat([case.own[i : i + 1], heard])
        ids = torch.cat([torch.zeros(1, dtype=torch.int64), senders])[None]
        joint = eq.Inbox(bank, torch.arange(len(bank))[None], ids >= 0, ids)
        for variant, rule in (("M", eq.Median()), ("K", eq.Krum())):
            expected = rule(case.own[i], joint, tolerated=1).model
            found = eq.Bridge(variant)(case.own[i], case.inbox.of(i), tolerated=1).model  # type: ignore[arg-type]
            require_same_model(found, expected, unit=size_of(case.own))


@a_few
@given(neighborhoods())
def test_equal_weights_of_cs_plus(case: Neighborhood) -> None:
    """With equal weights, the radius is the 2 f-th largest distance."""
    k = len(case.received)
    f = min(case.tolerated, k // 2)
    if f == 0:
        return
    distances = (case.received - case.own).norm(dim=1)
    radius = distances.sort(descending=True).values[2 * f - 1]
    factors = (radius / distances).clamp(max=1).nan_to_num(1.0)
    out = eq.CSPlus(tolerated=f)(case.own, case.received)
    torch.testing.assert_close(out.weights, factors / (k + 1), rtol=1e-9, atol=1e-12)
