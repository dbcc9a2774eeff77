"""Adaptive finds the strongest lie that a rule accepts, with few queries."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from equipoise.attacks._subspace import in_subspace
from equipoise.testing import attacked_rounds
from equipoise.testing._attacked_rounds import delivered, random_knowledge, with_rule
from tests.attack_cases import edges_to_victims, few_examples
from tests.attack_references import World, mean, observed_clients, perturbation_of, vectors
from tests.references import array, norm

RULES = {
    "Balance": eq.Balance(gamma=0.9),
    "BalanceMedian": eq.BalanceMedian(gamma=0.9),
    "Krum": eq.Krum(),
    "FLTrust": eq.FLTrust(),
}


class Counted:
    """A rule that counts how often it is asked."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.calls = rule, 0

    def __call__(self, own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
        self.calls += 1
        return self.rule(own, received, **inputs)


@pytest.mark.parametrize("mode", ["max", "literal"])
@pytest.mark.parametrize(
    "rule", [*RULES.values(), eq.Median(), eq.FedAvg()], ids=[*RULES, "Median", "FedAvg"]
)
def test_few_queries(rule: Any, mode: str) -> None:
    """For all victims together."""
    known = with_rule(random_knowledge(9, 5, [0, 1]), Counted(rule))
    attacks.Adaptive(mode=mode).forge(known)
    assert 1 < known.rule.calls <= 50


@pytest.mark.parametrize("mode", ["max", "literal"])
@pytest.mark.parametrize("center", ["mean", "own"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("rule", [*RULES.values(), eq.FedAvg()], ids=[*RULES, "FedAvg"])
def test_subspace_gives_same_lies(rule: Any, dtype: torch.dtype, center: Any, mode: Any) -> None:
    """For isotropic rules. A wrapped rule does not say that it is one."""
    if isinstance(rule, eq.FLTrust) and mode == "literal":
        pytest.skip("all strengths do FLTrust the same damage, and rounding decides")
    known = with_rule(random_knowledge(9, 60, [0, 1], dtype=dtype), rule)
    attack = attacks.Adaptive(mode, start=2.0, center=center)
    found, expected = attack.forge(known), attack.forge(with_rule(known, Counted(rule)))
    torch.testing.assert_close(found.rows, expected.rows, rtol=3e-4, atol=3e-4)


def test_subspace_is_queried() -> None:
    asked: list[int] = []

    class Watched(eq.Balance):
        def weigh(self, own: Tensor, inbox: Any, **inputs: Any) -> Tensor:
            asked.append(own.shape[1])
            return super().weigh(own, inbox, **inputs)

    attacks.Adaptive().forge(with_rule(random_knowledge(9, 60, [0, 1]), Watched()))
    assert asked.count(60) == 1
    assert asked.count(9) > 10


@pytest.mark.parametrize("spoilt", [1e9, torch.nan], ids=["huge", "nan"])
def test_subspace_needs_exactness(spoilt: float) -> None:
    known = random_knowledge(9, 60, [0, 1])
    models = known.models.clone()
    models[5] *= spoilt
    assert in_subspace(known) is not None
    assert in_subspace(dataclasses.replace(known, models=models)) is None
    assert (
        in_subspace(dataclasses.replace(known, models=known.models.half(), previous=None)) is None
    )
    assert in_subspace(random_knowledge(9, 20, [0, 1])) is None


def weights_of_lies(known: Knowledge, rows: Tensor) -> dict[int, list[float]]:
    """The weights of all malicious messages, if victim i receives ``rows[i]``."""
    lies = eq.Lies.per_receiver(rows.to(known.models.dtype))
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    weights = known.rule(known.models, inbox, **known.inputs).weights
    return {
        i: [
            float(weights[i, slot])
            for slot in range(inbox.k)
            if inbox.mask[i, slot] and known.malicious_mask[inbox.senders[i, slot]]
        ]
        for i in known.victims.tolist()
    }


def accepted(known: Knowledge, rows: Tensor) -> dict[int, bool]:
    """Whether all malicious messages have weight; Krum has one winner, so for it whether one of
    them has.
    """
    enough = any if isinstance(known.rule, eq.Krum) else all
    return {
        i: enough(weight > 0 for weight in weights)
        for i, weights in weights_of_lies(known, rows).items()
    }


def line_of(known: Knowledge, perturbation: str) -> tuple[Tensor, Tensor]:
    """(n, d) mu and p of every victim, float64; zeros for the others."""
    world = World.of(known)
    mus, ps = (
        torch.zeros_like(known.models, dtype=torch.float64),
        torch.zeros_like(known.models, dtype=torch.float64),
    )
    for i in known.victims.tolist():
        rows = vectors(world, observed_clients(world, i, "receiver"), "model")
        mus[i], ps[i] = (
            torch.from_numpy(mean(list(rows))),
            torch.from_numpy(perturbation_of(rows, perturbation)[0]),
        )
    return mus, ps


def strongest(known: Knowledge, perturbation: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(n, d) lies, mu and p, and (n, 1) strengths of the adaptive attack."""
    attack = attacks.Adaptive(perturbation=perturbation)
    messages = delivered(known, attack.forge(known))
    rows = torch.zeros_like(known.models)
    for sender, victim in edges_to_victims(known):
        rows[victim] = messages[sender, victim]
    mu, p = line_of(known, perturbation)
    strengths = ((mu - rows.double()) * p).sum(1, keepdim=True) / p.square().sum(
        1, keepdim=True
    ).clamp_min(1e-300)
    return rows, mu, p, strengths


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@settings(max_examples=6)
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_strongest_accepted(rule: Any, perturbation: str, known: Knowledge) -> None:
    """If the benign mean is accepted, by a margin, so is the lie, and one that is stronger by
    0.5 % is not.

    Nothing is promised where the rule has no limit: it accepts lies that are thousands of times as
    long as the models.
    """
    known = with_rule(known, rule)
    assume(len(known.victims))
    rows, mu, p, strengths = strongest(known, perturbation)
    far = mu - 1e4 * p / p.norm(dim=1, keepdim=True).clamp_min(1e-300) * (
        1 + mu.norm(dim=1, keepdim=True)
    )
    at_mean, unlimited, at_lie = (accepted(known, told) for told in (mu - 1e-6 * p, far, rows))
    beyond = accepted(known, mu - (1.005 * strengths + 1e-9) * p)
    for i in known.victims.tolist():
        if at_mean[i] and p[i].any():
            assert at_lie[i], f"client {i} rejects {rows[i]}"
            assert unlimited[i] or not beyond[i], (
                f"client {i} accepts more than {rows[i]}, gamma {strengths[i]}"
            )
        assert norm(array(rows[i] - (mu - strengths * p)[i])) <= 1e-9 * (
            1 + norm(array(rows[i]))
        ), "not on the line"


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float32,)))
def test_accepted_in_float32(rule: Any, known: Knowledge) -> None:
    """As it is delivered: rounding must not push it over the limit."""
    known = with_rule(known, rule)
    rows, mu, p, _ = strongest(known, "unit")
    at_mean, at_lie = accepted(known, mu - 1e-3 * p), accepted(known, rows)
    assert not [i for i in at_mean if at_mean[i] and not at_lie[i]]


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("rule", [eq.Median(), eq.TrimmedMean()], ids=["median", "trimmed-mean"])
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_largest_damage(rule: Any, perturbation: str, known: Knowledge) -> None:
    """Against rules without weights: no strength moves the aggregate much further from mu; the grid
    is coarse.
    """
    known = with_rule(known, rule)
    assume(len(known.victims))
    rows, mu, p, _ = strongest(known, perturbation)

    def damage(told: Tensor) -> Tensor:
        inbox = known.topology.deliver(known.models, eq.Lies.per_receiver(told), known.malicious)
        return (rule(known.models, inbox, **known.inputs).model - mu).norm(dim=1)[known.victims]

    scale = 1 + known.models.norm(dim=1).max()
    done = damage(rows)
    bounded = (
        damage(mu - 1e6 * scale * p) < 1e3 * scale
    )  # a malicious majority moves a median anywhere
    for strength in [0.0, *torch.logspace(-3, 2, 11).tolist()]:
        most = damage(mu - strength * scale * p)
        assert (done >= 0.97 * most - 1e-9)[bounded].all(), (
            f"{strength * scale}: {most}, found {done}"
        )


@pytest.mark.parametrize("mode", ["max", "literal"])
def test_queries_repeat_noise(mode: Any) -> None:
    """Also the generator of a round that is known stays as it is."""
    drawn: list[float] = []

    def drawing(
        own: Tensor, received: Any, *, generator: torch.Generator, **inputs: Any
    ) -> eq.Aggregated:
        drawn.append(float(torch.rand((), generator=generator)))
        return eq.Balance(kappa=0)(own, received)

    known, generator = random_knowledge(9, 5, [0, 1]), torch.Generator().manual_seed(3)
    attacks.Adaptive(mode).forge(
        dataclasses.replace(known, rule=drawing, inputs={"generator": generator})
    )
    assert len(drawn) > 1
    assert set(drawn) == {float(torch.rand((), generator=generator))}


@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_per_client_rules(perturbation: str, known: Knowledge) -> None:
    """Of rules with and without weights, side by side, as if everybody had that rule, to the
    precision of a search.
    """
    attack, alone = (
        attacks.Adaptive(perturbation=perturbation),
        (Counted(eq.Balance(gamma=0.9)), eq.Median()),
    )
    mixed = with_rule(known, eq.PerClient([alone[i % 2] for i in range(known.topology.n)]))
    expected = [delivered(known, attack.forge(with_rule(known, rule))) for rule in alone]
    for (sender, victim), found in delivered(known, attack.forge(mixed)).items():
        rounding = {"rtol": 3e-4, "atol": 3e-4 * float(1 + known.models.abs().max())}
        torch.testing.assert_close(found, expected[victim % 2][sender, victim], **rounding)


def test_global_mixed_rules() -> None:
    """A median has nothing to reject: it is the limit of BALANCE that counts."""
    known = Knowledge(torch.full((5, 1), 10.0).double(), eq.Topology.complete(5), [4])
    rules = [eq.Median(), eq.Balance(kappa=0), eq.Median(), eq.Balance(0.2, kappa=0), eq.Balance()]
    lies = attacks.Adaptive(scope="global").forge(with_rule(known, eq.PerClient(rules)))
    assert lies is not None
    assert lies.rows.item() == pytest.approx(8, rel=1e-3)
    medians = [*[eq.Median()] * 4, eq.Balance()]  # that of a malicious client does not count
    found = attacks.Adaptive(scope="global").forge(with_rule(known, eq.PerClient(medians)))
    expected = attacks.Adaptive(scope="global").forge(with_rule(known, eq.Median()))
    assert found is not None
    assert expected is not None
    assert torch.equal(found.rows, expected.rows)


@pytest.mark.parametrize("gamma", [0.9, 0.03, 1e-3, 1e-5])
@pytest.mark.parametrize("perturbation", ["unit", "sign"])
def test_tight_limits(gamma: float, perturbation: str) -> None:
    """Relative to the limit: near the end of training rules accept little."""
    known = with_rule(
        Knowledge(torch.full((4, 1), 10.0).double(), eq.Topology.complete(4), [3]),
        eq.Balance(gamma=gamma),
    )
    strength = (
        10 - delivered(known, attacks.Adaptive(perturbation=perturbation).forge(known))[3, 0].item()
    )
    assert strength == pytest.approx(10 * gamma * math.exp(-0.2), rel=1e-3)


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
def test_krum_majority() -> None:
    """Two equal lies win against one model, wherever they are, except where they equal it: then the
    lowest id wins.
    """
    known = with_rule(
        Knowledge(torch.full((4, 1), 10.0).double(), eq.Topology.complete(4), [2, 3]), eq.Krum()
    )
    lies = {s: delivered(known, attacks.Adaptive().forge(known))[s, 0] for s in (2, 3)}
    assert accepted(known, lies[2].expand(4, 1))[0]
    assert (lies[2] - 10).abs().item() > 10


def test_rejected_mean() -> None:
    """A victim at 4 whose neighbors are at 10 rejects their mean, but not what is between 2.8 and
    5.2.
    """
    models = torch.tensor([[4.0], [10.0], [10.0], [10.0]], dtype=torch.float64)
    known = Knowledge(
        models,
        eq.Topology.complete(4),
        [3],
        rule=eq.Balance(gamma=0.3),
        inputs={"t": 0, "total": 1, "tolerated": 1},
    )
    lie = delivered(known, attacks.Adaptive().forge(known))[3, 0]
    assert lie.item() == pytest.approx(2.8, abs=8e-3)


def test_narrow_range() -> None:
    """The way from the neighbors' mean to 0 passes a victim just inside its limit, for 3 % of its
    length.
    """
    models = torch.tensor([[8.9, 0.0], [20.0, 1.0], [20.0, 1.0], [20.0, 1.0]], dtype=torch.float64)
    known = Knowledge(
        models,
        eq.Topology.complete(4),
        [3],
        rule=eq.Balance(gamma=0.06),
        inputs={"t": 0, "total": 1},
    )
    lie = delivered(known, attacks.Adaptive().forge(known))[3, 0]
    assert (lie - models[0]).norm().item() == pytest.approx(0.06 * 8.9, rel=1e-3)
    assert lie.norm() < models[0].norm()
