"""Random rounds, on which every rule must obey the laws of `tests.laws`."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from tests import laws
from tests.cases import LEARNS, RULES
from tests.graphs import Distance, Graph, deliver, models_of, random_lies, regular, round_inputs

a_few = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


class Round(NamedTuple):
    """Everything that a law needs."""

    own: Tensor
    inbox: eq.Inbox
    inputs: dict[str, Any]


class Answered:
    """LEARN as a rule that talks once: whatever it says, it hears the same inbox."""

    def __init__(self, rule: eq.LEARN) -> None:
        self.rule = rule

    def __call__(self, own: Tensor, received: Tensor | eq.Inbox, **inputs: Any) -> eq.Aggregated:
        return eq.converse(self.rule, own, lambda sent: received, **inputs)[1]


HOSTILE_ROWS = ["nan", "inf", "huge", "largest", "zeros", "negated", "copy"]


@st.composite
def rounds(
    draw: st.DrawFn, dtype: torch.dtype = torch.float32, whole: bool | None = None, hostile: bool = True
) -> Round:
    """A directed graph of up to six clients, models with or without exact ties, some rows of the bank hostile."""
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    own = _models(draw, n, d, generator, draw(st.booleans()) if whole is None else whole)
    rows = (
        [_hostile(draw(st.sampled_from(HOSTILE_ROWS)), own) for _ in range(draw(st.integers(0, 3)))] if hostile else []
    )
    bank = torch.cat([own, torch.stack(rows)]) if rows else own.clone()
    k = draw(st.integers(0, n))
    slots = torch.randint(len(bank), (n, k), generator=generator)
    senders = torch.rand(n, n, generator=generator).argsort(1)[:, :k]
    mask = torch.rand(n, k, generator=generator) < draw(st.sampled_from([0.5, 0.9, 1.0]))
    inbox = eq.Inbox(bank.to(dtype), slots, mask, senders)
    return Round(own.to(dtype), inbox, _inputs(draw, own, k, generator, dtype))


def _models(draw: st.DrawFn, n: int, d: int, generator: torch.Generator, whole: bool) -> Tensor:
    if whole:  # small integers: ties are exact, and common
        rows = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
        return torch.tensor(draw(st.lists(rows, min_size=n, max_size=n)), dtype=torch.float64)
    noise = torch.randn(n + 1, d, generator=generator, dtype=torch.float64)
    return (noise[:1] + draw(st.sampled_from([0.01, 0.3, 2.0])) * noise[1:]).float().double()


def _hostile(kind: str, own: Tensor) -> Tensor:
    row = own[-1].clone()
    if kind in ("nan", "inf"):
        row[0] = math.nan if kind == "nan" else math.inf
    values = {"huge": 1e30, "largest": 3e38, "zeros": 0.0}
    return torch.full_like(row, values[kind]) if kind in values else -row if kind == "negated" else row


def _inputs(draw: st.DrawFn, own: Tensor, k: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    total = draw(st.integers(1, 9))
    noise = torch.randn(own.shape, generator=generator, dtype=torch.float64)
    return {
        "t": draw(st.integers(0, total - 1)),
        "total": total,
        "tolerated": torch.randint(k + 2, (len(own),), generator=generator),
        "samples": torch.randint(1, 50, (len(own),), generator=generator),
        "loss_of": Distance(own + 0.3 * noise),
        "update": (0.1 * noise).to(dtype),
    }


TALKATIVE = {name: Answered(rule) for name, rule in LEARNS.items()}
WEIGHTED = {name: rule for name, rule in RULES.items() if not isinstance(rule, eq.TrimmedMean | eq.Median)}
BALANCES = {name: rule for name, rule in RULES.items() if isinstance(rule, eq.Balance)}
SELFLESS = {name: rule for name, rule in RULES.items() if not isinstance(rule, eq.UBAR)}
CENTRED = {
    name: rule for name, rule in RULES.items() if isinstance(rule, eq.FedAvg | eq.Krum | eq.TrimmedMean | eq.Median)
} | {name: rule for name, rule in RULES.items() if isinstance(rule, eq.SCClip) and rule.mode == "difference"}
ISOTROPIC = {name: rule for name, rule in SELFLESS.items() if not isinstance(rule, eq.TrimmedMean | eq.Median)}
CLIPPING = {name: rule for name, rule in CENTRED.items() if isinstance(rule, eq.SCClip) and isinstance(rule.tau, float)}
SHORTENING = {name: RULES[name] for name in ("fltrust", "fltrust-plain", "scclip-norm")}


def each(rules: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", rules.values(), ids=rules)


# BALANCE


@each(BALANCES)
@many
@given(rounds(whole=False))
def test_balance_moves_own_by_at_most_the_threshold(rule: Any, case: Round) -> None:
    laws.balance_bound(rule, case.own, case.inbox, **case.inputs)


@each(BALANCES)
@many
@given(rounds(whole=False))
def test_balance_accepts_what_is_close(rule: Any, case: Round) -> None:
    laws.balance_accepts(rule, case.own, case.inbox, **case.inputs)


@each(BALANCES)
@many
@given(rounds())
def test_balance_judges_every_message_alone(rule: Any, case: Round) -> None:
    laws.accepts_separately(rule, case.own, case.inbox, **case.inputs)


@many
@given(rounds(), st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_balance_is_monotone_in_gamma(case: Round, one: float, other: float, kappa: float) -> None:
    small, large = (eq.Balance(gamma=gamma, kappa=kappa) for gamma in sorted([one, other]))
    laws.nested(small, large, case.own, case.inbox, **case.inputs)


@many
@given(rounds(), st.floats(0, 3), st.floats(0, 3), st.floats(0, 3))
def test_balance_is_monotone_in_kappa(case: Round, one: float, other: float, gamma: float) -> None:
    slow, fast = (eq.Balance(gamma=gamma, kappa=kappa) for kappa in sorted([one, other]))
    laws.nested(fast, slow, case.own, case.inbox, **case.inputs)


@each(BALANCES)
@many
@given(rounds(), st.lists(st.integers(0, 9), min_size=2, max_size=2))
def test_balance_accepts_less_later(rule: Any, case: Round, both: list[int]) -> None:
    laws.accepts_less_later(rule, case.own, case.inbox, min(both), max(both), total=10)


@many
@given(rounds(whole=False))
def test_balance_without_decay_ignores_the_round(case: Round) -> None:
    rule = eq.Balance(gamma=0.4, kappa=0.0)
    assert torch.equal(rule(case.own, case.inbox).model, rule(case.own, case.inbox, t=7, total=8).model)


@many
@given(rounds(), st.floats(0.01, 3))
def test_balance_median_accepts_at_most_what_gamma_does(case: Round, gamma: float) -> None:
    laws.nested(eq.BalanceMedian(gamma), eq.Balance(gamma, kappa=0.0), case.own, case.inbox)
    laws.nested(eq.BalanceMedian(gamma), eq.BalanceMedian(2 * gamma), case.own, case.inbox)


# Every rule


@each(RULES | TALKATIVE)
@a_few
@given(rounds())
def test_batch(rule: Any, case: Round) -> None:
    laws.batch(rule, case.own, case.inbox, **case.inputs)


@each(RULES | TALKATIVE)
@a_few
@given(rounds())
def test_padding(rule: Any, case: Round) -> None:
    laws.padding(rule, case.own, case.inbox, **case.inputs)


@each(RULES | TALKATIVE)
@a_few
@given(rounds(), st.integers(0, 2**31))
def test_slot_order(rule: Any, case: Round, seed: int) -> None:
    order = torch.rand(case.inbox.slots.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
    laws.slot_order(rule, case.own, case.inbox, order, **case.inputs)


@each(RULES | TALKATIVE)
@a_few
@given(rounds())
def test_starvation(rule: Any, case: Round) -> None:
    laws.starvation(rule, case.own, case.inbox, **case.inputs)


@each(RULES)
@a_few
@given(rounds())
def test_consensus(rule: Any, case: Round) -> None:
    laws.consensus(rule, case.own, case.inbox, **case.inputs)


@each({name: rule for name, rule in RULES.items() if name not in ("ubar-own", "scclip-0.25")})
@a_few
@given(rounds(whole=False))
def test_agreement(rule: Any, case: Round) -> None:
    """Messages near own and of its norm are acceptable to every rule, if it does not tolerate them all."""
    nearby = case.own.roll(1, 1).sign() * 1e-3 * case.own.norm(dim=1, keepdim=True) + case.own
    nearby = nearby * (case.own.norm(dim=1, keepdim=True) / nearby.norm(dim=1, keepdim=True))
    laws.agreement(rule, case.own, case.inbox, nearby, **case.inputs | {"tolerated": 0})


@each(RULES | TALKATIVE)
@a_few
@given(rounds())
def test_purity(rule: Any, case: Round) -> None:
    laws.purity(rule, case.own, case.inbox, **case.inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@each(RULES | TALKATIVE)
def test_dtype_and_shape_are_kept(rule: Any, dtype: torch.dtype) -> None:
    @settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
    @given(rounds(dtype, hostile=False))
    def check(case: Round) -> None:
        laws.kept(rule, case.own, case.inbox, **case.inputs)

    check()


@each(RULES)
@a_few
@given(rounds())
def test_written_to_out(rule: Any, case: Round) -> None:
    laws.written_to_out(rule, case.own, case.inbox, **case.inputs)


@pytest.mark.parametrize(
    ("out", "found"),
    [
        (lambda own: torch.empty(3), "out must be a tensor like own, float32 (4,) on cpu, found float32 (3,)"),
        (lambda own: torch.empty(4, dtype=torch.float64), "found float64 (4,)"),
        (lambda own: [0.0] * 4, "found list"),
        (lambda own: own, "out must have memory of its own, found that of own or of a message"),
        (lambda own: torch.empty(4, requires_grad=True), "out must not require gradients"),
    ],
)
def test_out_must_be_like_own_and_elsewhere(out: Any, found: str) -> None:
    own = torch.ones(4)
    with pytest.raises(ValueError, match=re.escape(found)):
        eq.Median()(own, torch.ones(2, 4), out=out(own))


@each(RULES)
@a_few
@given(rounds())
def test_hostile_messages_leave_the_aggregate_finite(rule: Any, case: Round) -> None:
    laws.kept(rule, case.own, case.inbox, **case.inputs)


@a_few
@given(rounds(), st.integers(0, 2**31))
def test_rules_of_every_client(case: Round, seed: int) -> None:
    choice = torch.randint(len(RULES), (len(case.own),), generator=torch.Generator().manual_seed(seed))
    rule = eq.PerClient([list(RULES.values())[i] for i in choice.tolist()])
    for law in (laws.batch, laws.padding, laws.starvation, laws.consensus, laws.purity, laws.kept, laws.written_to_out):
        law(rule, case.own, case.inbox, **case.inputs)


@pytest.mark.parametrize("graph", [regular(16, 8), regular(40, 3)], ids=lambda graph: graph.name)
@each(RULES | TALKATIVE)
def test_large_rounds(rule: Any, graph: Graph) -> None:
    """The laws once more where models are long enough for the fast ways of computing."""
    own = models_of(graph, 3000, torch.float32)
    inbox, inputs = deliver(graph, own, random_lies(graph, own)), round_inputs(graph, own)
    order = torch.rand(inbox.slots.shape, generator=torch.Generator().manual_seed(0)).argsort(1)
    laws.batch(rule, own, inbox, **inputs)
    laws.padding(rule, own, inbox, **inputs)
    laws.slot_order(rule, own, inbox, order, **inputs)
    laws.starvation(rule, own, inbox, **inputs)
    laws.purity(rule, own, inbox, **inputs)
    if rule in RULES.values():
        laws.written_to_out(rule, own, inbox, **inputs)
    laws.kept(rule, own, inbox, **inputs)
    if rule in SELFLESS.values():
        laws.scale(rule, own, deliver(graph, own), 2.0**-100, **inputs)
    if rule in BALANCES.values():
        laws.balance_bound(rule, own, inbox, **inputs)
        laws.balance_accepts(rule, own, inbox, **inputs)
        laws.accepts_separately(rule, own, inbox, **inputs)


# Some rules


@each(WEIGHTED)
@a_few
@given(rounds())
def test_weights_explain_the_model(rule: Any, case: Round) -> None:
    as_used = {eq.FLTrust: laws.to_own_norm, eq.SCClip: laws.at_most_own_norm}.get(type(rule))
    as_used = None if getattr(rule, "mode", "") == "difference" else as_used
    laws.weights_explain(rule, case.own, case.inbox, as_used, **case.inputs)


@each(SELFLESS)
@a_few
@given(rounds(hostile=False), st.sampled_from([2.0**-100, 0.125, 4.0, 2.0**100]))
def test_scale(rule: Any, case: Round, factor: float) -> None:
    laws.scale(rule, case.own, case.inbox, factor, **case.inputs)


@each(CENTRED)
@a_few
@given(rounds(torch.float64, whole=False), st.integers(-9, 9))
def test_translation(rule: Any, case: Round, shift: int) -> None:
    by = torch.arange(case.own.shape[1], dtype=torch.float64) + shift
    laws.translation(rule, case.own, case.inbox, by, **case.inputs)


@each(ISOTROPIC)
@a_few
@given(rounds(torch.float64, whole=False), st.integers(0, 2**31))
def test_rotation(rule: Any, case: Round, seed: int) -> None:
    d = case.own.shape[1]
    square = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    laws.rotation(rule, case.own, case.inbox, torch.linalg.qr(square).Q, **case.inputs)


@each(CLIPPING)
@many
@given(rounds())
def test_clipping_moves_own_by_at_most_tau(rule: Any, case: Round) -> None:
    laws.clipping_bound(rule, case.own, case.inbox, **case.inputs)


@each(SHORTENING)
@many
@given(rounds())
def test_the_aggregate_is_no_longer_than_own(rule: Any, case: Round) -> None:
    laws.norm_bound(rule, case.own, case.inbox, **case.inputs)


@each({"trimmed-mean": eq.TrimmedMean(), "median": eq.Median()})
@many
@given(rounds(), st.integers(0, 5), st.integers(0, 3), st.sampled_from([math.nan, -math.inf, -3e38, -7.0, 0.0, 1e30]))
def test_order_statistics_stay_between_benign_extremes(
    rule: Any, case: Round, count: int, spare: int, value: float
) -> None:
    benign = case.own
    malicious = torch.full((min(count, len(benign) - 1), benign.shape[1]), value)
    laws.between_benign(rule, benign[0], benign, malicious, tolerated=len(malicious) + spare)


@many
@given(rounds(whole=False))
def test_krum_returns_a_message_as_it_is(case: Round) -> None:
    out = eq.Krum()(case.own, case.inbox, **case.inputs)
    for i in range(len(case.own)):
        chosen = out.weights[i].nonzero().flatten()
        assert len(chosen) == int(case.inbox.present[i].any())
        expected = case.inbox.bank[case.inbox.slots[i, chosen[0]]] if len(chosen) else case.own[i]
        assert torch.equal(out.model[i], expected)


@many
@given(rounds(), st.sampled_from(["best", "closest", "own"]))
def test_ubar_never_averages_a_worse_model(case: Round, empty: str) -> None:
    """Unless nothing is better than own, everything accepted is; and then at most one message is."""
    out = eq.UBAR(empty=empty)(case.own, case.inbox, **case.inputs)
    loss_of = case.inputs["loss_of"]
    for i in range(len(case.own)):
        accepted = case.inbox.bank[case.inbox.slots[i, out.weights[i] > 0]]
        judges = torch.full((len(accepted),), i)
        better = loss_of(accepted, judges) < loss_of(case.own[i : i + 1], torch.tensor([i]))
        assert better.all() or (len(accepted) == 1 and empty != "own")


@many
@given(rounds(whole=False), st.floats(0.01, 10), st.floats(0.01, 10))
def test_clipping_is_monotone_in_tau(case: Round, one: float, other: float) -> None:
    near, far = (replace(eq.SCClip(), tau=tau)(case.own, case.inbox).weights.double() for tau in sorted([one, other]))
    assert (near <= far * (1 + 1e-6)).all()
