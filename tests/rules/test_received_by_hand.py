"""Rules over received models: cases computed by hand, and equalities of special cases."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.rules import without_warnings

ZERO = torch.zeros(1)
OWN = torch.zeros(2)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def messages(n: int, d: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return 1 + spread * torch.randn(n, d, generator=source)


def graph(n: int = 12, d: int = 30) -> tuple[Tensor, eq.Inbox]:
    models = messages(n, d)
    return models, eq.Topology.regular(n, 7 if n % 2 == 0 else 6, seed=0).deliver(models)


def same(found: eq.Aggregated, expected: eq.Aggregated) -> None:
    torch.testing.assert_close(found.model, expected.model)
    if expected.weights is not None:
        torch.testing.assert_close(found.weights, expected.weights)


@pytest.mark.parametrize(
    ("rule", "received", "expected"),
    [
        # Scores with q = 5 - 1 - 2 = 2: 0 -> 0.01 + 0.09, 0.1 -> 0.01 + 0.04, 0.3 -> 0.04 + 0.09,
        # 0.6 -> 0.09 + 0.25, 9 -> 8.4^2 + 8.7^2.
        (eq.MultiKrum(selected=3, tolerated=1), column(0, 0.1, 0.3, 0.6, 9), 0.4 / 3),
        (eq.MultiKrum(tolerated=1), column(0, 0.1, 0.3, 0.6, 9), 0.25),
        # The median is 3; of 5 - 1 values the nearest are 1, 2, 3, 5.
        (eq.MeaMed(tolerated=1), column(1, 2, 3, 5, 90), 11 / 4),
        # 1 and 5 are equally far from 3: the smaller one counts.
        (eq.MeaMed(tolerated=1), column(1, 3, 5), 2.0),
        # The median of four is 2.5.
        (eq.MeaMed(tolerated=1), column(1, 2, 3, 9), 2.0),
        # q = 4 of 7, then 3 of 6, 2 of 5, 1 of 4, 1 of 3: 0.3, 0.2, 0.4, 0.1 or 0.5, ... without 9;
        # beta = 5 - 2 around the median of five of 0 to 0.5.
        (eq.MDA(tolerated=1), column(0, 1, 2, 50), 1.0),
        # Diameters 3 of {0, 1, 3}, 4 of {1, 3, 5}: the smallest one counts.
        (eq.MDA(tolerated=1), column(5, 3, 1, 0), 4 / 3),
        (eq.SMEA(tolerated=1), column(0, 1, 2, 50), 1.0),
        # The middle one of an odd number of points on a line.
        (eq.GeometricMedian(), column(1, 2, 4, 8, 1000), 4.0),
        (eq.GeometricMedian(), column(1, 2, 4, 8), 3.0),
        # One step from own: (1 + 2 + 2) / 3 with tau = 2; a second one with differences 1/3 - ...
        (eq.CenteredClip(tau=2, steps=1), column(1, 2, 9), 5 / 3),
        # From 5/3: differences -2/3, 1/3, 22/3 -> 2, whose mean is 5/9.
        (eq.CenteredClip(tau=2, steps=2), column(1, 2, 9), 5 / 3 + 5 / 9),
        # Nearest three of four: (0, 1, 2) for 0, 1 and 2; (1, 2, 90) for 90.
        (eq.NNM(eq.FedAvg(), tolerated=1), column(0, 1, 2, 90), (1 + 1 + 1 + 31) / 4),
        (eq.NNM(eq.Krum(), tolerated=1), column(0, 1, 2, 3, 90), 1.5),
        # floor(2 * 1 * 3 / 4) = 1 message is clipped to 3.
        (eq.ARC(eq.FedAvg(), tolerated=1), column(1, 2, 3, 40), 9 / 4),
        (eq.StaticClip(eq.Median(), radius=2), column(1, 5, 9), 2.0),
        (eq.CAF(tolerated=0), column(1, 2, 9), 4.0),
    ],
    ids=repr,
)
def test_by_hand(rule: Any, received: Tensor, expected: float) -> None:
    with without_warnings():
        found = rule(ZERO, received).model
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=1e-5, atol=1e-6)


def test_multi_krum_of_one_is_krum() -> None:
    own, inbox = graph()
    same(eq.MultiKrum(selected=1)(own, inbox, tolerated=2), eq.Krum()(own, inbox, tolerated=2))


def test_bulyan_selects_krums_choice() -> None:
    """With theta = 1 Bulyan returns Krum's choice, with f = 0 the mean."""
    received = messages(7, 5)
    with without_warnings():
        krum = eq.Krum(tolerated=3)(torch.zeros(5), received).model
        assert torch.equal(eq.Bulyan(tolerated=3)(torch.zeros(5), received).model, krum)
    inbox = eq.Inbox.of_one(received)
    f = torch.tensor([1])
    selected = eq.kernels.krum_selection(
        torch.zeros(1, 5), inbox, f, torch.tensor([5]), one_by_one=True
    )
    chosen = eq.Krum(tolerated=1)(torch.zeros(5), received).weights
    assert chosen is not None
    assert selected[0, chosen.argmax()]
    assert selected.sum() == 5
    mean = eq.FedAvg()(torch.zeros(5), received).model
    torch.testing.assert_close(eq.Bulyan(tolerated=0)(torch.zeros(5), received).model, mean)


def test_bulyan_needs_many_neighbors() -> None:
    """k >= 4 f + 3: seven neighbors for one malicious one."""
    eq.Bulyan(tolerated=1, strict=True)(OWN, messages(7, 2))
    with pytest.raises(ValueError, match="tolerated must be at most 0 for client 0"):
        eq.Bulyan(tolerated=1, strict=True)(OWN, messages(6, 2))
    with pytest.warns(eq.GuaranteeWarning):
        assert eq.Bulyan(tolerated=9)(OWN, messages(6, 2)).model.isfinite().all()


def test_mea_med_without_malicious_is_mean() -> None:
    own, inbox = graph()
    found = eq.MeaMed()(own, inbox, tolerated=0).model
    torch.testing.assert_close(found, eq.FedAvg()(own, inbox).model)


def test_geometric_median_of_samples() -> None:
    """A message that counts twice is two messages; beyond the cap, a claim gains nothing."""
    received = messages(6, 4)
    own = torch.zeros(4)
    samples = torch.tensor([2, 1, 1, 1, 1, 1])
    rule = eq.GeometricMedian(weighted=True)
    twice = eq.GeometricMedian()(own, torch.cat([received, received[:1]]))
    torch.testing.assert_close(rule(own, received, samples=samples).model, twice.model)
    claims = [
        rule(own, received, samples=samples * torch.tensor([c, 1, 1, 1, 1, 1])).model
        for c in (50, 10**9)
    ]
    assert torch.equal(*claims)
    assert torch.equal(rule(own, received, samples=0 * samples).model, own)


def test_geometric_median_is_stationary() -> None:
    """At the minimum, the unit vectors to the messages sum to 0."""
    received = messages(9, 40).double()
    found = eq.GeometricMedian()(torch.zeros(40).double(), received).model
    units = torch.nn.functional.normalize(received - found, dim=1)
    assert units.sum(0).norm() < 1e-5


def test_geometric_median_at_message() -> None:
    """A message is the minimum if the pull of the others is at most its own."""
    received = torch.tensor([[0.0, 0.0], [4.0, 0.0], [-2.0, 2.0], [-2.0, -2.0]])
    found = eq.GeometricMedian()(OWN, received).model
    torch.testing.assert_close(found, OWN, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1e6, 1e15, 1e30, 1e37])
def test_geometric_median_with_outliers(size: float) -> None:
    """Outliers pull by their directions only, however far away they are."""
    received = messages(9, 20, spread=0.1)
    near = received.clone()
    near[:2] = 1e5 * near[:2]
    far = received.clone()
    far[:2] = (received[:2].double() * size).float()
    expected = eq.GeometricMedian()(torch.zeros(20), near).model
    found = eq.GeometricMedian()(torch.zeros(20), far).model
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


def test_centered_clip_of_huge_radius_is_mean() -> None:
    own, inbox = graph()
    same(eq.CenteredClip(tau=1e9)(own, inbox), eq.FedAvg()(own, inbox))


def test_centered_clip_of_one_step_is_scclip() -> None:
    own, inbox = graph()
    same(eq.CenteredClip(tau=2.0, steps=1)(own, inbox), eq.SCClip(tau=2.0)(own, inbox))


def test_centered_clip_moves_its_state() -> None:
    rule = eq.CenteredClip(tau=1.0, steps=1)
    first = rule(ZERO, column(5))
    second = rule(ZERO, column(5), state=first.state)
    assert first.model.tolist() == [1.0]
    assert second.model.tolist() == [2.0]
    alone = rule(ZERO + 7, column(math.nan), state=second.state)
    assert alone.model.tolist() == [7.0]
    assert alone.state["v"].flatten().tolist() == [2.0]


def test_centered_clip_of_wrong_state() -> None:
    with pytest.raises(ValueError, match="state must be what CenteredClip returned"):
        eq.CenteredClip()(ZERO, column(1), state={"v": torch.zeros(3)})


def test_caf_removes_outliers() -> None:
    received = messages(10, 5, spread=0.1)
    received[:2] += 100
    out = eq.CAF(tolerated=2)(torch.zeros(5), received)
    assert out.weights is not None
    assert out.weights[:2].max() < 1e-3


@pytest.mark.parametrize("rule", [eq.MDA(tolerated=3), eq.SMEA(tolerated=3)], ids=repr)
def test_searched_subset(rule: Any) -> None:
    """The subset by brute force, from the definition, in float64."""
    received = messages(9, 4)
    values = {}
    for subset in itertools.combinations(range(9), 6):
        part = received[list(subset)].double()
        spread = torch.cdist(part, part).max()
        if isinstance(rule, eq.SMEA):
            spread = torch.linalg.eigvalsh((part - part.mean(0)).T.cov(correction=0))[-1]
        values[subset] = float(spread)
    best = min(values, key=lambda subset: values[subset])
    weights = rule(torch.zeros(4), received).weights
    assert weights.nonzero().flatten().tolist() == list(best)


@pytest.mark.parametrize("rule", [eq.MDA, eq.SMEA])
def test_too_many_subsets(rule: Any) -> None:
    with pytest.raises(ValueError, match=r"must search at most \d+ subsets, found 145422675"):
        rule(tolerated=14)(OWN, torch.zeros(30, 2))


# Wrappers


def test_nnm_without_malicious_is_mean() -> None:
    own, inbox = graph()
    for rule in (eq.Krum(), eq.Median(), eq.FedAvg()):
        found = eq.NNM(rule)(own, inbox, tolerated=0)
        torch.testing.assert_close(found.model, eq.FedAvg()(own, inbox).model)


def test_nnm_of_one_cluster_is_rule() -> None:
    own = messages(8, 3)
    same_model = eq.Topology.complete(8).deliver(own[:1].expand(8, 3).contiguous())
    with without_warnings():
        found = eq.NNM(eq.TrimmedMean())(own, same_model, tolerated=2)
        same(found, eq.TrimmedMean()(own, same_model, tolerated=2))


@pytest.mark.parametrize("rule", [eq.Krum(tolerated=1), eq.Median(), eq.FedAvg()], ids=repr)
def test_wrappers_that_change_nothing(rule: Any) -> None:
    own, inbox = graph()
    expected = rule(own, inbox)
    for wrapper in (
        eq.StaticClip(rule, radius=1e9),
        eq.Bucketing(rule, s=1),
        eq.ARC(rule, tolerated=0) if rule == eq.Median() else eq.StaticClip(rule, radius=1e6),
        eq.StaticClip(eq.Bucketing(rule, s=1), radius=1e9),
    ):
        same(wrapper(own, inbox), expected)


@pytest.mark.parametrize("wrapper", [eq.NNM, eq.Bucketing, eq.ARC, eq.StaticClip])
def test_columns_at_a_time(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own, inbox = graph(d=3000)
    rules = [eq.Median(), eq.FedAvg(), eq.MeaMed()]
    inputs = {"tolerated": 1, "t": 0}
    expected = [wrapper(rule)(own, inbox, **inputs).model for rule in rules]
    monkeypatch.setattr("equipoise.rules._wrapper.CHANGED", 1)
    found = [wrapper(rule)(own, inbox, **inputs).model for rule in rules]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs) or not eq.native_available


def test_static_clip_of_mean_is_scclip() -> None:
    own, inbox = graph()
    same(eq.StaticClip(eq.FedAvg(), radius=5.0)(own, inbox), eq.SCClip(tau=5.0)(own, inbox))


def test_static_clip_bounds_influence() -> None:
    own, _ = graph()
    lies = eq.Topology.complete(12).deliver(1e20 * messages(12, 30, seed=1))
    for rule in (eq.FedAvg(), eq.Median(), eq.GeometricMedian()):
        moved = eq.StaticClip(rule, radius=0.5)(own, lies).model - own
        assert (moved.norm(dim=1) <= 0.5 * (1 + 1e-4)).all() or isinstance(rule, eq.Median)
        assert (moved.abs() <= 0.5 * (1 + 1e-4)).all()


def test_bucketing_draws_by_round() -> None:
    own, inbox = graph()
    rule = eq.Bucketing(eq.Median(), s=2)
    first = rule(own, inbox, t=0).model
    assert torch.equal(first, rule(own, inbox, t=0).model)
    assert not torch.equal(first, rule(own, inbox, t=1).model)
    source = torch.Generator().manual_seed(1)
    assert not torch.equal(first, rule(own, inbox, t=0, generator=source).model)


def test_bucket_sizes() -> None:
    rule = eq.Bucketing(eq.FedAvg(), s=2)
    weights = rule(ZERO, column(1, 2, 3, 4, 5), t=0).weights
    assert weights is not None
    # Two buckets of two, and one of one.
    shares = torch.tensor([1 / 6] * 4 + [1 / 3])
    torch.testing.assert_close(weights.sort().values, shares)


def test_wrapped_rules_in_per_client() -> None:
    own, inbox = graph()
    rules = [eq.NNM(eq.Krum()), eq.Bucketing(eq.Median()), eq.ARC(eq.MultiKrum())]
    rule = eq.PerClient([rules[i % 3] for i in range(len(own))])
    out = rule(own, inbox, tolerated=1, t=3)
    for i in range(len(own)):
        alone = rules[i % 3](own[i], inbox.of(i), tolerated=1, t=3)
        torch.testing.assert_close(out.model[i], alone.model)


def test_wrapped_tolerated() -> None:
    assert eq.NNM(eq.Krum(tolerated=2)).tolerated == 2
    assert eq.StaticClip(eq.Krum(tolerated=2)).tolerated == 2
    assert eq.Bucketing(eq.NNM(eq.Krum(tolerated=2))).tolerated == 2
    with pytest.raises(ValueError, match="tolerated must be that of the wrapped rule, 2, found 1"):
        eq.NNM(eq.Krum(tolerated=2), tolerated=1)


def test_wrapped_needs() -> None:
    assert eq.NNM(eq.Balance()).needs == ("tolerated", "t", "total")
    assert eq.Bucketing(eq.Krum()).needs == ("generator", "tolerated")
    assert eq.StaticClip(eq.FedAvg()).needs == ()
    assert eq.NNM(lambda own, received, **_: own).needs is None


@pytest.mark.parametrize("wrapper", [eq.NNM, eq.Bucketing, eq.ARC, eq.StaticClip])
@pytest.mark.parametrize(
    "rule",
    [eq.Krum, eq.LEARN(), eq.PerClient([eq.Median()]), 3],
    ids=["class", "multi", "per", "3"],
)
def test_rules_that_cannot_be_wrapped(wrapper: Any, rule: Any) -> None:
    with pytest.raises(ValueError, match="rule must"):
        wrapper(rule)


def test_wrapped_rules_hold_no_state() -> None:
    own, inbox = graph()
    with pytest.raises(ValueError, match="rule must hold no state in StaticClip"):
        eq.StaticClip(eq.CenteredClip())(own, inbox)


@pytest.mark.filterwarnings("error::equipoise.GuaranteeWarning")
def test_nonfinite_messages_keep_guarantees() -> None:
    """A malicious neighbor that sends NaN causes no warning of the wrapped rule."""
    received = torch.cat([messages(6, 2), torch.full((1, 2), math.nan)])
    eq.NNM(eq.Krum(tolerated=2))(OWN, received)
    eq.StaticClip(eq.Krum(tolerated=2), radius=0.1)(OWN, received)
    out = eq.Bucketing(eq.Krum(tolerated=1), s=1)(OWN, received, t=0)
    assert out.model.isfinite().all()


def test_arc_copies_only_clipped_messages() -> None:
    graph = eq.Topology.regular(20, 10, seed=0)
    models = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    changed = eq.ARC(eq.Median()).change(models, graph.deliver(models), tolerated=2)
    assert changed is not None
    assert changed.rows == 20 * 3 + 20  # 2 * 2 * 8 // 10 = 3 of ten are clipped
