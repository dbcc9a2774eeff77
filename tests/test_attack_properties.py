"""What holds for every message attack, whatever the graph, the models and who is malicious."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from equipoise.attacks._subspace import in_subspace
from equipoise.testing import MESSAGE_LAWS, attacked_rounds, check_attack
from equipoise.testing._attacked_rounds import delivered, random_knowledge, with_rule, with_seed
from tests.attack_references import World, crowd, deviation, lie_strength, mean, origin, perturbation_of, vectors
from tests.references import array, norm

# How many different rows an attack may need


def one(known: Knowledge) -> int:
    return 1


def per_victim(known: Knowledge) -> int:
    return len(known.victims)


def per_victim_and_one(known: Knowledge) -> int:
    return len(known.victims) + 1


def per_victim_or_edge(known: Knowledge) -> int:
    """One per victim; one per edge to those that hear at most two clients."""
    few = [i for _, i in edges_to_victims(known) if known.topology.degrees[i] <= 2]
    return len(few) + len(set(known.victims.tolist()) - set(few))


def per_liar(known: Knowledge) -> int:
    return int(known.malicious_mask.sum())


def per_edge(known: Knowledge) -> int:
    return len(edges_to_victims(known))


ATTACKS: dict[str, tuple[Any, Callable[[Knowledge], int]]] = {
    "Gaussian": (attacks.Gaussian(), per_liar),
    "KrumAttack": (attacks.KrumAttack(noise=0.0), per_victim_or_edge),
    "KrumAttack-update-global": (attacks.KrumAttack(noise=0.0, space="update", scope="global"), one),
    "KrumAttack-fang": (attacks.KrumAttack(form="fang", noise=0.0), per_victim),
    "KrumAttack-noise": (attacks.KrumAttack(), per_edge),
    "TrimAttack": (attacks.TrimAttack(), per_edge),
    "TrimAttack-fixed": (attacks.TrimAttack(random=False), per_victim),
    "TrimAttack-fang": (attacks.TrimAttack(form="fang"), per_edge),
    "TrimAttack-global": (attacks.TrimAttack(scope="global"), per_liar),
    "Adaptive": (attacks.Adaptive(), per_victim),
    "Adaptive-sign": (attacks.Adaptive(perturbation="sign"), per_victim),
    "Adaptive-std": (attacks.Adaptive(perturbation="std"), per_victim),
    "Adaptive-global": (attacks.Adaptive(scope="global"), one),
    "Adaptive-literal": (attacks.Adaptive(mode="literal"), per_victim),
    "LIE": (attacks.LIE(z=1.5), per_victim),
    "LIE-global": (attacks.LIE(z=1.5, scope="global"), one),
    "Dissensus": (attacks.Dissensus(), per_victim),
    "Dissensus-metropolis": (attacks.Dissensus(weights="metropolis"), per_victim),
    "Isolation": (attacks.Isolation(), per_victim),
    "SignFlip": (attacks.SignFlip(), per_victim),
    "SignFlip-global": (attacks.SignFlip(scope="global", space="model"), one),
    "IPM": (attacks.IPM(), per_victim),
    "MinMax": (attacks.MinMax(), per_victim),
    "MinMax-std-update": (attacks.MinMax(perturbation="std", space="update"), per_victim),
    "MinSum": (attacks.MinSum(), per_victim),
    "MinSum-global": (attacks.MinSum(scope="global", perturbation="sign"), one),
    "Mimic": (attacks.Mimic(), one),
    "NonFinite": (attacks.NonFinite(), one),
    "Zero": (attacks.Zero(), one),
    "Spectral": (attacks.Spectral(), per_victim),
    "Window": (attacks.Window(attacks.LIE(z=1.0), 0, 5), per_victim),
    "OnlyClients": (attacks.OnlyClients(attacks.Gaussian(), clients=(0,)), per_liar),
    "InModelSpace": (attacks.InModelSpace(attacks.LIE(z=1.0)), per_victim),
    "Combined": (
        attacks.Combined(attacks.Dissensus(), attacks.OnlyClients(attacks.Zero(), clients=(0,))),
        per_victim_and_one,
    ),
}
RANDOM = ["Gaussian", "TrimAttack", "TrimAttack-fang", "TrimAttack-global"]
RULES = {
    "Balance": eq.Balance(gamma=0.9),
    "BalanceMedian": eq.BalanceMedian(gamma=0.9),
    "Krum": eq.Krum(),
    "FLTrust": eq.FLTrust(),
}

every_attack = pytest.mark.parametrize("attack", [attack for attack, _ in ATTACKS.values()], ids=ATTACKS)
few_examples = settings(max_examples=5)


def edges_to_victims(known: Knowledge) -> list[tuple[int, int]]:
    """(sender, receiver) of all edges from malicious to benign clients."""
    return [
        (s, i) for s, i in known.topology.edges().tolist() if known.malicious_mask[s] and not known.malicious_mask[i]
    ]


# For every attack


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_benign_messages_are_untouched(attack: Any, known: Knowledge) -> None:
    """Whatever is forged, every message of a benign client is its model, bit by bit."""
    for (sender, receiver), message in delivered(known, attack.forge(with_seed(known, 0))).items():
        if not known.malicious_mask[sender]:
            assert torch.equal(message, known.models[sender]), f"{sender} -> {receiver}"


@pytest.mark.parametrize("law", MESSAGE_LAWS)
@every_attack
def test_attacks_obey(attack: Any, law: str) -> None:
    check_attack(attack, laws=[law], examples=5)


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_lies_are_finite_unless_they_are_not_meant_to_be(attack: Any, known: Knowledge) -> None:
    used = delivered(known, attack.forge(with_seed(known, 0)))
    for edge in edges_to_victims(known):
        assert bool(used[edge].isfinite().all()) != isinstance(attack, attacks.NonFinite), f"{edge}: {used[edge]}"


@pytest.mark.parametrize(("attack", "limit"), ATTACKS.values(), ids=ATTACKS)
@few_examples
@given(known=attacked_rounds())
def test_every_lie_is_stored_once(attack: Any, limit: Callable[[Knowledge], int], known: Knowledge) -> None:
    lies = attack.forge(with_seed(known, 0))
    assert lies is None or len(lies.rows) <= limit(known)


@pytest.mark.parametrize("name", RANDOM)
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_other_seed_other_lies(name: str, known: Knowledge) -> None:
    attack = ATTACKS[name][0]
    first, second = (delivered(known, attack.forge(with_seed(known, seed))) for seed in (0, 1))
    for edge in edges_to_victims(known):
        assert not torch.equal(first[edge], second[edge]), f"{edge}"


@pytest.mark.parametrize("name", RANDOM)
def test_every_round_is_new(name: str) -> None:
    """The generator moves on, and without one torch's own is used."""
    known = with_seed(random_knowledge(6, 5, [0, 1]), 0)
    unseeded = dataclasses.replace(known, generator=None)
    attack = ATTACKS[name][0]
    for source in (known, unseeded):
        assert not torch.equal(attack.forge(source).rows, attack.forge(source).rows)
    torch.manual_seed(3)
    rows = attack.forge(unseeded).rows
    torch.manual_seed(3)
    assert torch.equal(attack.forge(unseeded).rows, rows)


@pytest.mark.parametrize("name", ["LIE", "Dissensus", "MinMax", "Zero", "KrumAttack", "Adaptive", "TrimAttack-fixed"])
def test_without_randomness_the_generator_is_not_asked(name: str) -> None:
    known = with_seed(random_knowledge(6, 5, [0, 1]), 0)
    ATTACKS[name][0].forge(known)
    assert torch.equal(known.generator.get_state(), torch.Generator().manual_seed(0).get_state())


# Who is malicious


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_nobody_malicious(attack: Any, known: Knowledge) -> None:
    assert attack.forge(dataclasses.replace(known, malicious=[])) is None


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_everybody_malicious(attack: Any, known: Knowledge) -> None:
    """Nobody is left to lie to, which is no error."""
    full = with_seed(dataclasses.replace(known, malicious=range(known.topology.n)), 0)
    messages = delivered(full, attack.forge(full))
    assert set(messages) == {tuple(edge) for edge in full.topology.edges().tolist()}


@every_attack
def test_unreachable(attack: Any) -> None:
    """Malicious clients that only hear benign ones, or only talk among themselves, change nothing for these."""
    islands = eq.Topology.from_edges(7, [(0, 1), (1, 2), (2, 0), (3, 4), (5, 6)])
    one_way = eq.Topology.from_edges(7, [(0, 1), (1, 2), (2, 0), (2, 3), (1, 4), (5, 6), (6, 5)], directed=True)
    for topology in (islands, one_way):
        known = with_seed(dataclasses.replace(random_knowledge(7, 3, [3, 4, 5, 6]), topology=topology), 0)
        assert not len(known.victims)
        for (sender, receiver), message in delivered(known, attack.forge(known)).items():
            if not known.malicious_mask[receiver]:
                assert torch.equal(message, known.models[sender])


@every_attack
def test_victims_without_benign_neighbours(attack: Any) -> None:
    """The leaves of a star with a malicious hub, and a client between two malicious ones."""
    star = eq.Topology.from_edges(5, [(0, i) for i in range(1, 5)])
    path = eq.Topology.from_edges(5, [(0, 1), (1, 2), (3, 4)])
    for topology, malicious, victims in ((star, [0], [1, 2, 3, 4]), (path, [0, 2], [1])):
        known = dataclasses.replace(random_knowledge(5, 3, malicious), topology=topology)
        known = with_seed(with_rule(known, eq.Balance()), 0)
        assert known.victims.tolist() == victims
        for (sender, _), message in delivered(known, attack.forge(known)).items():
            if known.malicious_mask[sender] and not isinstance(attack, attacks.NonFinite):
                assert message.isfinite().all()


def test_a_crowd_of_one_is_the_victim() -> None:
    """With nobody else to hide among, lies are made from the victim's own model."""
    known = dataclasses.replace(random_knowledge(3, 4, [0]), topology=eq.Topology.from_edges(3, [(0, 1), (0, 2)]))
    own, before = known.models[1], known.previous[1]
    expected = {
        attacks.LIE(z=2.0): own,
        attacks.MinMax(): own,
        attacks.MinSum(space="update"): own,
        attacks.Dissensus(): own,
        attacks.SignFlip(space="model"): -own,
        attacks.SignFlip(): before - (own - before),
    }
    for attack, lie in expected.items():
        found = delivered(known, attack.forge(known))[0, 1]
        assert torch.allclose(found, lie, rtol=1e-12), attack


# Adaptive


class Counted:
    """A rule that counts how often it is asked."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.calls = rule, 0

    def __call__(self, own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
        self.calls += 1
        return self.rule(own, received, **inputs)


@pytest.mark.parametrize("mode", ["max", "literal"])
@pytest.mark.parametrize("rule", [*RULES.values(), eq.Median(), eq.FedAvg()], ids=[*RULES, "Median", "FedAvg"])
def test_a_search_asks_a_few_tens_of_times(rule: Any, mode: str) -> None:
    """For all victims together."""
    known = with_rule(random_knowledge(9, 5, [0, 1]), Counted(rule))
    attacks.Adaptive(mode=mode).forge(known)
    assert 1 < known.rule.calls <= 50


@pytest.mark.parametrize("mode", ["max", "literal"])
@pytest.mark.parametrize("center", ["mean", "own"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [*RULES.values(), eq.FedAvg()], ids=[*RULES, "FedAvg"])
def test_a_search_in_few_coordinates_finds_the_same(rule: Any, dtype: torch.dtype, center: Any, mode: Any) -> None:
    """Of a rule that looks at lengths and angles only; nothing is known of a rule that is wrapped."""
    if isinstance(rule, eq.FLTrust) and mode == "literal":
        pytest.skip("all strengths do FLTrust the same damage, and rounding decides")
    known = with_rule(random_knowledge(9, 60, [0, 1], dtype=dtype), rule)
    attack = attacks.Adaptive(mode, start=2.0, center=center)
    found, expected = attack.forge(known), attack.forge(with_rule(known, Counted(rule)))
    torch.testing.assert_close(found.rows, expected.rows, rtol=3e-4, atol=3e-4)


def test_a_search_in_few_coordinates_does_not_ask_about_all() -> None:
    asked: list[int] = []

    class Watched(eq.Balance):
        def weigh(self, own: Tensor, inbox: Any, **inputs: Any) -> Tensor:
            asked.append(own.shape[1])
            return super().weigh(own, inbox, **inputs)

    attacks.Adaptive().forge(with_rule(random_knowledge(9, 60, [0, 1]), Watched()))
    assert asked.count(60) == 1
    assert asked.count(9) > 10


@pytest.mark.parametrize("spoilt", [1e9, torch.nan], ids=["huge", "nan"])
def test_few_coordinates_are_not_used_where_they_are_not_exact(spoilt: float) -> None:
    known = random_knowledge(9, 60, [0, 1])
    models = known.models.clone()
    models[5] *= spoilt
    assert in_subspace(known) is not None
    assert in_subspace(dataclasses.replace(known, models=models)) is None
    assert in_subspace(dataclasses.replace(known, models=known.models.half(), previous=None)) is None
    assert in_subspace(random_knowledge(9, 20, [0, 1])) is None


def weights_of_lies(known: Knowledge, rows: Tensor) -> dict[int, list[float]]:
    """What the victims' rule gives to every malicious message, if victim i is told ``rows[i]``."""
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
    """Whether all malicious messages have weight; Krum has one winner, so for it whether one of them has."""
    enough = any if isinstance(known.rule, eq.Krum) else all
    return {i: enough(weight > 0 for weight in weights) for i, weights in weights_of_lies(known, rows).items()}


def line_of(known: Knowledge, perturbation: str) -> tuple[Tensor, Tensor]:
    """(n, d) mu and p of every victim, float64; zeros for the others."""
    world = World.of(known)
    mus, ps = torch.zeros_like(known.models, dtype=torch.float64), torch.zeros_like(known.models, dtype=torch.float64)
    for i in known.victims.tolist():
        rows = vectors(world, crowd(world, i, "receiver"), "model")
        mus[i], ps[i] = torch.from_numpy(mean(list(rows))), torch.from_numpy(perturbation_of(rows, perturbation)[0])
    return mus, ps


def strongest(known: Knowledge, perturbation: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(n, d) lies, mu and p, and (n, 1) strengths of the adaptive attack."""
    attack = attacks.Adaptive(perturbation=perturbation)
    messages = delivered(known, attack.forge(known))
    rows = torch.zeros_like(known.models)
    for sender, victim in edges_to_victims(known):
        rows[victim] = messages[sender, victim]
    mu, p = line_of(known, perturbation)
    strengths = ((mu - rows.double()) * p).sum(1, keepdim=True) / p.square().sum(1, keepdim=True).clamp_min(1e-300)
    return rows, mu, p, strengths


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@settings(max_examples=6)
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_adaptive_is_as_strong_as_the_rule_accepts(rule: Any, perturbation: str, known: Knowledge) -> None:
    """If the mean of the crowd is accepted, by a margin, so is the lie, and one that is stronger by 0.5 % is not.

    Nothing is promised where the rule has no limit: it accepts lies that are thousands of times as long as the models.
    """
    known = with_rule(known, rule)
    assume(len(known.victims))
    rows, mu, p, strengths = strongest(known, perturbation)
    far = mu - 1e4 * p / p.norm(dim=1, keepdim=True).clamp_min(1e-300) * (1 + mu.norm(dim=1, keepdim=True))
    at_mean, unlimited, at_lie = (accepted(known, told) for told in (mu - 1e-6 * p, far, rows))
    beyond = accepted(known, mu - (1.005 * strengths + 1e-9) * p)
    for i in known.victims.tolist():
        if at_mean[i] and p[i].any():
            assert at_lie[i], f"client {i} rejects {rows[i]}"
            assert unlimited[i] or not beyond[i], f"client {i} accepts more than {rows[i]}, gamma {strengths[i]}"
        assert norm(array(rows[i] - (mu - strengths * p)[i])) <= 1e-9 * (1 + norm(array(rows[i]))), "not on the line"


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float32,)))
def test_adaptive_is_accepted_in_float32(rule: Any, known: Knowledge) -> None:
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
def test_adaptive_does_the_largest_damage(rule: Any, perturbation: str, known: Knowledge) -> None:
    """Against rules without weights: no strength moves the aggregate much further from mu; the grid is coarse."""
    known = with_rule(known, rule)
    assume(len(known.victims))
    rows, mu, p, _ = strongest(known, perturbation)

    def damage(told: Tensor) -> Tensor:
        inbox = known.topology.deliver(known.models, eq.Lies.per_receiver(told), known.malicious)
        return (rule(known.models, inbox, **known.inputs).model - mu).norm(dim=1)[known.victims]

    scale = 1 + known.models.norm(dim=1).max()
    done = damage(rows)
    bounded = damage(mu - 1e6 * scale * p) < 1e3 * scale  # a majority of liars moves a median anywhere
    for strength in [0.0, *torch.logspace(-3, 2, 11).tolist()]:
        most = damage(mu - strength * scale * p)
        assert (done >= 0.97 * most - 1e-9)[bounded].all(), f"{strength * scale}: {most}, found {done}"


@pytest.mark.parametrize("mode", ["max", "literal"])
def test_every_question_is_about_the_noise_that_victims_will_draw(mode: Any) -> None:
    """Also the generator of a round that is known stays as it is."""
    drawn: list[float] = []

    def drawing(own: Tensor, received: Any, *, generator: torch.Generator, **inputs: Any) -> eq.Aggregated:
        drawn.append(float(torch.rand((), generator=generator)))
        return eq.Balance(kappa=0)(own, received)

    known, generator = random_knowledge(9, 5, [0, 1]), torch.Generator().manual_seed(3)
    attacks.Adaptive(mode).forge(dataclasses.replace(known, rule=drawing, inputs={"generator": generator}))
    assert len(drawn) > 1
    assert set(drawn) == {float(torch.rand((), generator=generator))}


@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_adaptive_tells_every_victim_what_its_own_rule_deserves(perturbation: str, known: Knowledge) -> None:
    """Of rules with and without weights, side by side, as if everybody had that rule, to the precision of a search."""
    attack, alone = attacks.Adaptive(perturbation=perturbation), (Counted(eq.Balance(gamma=0.9)), eq.Median())
    mixed = with_rule(known, eq.PerClient([alone[i % 2] for i in range(known.topology.n)]))
    expected = [delivered(known, attack.forge(with_rule(known, rule))) for rule in alone]
    for (sender, victim), found in delivered(known, attack.forge(mixed)).items():
        rounding = {"rtol": 3e-4, "atol": 3e-4 * float(1 + known.models.abs().max())}
        torch.testing.assert_close(found, expected[victim % 2][sender, victim], **rounding)


def test_one_lie_for_rules_with_and_without_weights_is_accepted_by_the_former() -> None:
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
def test_adaptive_is_precise_however_tight_the_limit(gamma: float, perturbation: str) -> None:
    """Relative to the limit: near the end of training rules accept little."""
    known = with_rule(
        Knowledge(torch.full((4, 1), 10.0).double(), eq.Topology.complete(4), [3]), eq.Balance(gamma=gamma)
    )
    strength = 10 - delivered(known, attacks.Adaptive(perturbation=perturbation).forge(known))[3, 0].item()
    assert strength == pytest.approx(10 * gamma * math.exp(-0.2), rel=1e-3)


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
def test_adaptive_uses_that_krum_believes_a_majority() -> None:
    """Two equal lies win against one model, wherever they are, except where they equal it: then the lowest id wins."""
    known = with_rule(Knowledge(torch.full((4, 1), 10.0).double(), eq.Topology.complete(4), [2, 3]), eq.Krum())
    lies = {s: delivered(known, attacks.Adaptive().forge(known))[s, 0] for s in (2, 3)}
    assert accepted(known, lies[2].expand(4, 1))[0]
    assert (lies[2] - 10).abs().item() > 10


def test_adaptive_looks_beyond_a_mean_that_is_rejected() -> None:
    """A victim at 4 whose neighbours are at 10 rejects their mean, but not what is between 2.8 and 5.2."""
    models = torch.tensor([[4.0], [10.0], [10.0], [10.0]], dtype=torch.float64)
    known = Knowledge(
        models, eq.Topology.complete(4), [3], rule=eq.Balance(gamma=0.3), inputs={"t": 0, "total": 1, "tolerated": 1}
    )
    lie = delivered(known, attacks.Adaptive().forge(known))[3, 0]
    assert lie.item() == pytest.approx(2.8, abs=8e-3)


def test_adaptive_finds_a_narrow_range() -> None:
    """The way from the neighbours' mean to 0 passes a victim just inside its limit, for 3 % of its length."""
    models = torch.tensor([[8.9, 0.0], [20.0, 1.0], [20.0, 1.0], [20.0, 1.0]], dtype=torch.float64)
    known = Knowledge(models, eq.Topology.complete(4), [3], rule=eq.Balance(gamma=0.06), inputs={"t": 0, "total": 1})
    lie = delivered(known, attacks.Adaptive().forge(known))[3, 0]
    assert (lie - models[0]).norm().item() == pytest.approx(0.06 * 8.9, rel=1e-3)
    assert lie.norm() < models[0].norm()


# Half precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ATTACKS)
def test_half_precision_is_computed_in_float32_and_rounded_once(name: str, dtype: torch.dtype) -> None:
    half = dataclasses.replace(random_knowledge(12, 40, [0, 1, 2], dtype=dtype), generator=torch.Generator().manual_seed(5))
    assert half.previous is not None
    wide = dataclasses.replace(half, models=half.models.float(), previous=half.previous.float())
    found, attack = ATTACKS[name][0].forge(half), ATTACKS[name][0]
    wide.generator.manual_seed(5)
    expected = attack.forge(wide)
    assert found.rows.dtype == dtype
    if "Adaptive" in name:  # it asks a rule that hears rounded lies
        torch.testing.assert_close(found.rows.float(), expected.rows, rtol=0.05, atol=0.02)
    else:
        assert torch.equal(found.rows.nan_to_num(), expected.rows.to(dtype).nan_to_num())


# MinMax, MinSum, LIE


@pytest.mark.parametrize("attack", [attacks.MinMax, attacks.MinSum])
@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@pytest.mark.parametrize(("scope", "space"), [("receiver", "model"), ("global", "update")])
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_inequalities_are_nearly_equalities(
    attack: type, perturbation: str, scope: str, space: str, known: Knowledge
) -> None:
    world = World.of(known)
    messages = delivered(known, attack(perturbation=perturbation, scope=scope, space=space).forge(known))
    for sender, victim in edges_to_victims(known):
        rows = vectors(world, crowd(world, victim, scope), space)
        lie = array(messages[sender, victim]) - origin(world, victim, scope, space)
        apart = [norm(lie - row) ** 2 for row in rows]
        between = [[norm(a - b) ** 2 for b in rows] for a in rows]
        found = max(apart) if attack is attacks.MinMax else sum(apart)
        limit = max(map(max, between)) if attack is attacks.MinMax else min(map(sum, between))
        assert found <= limit * (1 + 1e-6) + 1e-12, f"{sender} -> {victim}"
        if perturbation_of(rows, perturbation)[0].any():
            assert found >= limit * (1 - 1e-3) - 1e-12, f"{sender} -> {victim}"


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("scope", "space"), [("receiver", "model"), ("global", "model"), ("receiver", "update")])
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)), z=st.floats(-3, 3))
def test_lie_moves_by_standard_deviations(sign: int, scope: str, space: str, known: Knowledge, z: float) -> None:
    world = World.of(known)
    messages = delivered(known, attacks.LIE(z=z, sign=sign, scope=scope, space=space).forge(known))
    for sender, victim in edges_to_victims(known):
        rows = list(vectors(world, crowd(world, victim, scope), space))
        moved = array(messages[sender, victim]) - origin(world, victim, scope, space) - mean(rows)
        assert moved == pytest.approx(sign * z * deviation(rows), abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(10, 6), (10, 7), (10, 9), (2, 1), (5, 3)])
def test_lie_without_a_strength_to_hide(n: int, m: int) -> None:
    """Where most are malicious the formula has no z, but lies stay finite."""
    assert math.isnan(lie_strength(n, m))
    assert attacks.LIE().forge(random_knowledge(n, 3, list(range(m)), p=1.0)).rows.isfinite().all()


# Dissensus


@few_examples
@given(known=attacked_rounds())
def test_isolation_cancels_gossip(known: Knowledge) -> None:
    """What the neighbours of a victim say is, on average, what the victim has: FedAvg moves it nowhere."""
    lies = attacks.Dissensus(epsilon=1.0).forge(known)
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    moved = (eq.FedAvg()(known.models, inbox).model - known.models)[known.victims].abs()
    rounding = {torch.float32: 1e-5, torch.float64: 1e-13}[known.models.dtype]
    assert (moved <= rounding * (1 + known.models.abs().max())).all()


@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)), epsilon=st.floats(0, 5))
def test_dissensus_reverses_gossip(known: Knowledge, epsilon: float) -> None:
    """With epsilon the sum of all differences is (1 - epsilon) times what benign neighbours contribute."""
    messages = delivered(known, attacks.Dissensus(epsilon=epsilon).forge(known))
    for i in known.victims.tolist():
        pulls = {s: messages[s, i] - known.models[i] for s in known.topology.neighbors(i).tolist()}
        benign = sum(
            (pull for s, pull in pulls.items() if not known.malicious_mask[s]), torch.zeros_like(known.models[i])
        )
        assert torch.allclose(sum(pulls.values()), (1 - epsilon) * benign, rtol=0, atol=1e-10)


@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_metropolis_isolation_cancels_metropolis_gossip(known: Knowledge) -> None:
    """Weighed by 1 / (1 + the larger degree), the differences cancel."""
    messages = delivered(known, attacks.Dissensus(epsilon=1.0, weights="metropolis").forge(known))
    degrees = known.topology.degrees.tolist()
    for i in known.victims.tolist():
        moved = torch.zeros_like(known.models[i])
        for s in known.topology.neighbors(i).tolist():
            moved += (messages[s, i] - known.models[i]) / (1 + max(degrees[i], degrees[s]))
        assert moved.abs().max() < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("attack", "option"),
    [
        (attacks.Adaptive, "start"),
        (attacks.Adaptive, "tolerance"),
        (attacks.Dissensus, "epsilon"),
        (attacks.Gaussian, "std"),
        (attacks.IPM, "epsilon"),
        (attacks.KrumAttack, "noise"),
        (attacks.LIE, "z"),
        (attacks.SignFlip, "epsilon"),
        (attacks.Spectral, "epsilon"),
        (attacks.TrimAttack, "factor"),
    ],
)
def test_strengths_are_finite(attack: Any, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        attack(**{option: value})
