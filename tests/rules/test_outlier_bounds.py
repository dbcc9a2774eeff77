"""How far lies can draw the aggregates of rules that drop outliers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch import Tensor

import equipoise as eq
from tests.gossip_rounds import Neighborhood, neighborhoods

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

many = settings(
    max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def benign_sets(case: Neighborhood) -> Iterator[list[int]]:
    """The messages that are left if any of up to the tolerated number are malicious."""
    k = len(case.received)
    for count in range(k - case.tolerated, k + 1):
        yield from map(list, combinations(range(k), count))


def spread(models: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted mean, and the largest distance of a model from it."""
    mean = weights @ models / weights.sum()
    return mean, (models - mean).norm(dim=1).max()


@many
@given(neighborhoods())
def test_faba_stays_near_the_benign_mean(case: Neighborhood) -> None:
    """|mean of U_f - benign mean| <= R k / (k - 2 f)."""
    k = len(case.received)
    assume(k > 2 * case.tolerated)
    model = eq.FABA(tolerated=case.tolerated)(case.own, case.received).model
    left = k - case.tolerated
    mean_of_left = ((left + 1) * model - case.own) / left
    for benign in benign_sets(case):
        models = case.received[benign]
        mean, radius = spread(models, torch.ones(len(models), dtype=torch.float64))
        limit = radius * k / (k - 2 * case.tolerated)
        assert (mean_of_left - mean).norm() <= limit * (1 + 1e-9) + 1e-9


@many
@given(neighborhoods())
def test_ios_stays_near_the_benign_mean(case: Neighborhood) -> None:
    """|aggregate - weighted mean of own and the benign| <= R / (1 - 2 b)."""
    b = case.tolerated_weight()
    assume(b < 0.499)
    rule = eq.IOS(tolerated=case.tolerated)
    model = rule(case.own, case.received, gossip=case.gossip).model
    for benign in benign_sets(case):
        models = torch.cat([case.own[None], case.received[benign]])
        weights = torch.cat([1 - case.gossip.sum(0, keepdim=True), case.gossip[benign]])
        mean, radius = spread(models, weights)
        assert (model - mean).norm() <= radius / (1 - 2 * b) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("rule", [eq.FABA(tolerated=3), eq.IOS(tolerated=3)], ids=str)
def test_no_bound_beyond_half(rule: eq.Aggregator) -> None:
    """Lies in one place draw the mean to themselves once they outnumber the benign messages."""
    benign = torch.tensor([[0.0], [1.0]] if isinstance(rule, eq.FABA) else [[1.0]])
    lies = torch.full((3, 1), 1e6)
    assert rule(torch.zeros(1), torch.cat([benign, lies])).model > 1e5


@many
@given(neighborhoods())
def test_rho_of_rtc_with_equal_weights(case: Neighborhood) -> None:
    """The inequality of robust gossip, with rho = 4."""
    k = len(case.received)
    move = eq.RTC(tolerated=case.tolerated)(case.own, case.received).model - case.own
    steps = case.received - case.own
    weight = 1 / (k + 1)
    for benign in benign_sets(case):
        error = (move - weight * steps[benign].sum(0)).square().sum()
        squares = weight * steps[benign].square().sum()
        bound = 4 * case.tolerated * weight * squares
        assert error <= bound + 1e-12 * (1 + squares)


@pytest.mark.parametrize("light", [1e-2, 1e-4])
def test_no_rho_of_rtc_with_other_weights(light: float) -> None:
    """A light benign message is the farthest, and is removed in place of a heavy lie."""
    gossip = torch.tensor([light, 0.5], dtype=torch.float64)
    received = torch.tensor([[-1.001], [1.0]], dtype=torch.float64)
    own = torch.zeros(1, dtype=torch.float64)
    move = eq.RTC(tolerated=1)(own, received, gossip=gossip).model
    error = (move - light * received[0]).square().sum()
    rho = error / (0.5 * light * received[0].square().sum())
    assert rho > 0.4 / light
