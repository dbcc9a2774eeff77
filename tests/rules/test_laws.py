"""Every rule obeys the laws of `equipoise.testing`, and those of its own."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.testing import LAWS, MULTI_EXCHANGE_LAWS, RuleRound, check_rule, rounds
from equipoise.testing import _laws as laws
from equipoise.testing._check_rule import AsSingleExchange
from tests import rule_laws
from tests import rule_specific_laws as some_rules
from tests.cases import CONTAIN_OWN, LEARNS, RULES
from tests.graphs import Graph, deliver, models_of, random_lies, regular, round_inputs

# Laws hold for any `tolerated`, and random rounds exceed all guarantees.
pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

a_few = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


# The laws are enough for variants of rules. Only small problems can be searched. Mixed messages tie
# where messages do, but for rounding, and buckets depend on the ids of clients: other tests than
# the laws do not hold for these.
OTHERS = {
    "multi-krum-2": eq.MultiKrum(selected=2),
    "centered-clip": eq.CenteredClip(start="own"),
    "nnm": eq.NNM(eq.FedAvg()),
    "static-clip-median": eq.StaticClip(eq.Median(), radius=1.0),
    "mda": eq.MDA(),
    "smea": eq.SMEA(),
    "nnm-krum": eq.NNM(eq.Krum()),
    "nnm-arc": eq.NNM(eq.ARC(eq.FedAvg())),
    "nnm-geometric-median": eq.NNM(eq.GeometricMedian()),
    "arc-bucketing-multi-krum": eq.ARC(eq.Bucketing(eq.MultiKrum(), s=2)),
    "bucketing-median": eq.Bucketing(eq.Median(), s=3),
    "centered-clip-last": eq.CenteredClip(),
}
MULTI_EXCHANGE = LEARNS | {"sketch-guard": eq.SketchGuard(size=3)}
TALKATIVE = {name: AsSingleExchange(rule) for name, rule in MULTI_EXCHANGE.items()}
COORDINATEWISE = (eq.TrimmedMean, eq.Median, eq.MeaMed, eq.Bulyan)


def innermost(rule: Any) -> Any:
    """The rule that aggregates in the end: a wrapper's, or the rule itself."""
    return innermost(rule.rule) if hasattr(rule, "rule") else rule


WEIGHTED = {
    name: rule
    for name, rule in RULES.items()
    if not isinstance(innermost(rule), (*COORDINATEWISE, eq.Bridge))
}
# Weighted by samples, the same messages are accepted: see test_sample_weights.
BALANCES = {
    name: rule for name, rule in RULES.items() if isinstance(rule, eq.Balance) and not rule.weighted
}
SELFLESS = {name: rule for name, rule in RULES.items() if not isinstance(rule, eq.UBAR)}
CENTERED_KINDS = (
    *COORDINATEWISE,
    eq.FedAvg,
    eq.Krum,
    eq.MultiKrum,
    eq.GeometricMedian,
    eq.CenteredClip,
    eq.CAF,
)
CENTRED = {
    name: rule
    for name, rule in RULES.items()
    if isinstance(rule, CENTERED_KINDS) or (name in CONTAIN_OWN and name != "scclip-gossip")
} | {
    name: rule
    for name, rule in RULES.items()
    if isinstance(rule, eq.SCClip) and rule.mode == "difference"
}
ISOTROPIC = {name: rule for name, rule in RULES.items() if rule.isotropic}
CLIPPING = {
    name: rule
    for name, rule in CENTRED.items()
    if isinstance(rule, eq.SCClip) and isinstance(rule.tau, float)
}
SHORTENING = {name: RULES[name] for name in ("fltrust", "fltrust-plain", "scclip-norm")}


def each(rules: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", rules.values(), ids=rules)


# BALANCE


@each(BALANCES)
@many
@given(rounds(whole=False))
def test_balance_bound(rule: Any, case: RuleRound) -> None:
    rule_laws.balance_bound(rule, case.own, case.inbox, **case.inputs)


@each(BALANCES)
@many
@given(rounds(whole=False))
def test_balance_accepts_close(rule: Any, case: RuleRound) -> None:
    rule_laws.balance_accepts(rule, case.own, case.inbox, **case.inputs)


@each(BALANCES)
@many
@given(rounds())
def test_balance_independent_messages(rule: Any, case: RuleRound) -> None:
    some_rules.accepts_separately(rule, case.own, case.inbox, **case.inputs)


@many
@given(rounds(), st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_balance_is_monotone_in_gamma(
    case: RuleRound, one: float, other: float, kappa: float
) -> None:
    small, large = (eq.Balance(gamma=gamma, kappa=kappa) for gamma in sorted([one, other]))
    some_rules.nested(small, large, case.own, case.inbox, **case.inputs)


@many
@given(rounds(), st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_balance_is_monotone_in_kappa(
    case: RuleRound, one: float, other: float, gamma: float
) -> None:
    slow, fast = (eq.Balance(gamma=gamma, kappa=kappa) for kappa in sorted([one, other]))
    some_rules.nested(fast, slow, case.own, case.inbox, **case.inputs)


@each(BALANCES)
@many
@given(rounds(), st.lists(st.integers(0, 9), min_size=2, max_size=2))
def test_balance_accepts_less_later(rule: Any, case: RuleRound, both: list[int]) -> None:
    rule_laws.accepts_less_later(rule, case.own, case.inbox, min(both), max(both), total=10)


@many
@given(rounds(whole=False))
def test_balance_without_decay(case: RuleRound) -> None:
    rule = eq.Balance(gamma=0.4, kappa=0.0)
    assert torch.equal(
        rule(case.own, case.inbox).model, rule(case.own, case.inbox, t=7, total=8).model
    )


@many
@given(rounds(), st.floats(0.01, 3))
def test_balance_median_within_gamma(case: RuleRound, gamma: float) -> None:
    some_rules.nested(eq.BalanceMedian(gamma), eq.Balance(gamma, kappa=0.0), case.own, case.inbox)
    some_rules.nested(eq.BalanceMedian(gamma), eq.BalanceMedian(2 * gamma), case.own, case.inbox)


# Every rule


RESCALING = {
    "fltrust": rule_laws.to_own_norm,
    "fltrust-plain": rule_laws.to_own_norm,
    "scclip-norm": rule_laws.at_most_own_norm,
    "scclip-norm-weighted": rule_laws.at_most_own_norm,
}
NOT_PROMISED = {
    "agreement": ("ubar-own", "scclip-0.25", "centered-clip-0.25"),
    "weights_explain": tuple(RESCALING),
}


@pytest.mark.parametrize(
    ("law", "name"),
    [(law, name) for law in LAWS for name in RULES if name not in NOT_PROMISED.get(law, ())],
)
def test_rules_obey(law: str, name: str) -> None:
    check_rule(RULES[name], laws=[law], examples=16 if law == "kept" else 10)


@pytest.mark.parametrize("law", LAWS)
@each(OTHERS)
def test_other_rules_obey(rule: Any, law: str) -> None:
    check_rule(rule, laws=[law], examples=10)


@pytest.mark.parametrize("law", MULTI_EXCHANGE_LAWS)
@each(MULTI_EXCHANGE)
def test_multi_exchange_rules_obey(rule: Any, law: str) -> None:
    check_rule(rule, laws=[law], examples=16 if law == "kept" else 10)


@each(RULES)
@a_few
@given(rounds())
def test_written_to_out(rule: Any, case: RuleRound) -> None:
    some_rules.written_to_out(rule, case.own, case.inbox, **case.inputs)


@pytest.mark.parametrize(
    ("out", "found"),
    [
        (
            lambda own: torch.empty(3),
            "out must be a tensor like own, float32 (4,) on cpu, found float32 (3,)",
        ),
        (lambda own: torch.empty(4, dtype=torch.float64), "found float64 (4,)"),
        (lambda own: [0.0] * 4, "found list"),
        (
            lambda own: own,
            "out must not share memory with own, a message or a round input",
        ),
        (lambda own: torch.empty(4, requires_grad=True), "out must not require gradients"),
    ],
)
def test_bad_out(out: Any, found: str) -> None:
    own = torch.ones(4)
    with pytest.raises(ValueError, match=re.escape(found)):
        eq.Median()(own, torch.ones(2, 4), out=out(own))


@a_few
@given(rounds(), st.integers(0, 2**31))
def test_per_client(case: RuleRound, seed: int) -> None:
    choice = torch.randint(
        len(RULES), (len(case.own),), generator=torch.Generator().manual_seed(seed)
    )
    rule = eq.PerClient([list(RULES.values())[i] for i in choice.tolist()])
    for law in (laws.batch, laws.padding, laws.starvation, laws.consensus, laws.purity, laws.kept):
        law(rule, case.own, case.inbox, **case.inputs)
    some_rules.written_to_out(rule, case.own, case.inbox, **case.inputs)


@pytest.mark.parametrize("graph", [regular(16, 8), regular(40, 3)], ids=lambda graph: graph.name)
@each(RULES | TALKATIVE)
def test_large_rounds(rule: Any, graph: Graph) -> None:
    """The laws once more where models are long enough for the fast ways of computing."""
    own = models_of(graph, 3000, torch.float32)
    inbox = deliver(graph, own, random_lies(graph, own))
    inputs = round_inputs(graph, own)
    laws.batch(rule, own, inbox, **inputs)
    laws.padding(rule, own, inbox, **inputs)
    laws.slot_order(rule, own, inbox, **inputs)
    laws.nonfinite(rule, own, inbox, **inputs)
    laws.starvation(rule, own, inbox, **inputs)
    laws.purity(rule, own, inbox, **inputs)
    if rule in RULES.values():
        some_rules.written_to_out(rule, own, inbox, **inputs)
    laws.kept(rule, own, inbox, **inputs)
    if rule in SELFLESS.values():
        some_rules.scale(rule, own, deliver(graph, own), 2.0**-100, **inputs)
    if rule in BALANCES.values():
        rule_laws.balance_bound(rule, own, inbox, **inputs)
        rule_laws.balance_accepts(rule, own, inbox, **inputs)
        some_rules.accepts_separately(rule, own, inbox, **inputs)


# Some rules


@pytest.mark.parametrize("name", RESCALING)
@a_few
@given(rounds())
def test_weights_of_rescaled_messages(name: str, case: RuleRound) -> None:
    laws.weights_explain(RULES[name], case.own, case.inbox, RESCALING[name], **case.inputs)


@each(WEIGHTED)
def test_weights_or_none(rule: Any) -> None:
    graph = regular(6, 3)
    own = models_of(graph, 4, torch.float32)
    assert rule(own, deliver(graph, own), **round_inputs(graph, own)).weights is not None


@each(SELFLESS)
@a_few
@given(rounds(hostile=False), st.sampled_from([2.0**-100, 0.125, 4.0, 2.0**100]))
def test_scale(rule: Any, case: RuleRound, factor: float) -> None:
    some_rules.scale(rule, case.own, case.inbox, factor, **case.inputs)


@each(CENTRED)
@a_few
@given(rounds((torch.float64,), whole=False), st.integers(-9, 9))
def test_translation(rule: Any, case: RuleRound, shift: int) -> None:
    by = torch.arange(case.own.shape[1], dtype=torch.float64) + shift
    some_rules.translation(rule, case.own, case.inbox, by, **case.inputs)


@each(ISOTROPIC)
@a_few
@given(rounds((torch.float64,), whole=False), st.integers(0, 2**31))
def test_rotation(rule: Any, case: RuleRound, seed: int) -> None:
    d = case.own.shape[1]
    square = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    some_rules.rotation(rule, case.own, case.inbox, torch.linalg.qr(square).Q, **case.inputs)


def test_which_are_isotropic() -> None:
    others = {
        type(innermost(rule)).__name__ for name, rule in RULES.items() if name not in ISOTROPIC
    }
    kinds = (*COORDINATEWISE, eq.GeometricMedian, eq.UBAR, eq.Bridge)
    assert others == {kind.__name__ for kind in kinds}


@each(CLIPPING)
@many
@given(rounds())
def test_clipping_bound(rule: Any, case: RuleRound) -> None:
    rule_laws.clipping_bound(rule, case.own, case.inbox, **case.inputs)


@each(SHORTENING)
@many
@given(rounds())
def test_norm_at_most_own(rule: Any, case: RuleRound) -> None:
    some_rules.norm_bound(rule, case.own, case.inbox, **case.inputs)


@each({"trimmed-mean": eq.TrimmedMean(), "median": eq.Median()})
@many
@given(
    rounds(),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from([math.nan, -math.inf, -3e38, -7.0, 0.0, 1e30]),
)
def test_between_benign_extremes(
    rule: Any, case: RuleRound, count: int, spare: int, value: float
) -> None:
    benign = case.own
    malicious = torch.full((min(count, len(benign) - 1), benign.shape[1]), value)
    some_rules.between_benign(rule, benign[0], benign, malicious, tolerated=len(malicious) + spare)


@many
@given(rounds(whole=False))
def test_krum_returns_a_message(case: RuleRound) -> None:
    out = eq.Krum()(case.own, case.inbox, **case.inputs)
    for i in range(len(case.own)):
        chosen = out.weights[i].nonzero().flatten()
        assert len(chosen) == int(case.inbox.present[i].any())
        expected = case.inbox.bank[case.inbox.slots[i, chosen[0]]] if len(chosen) else case.own[i]
        assert torch.equal(out.model[i], expected)


@many
@given(rounds(), st.sampled_from(["best", "closest", "own"]))
def test_ubar_accepts_better_models(case: RuleRound, empty: str) -> None:
    """All accepted models are better than own; if none is, at most one message is accepted."""
    out = eq.UBAR(empty=empty)(case.own, case.inbox, **case.inputs)
    loss_of = case.inputs["loss_of"]
    for i in range(len(case.own)):
        accepted = case.inbox.bank[case.inbox.slots[i, out.weights[i] > 0]]
        judges = torch.full((len(accepted),), i)
        better = loss_of(accepted, judges) < loss_of(case.own[i : i + 1], torch.tensor([i]))
        assert better.all() or (len(accepted) == 1 and empty != "own")


@many
@given(rounds(whole=False), st.floats(0.01, 10), st.floats(0.01, 10))
def test_clipping_is_monotone_in_tau(case: RuleRound, one: float, other: float) -> None:
    near, far = (
        replace(eq.SCClip(), tau=tau)(case.own, case.inbox).weights.double()
        for tau in sorted([one, other])
    )
    assert (near <= far * (1 + 1e-6)).all()
