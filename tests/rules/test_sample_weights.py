"""Rules that weigh messages by claims of their senders, up to a cap."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.rules._sample_weights import capped_shares
from equipoise.testing import RuleRound, rounds
from tests import reference_shares

WEIGHTED = {
    "fedavg": eq.FedAvg(weighted=True, cap=2.0),
    "median": eq.Median(weighted=True),
    "trimmed-mean": eq.TrimmedMean(tolerated=1, weighted=True),
    "balance": eq.Balance(gamma=1e3, kappa=0, weighted=True),
    "geometric-median": eq.GeometricMedian(weighted=True),
    "scclip": eq.SCClip(weighted=True),
    "scclip-norm": eq.SCClip(mode="norm", weighted=True),
    "centered-clip": eq.CenteredClip(start="own", weighted=True),
}
every_rule = pytest.mark.parametrize("rule", WEIGHTED.values(), ids=WEIGHTED)

claims = st.lists(st.integers(0, 10**6), min_size=1, max_size=12)
caps = st.floats(1, 4)

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def shares_of(given_claims: list[int], cap: float) -> Tensor:
    sizes = torch.tensor([given_claims], dtype=torch.float64)
    limit = torch.tensor([[cap / len(given_claims)]], dtype=torch.float64)
    return capped_shares(sizes, limit)[0]


class TestShares:
    @given(claims, caps)
    def test_agree_with_bisection(self, given_claims: list[int], cap: float) -> None:
        expected = reference_shares.shares([float(claim) for claim in given_claims], cap)
        found = shares_of(given_claims, cap)
        assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12)

    @given(claims, caps)
    def test_keep_the_cap(self, given_claims: list[int], cap: float) -> None:
        found = shares_of(given_claims, cap)
        assert found.max() <= cap / len(given_claims)
        assert found.sum() <= 1 + 1e-12

    @given(claims, caps, st.data())
    def test_a_claim_beyond_the_cap_gains_nothing(
        self, given_claims: list[int], cap: float, data: st.DataObject
    ) -> None:
        place = data.draw(st.integers(0, len(given_claims) - 1))
        before = shares_of(given_claims, cap)
        if before[place] < cap / len(given_claims):
            return
        given_claims[place] += data.draw(st.integers(1, 10**9))
        assert torch.allclose(shares_of(given_claims, cap), before, rtol=1e-12, atol=0)

    @given(claims, caps)
    def test_larger_claims_weigh_at_least_as_much(
        self, given_claims: list[int], cap: float
    ) -> None:
        ordered = shares_of(sorted(given_claims), cap)
        assert (ordered.diff() >= -1e-15).all()

    def test_a_cap_of_one_makes_them_equal(self) -> None:
        assert torch.allclose(shares_of([1, 10, 1000], 1.0), torch.tensor(1 / 3).double())

    def test_own_has_what_no_claim_covers(self) -> None:
        assert shares_of([5, 0, 0, 0], 2.0).tolist() == [0.5, 0, 0, 0]

    def test_huge_claims_do_not_overflow(self) -> None:
        sizes = torch.full((1, 4), 1.7e308, dtype=torch.float64)
        found = capped_shares(sizes, torch.full((1, 1), 0.5, dtype=torch.float64))
        assert found.tolist() == [[0.25] * 4]


class TestRules:
    @every_rule
    @given(case=rounds())
    def test_equal_claims_change_nothing(self, rule: Any, case: RuleRound) -> None:
        inputs = case.inputs | {"samples": torch.full_like(case.inputs["samples"], 7)}
        inputs.pop("tolerated")
        plain = replace(rule, weighted=False)(case.own, case.inbox, **inputs).model
        found = rule(case.own, case.inbox, **inputs).model
        scale = case.inbox.bank.nan_to_num(0, 0, 0).abs().amax() if len(case.inbox.bank) else 0
        assert torch.allclose(found, plain, rtol=1e-4, atol=float(scale) * 1e-5)

    @every_rule
    def test_a_lie_about_samples_gains_nothing(self, rule: Any) -> None:
        own = torch.ones(3)
        received = torch.randn(8, 3)
        samples = torch.tensor([100, 50, 50, 50, 50, 50, 50, 50])
        samples[0] = 10**4
        first = rule(own, received, samples=samples)
        samples[0] = 10**15
        second = rule(own, received, samples=samples)
        assert torch.equal(first.model, second.model)

    def test_balance_accepts_the_same(self) -> None:
        own = torch.tensor([1.0, 1.0])
        received = own + torch.tensor([[0.1, 0.0], [0.0, 0.2], [3.0, 0.0]])
        samples = torch.tensor([1, 3, 100])
        plain = eq.Balance(kappa=0)(own, received).weights
        weighted = eq.Balance(kappa=0, weighted=True)(own, received, samples=samples).weights
        assert plain is not None
        assert weighted is not None
        assert torch.equal(plain > 0, weighted > 0)
        assert weighted.tolist() == [0.25, 0.75, 0.0]

    def test_the_median_of_heavy_messages(self) -> None:
        received = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
        samples = torch.tensor([1, 1, 1, 4, 4])
        found = eq.Median(weighted=True)(torch.zeros(1), received, samples=samples)
        assert found.model.tolist() == [4.0]

    def test_half_of_the_weight_takes_two_values(self) -> None:
        received = torch.tensor([[1.0], [2.0], [6.0]])
        samples = torch.tensor([1, 1, 2])
        found = eq.Median(weighted=True)(torch.zeros(1), received, samples=samples)
        assert found.model.tolist() == [4.0]

    def test_a_boundary_weight_is_cut_in_part(self) -> None:
        received = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        samples = torch.tensor([2, 2, 2, 3])
        rule = eq.TrimmedMean(tolerated=1, weighted=True)
        # Weight 3/9 is cut from both ends: 1/9 of the second and 2/9 of the third are left.
        found = rule(torch.zeros(1), received, samples=samples)
        assert found.model.tolist() == [pytest.approx(8 / 3)]

    @given(st.integers(0, 2**31))
    def test_malicious_minorities_stay_between_benign_values(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        benign = torch.randn(7, 4, generator=generator)
        lies = 1e6 * torch.randn(2, 4, generator=generator)
        samples = torch.randint(1, 1000, (9,), generator=generator)
        # With a cap of 2, two of nine have at most 4/9 of the weight.
        for rule in (eq.Median(weighted=True), eq.TrimmedMean(tolerated=2, weighted=True)):
            found = rule(torch.zeros(4), torch.cat([benign, lies]), samples=samples).model
            assert (found >= benign.amin(0) - 1e-5).all()
            assert (found <= benign.amax(0) + 1e-5).all()

    @pytest.mark.parametrize("steps", [1, 4])
    @given(case=rounds())
    def test_clipping_keeps_the_cap_in_each_step(self, steps: int, case: RuleRound) -> None:
        tau = 0.5
        cap = 2.0
        limit = cap / case.inbox.counts.clamp_min(1)
        inputs = {"samples": case.inputs["samples"]}
        out = eq.SCClip(tau=tau, weighted=True, cap=cap)(case.own, case.inbox, **inputs)
        assert (out.weights <= limit[:, None] * (1 + 1e-6)).all()
        rule = eq.CenteredClip(tau=tau, steps=steps, start="own", weighted=True, cap=cap)
        out = rule(case.own, case.inbox, **inputs)
        assert (out.weights <= steps * limit[:, None] * (1 + 1e-6)).all()

    @given(case=rounds())
    def test_one_step_is_self_centered_clipping(self, case: RuleRound) -> None:
        inputs = {"samples": case.inputs["samples"]}
        options = {"tau": 0.5, "weighted": True, "cap": 1.5}
        expected = eq.SCClip(**options)(case.own, case.inbox, **inputs)
        rule = eq.CenteredClip(steps=1, start="own", **options)
        torch.testing.assert_close(
            rule(case.own, case.inbox, **inputs).weights, expected.weights, rtol=1e-5, atol=1e-7
        )

    def test_clipping_by_hand(self) -> None:
        received = torch.tensor([[0.5], [4.0], [-4.0]])
        samples = torch.tensor([1, 1, 10**6])
        # The cap of 2 is a weight of 2/3; the others share 1/3.
        for rule in (eq.SCClip(weighted=True), eq.CenteredClip(steps=1, weighted=True)):
            found = rule(torch.zeros(1), received, samples=samples)
            assert found.model.tolist() == [pytest.approx((0.5 + 1 - 4) / 6)]

    def test_gossip_and_samples_exclude_each_other(self) -> None:
        with pytest.raises(ValueError, match="weighted must be False with contains_own=True"):
            eq.SCClip(contains_own=True, weighted=True)

    def test_the_guarantee_counts_weights(self) -> None:
        received = torch.randn(8, 1)
        # Two of eight may have half of the weight.
        samples = torch.tensor([1, 1, 1, 1, 1, 1, 100, 100])
        rule = eq.TrimmedMean(tolerated=2, weighted=True, strict=True)
        with pytest.raises(ValueError, match="tolerated must be at most 1"):
            rule(torch.zeros(1), received, samples=samples)
        rule(torch.zeros(1), received, samples=torch.ones(8))

    @every_rule
    def test_samples_are_required(self, rule: Any) -> None:
        with pytest.raises(TypeError, match="needs samples"):
            rule(torch.zeros(2), torch.zeros(3, 2))

    @pytest.mark.parametrize("cap", [0.5, math.nan, "2", None, True])
    def test_wrong_caps(self, cap: Any) -> None:
        with pytest.raises(ValueError, match="cap must be a number >= 1"):
            eq.Median(weighted=True, cap=cap)
