"""Every message attack does to plain FedAvg what it promises, and BALANCE rejects it or bounds it
as its equation says.

Twenty clients look for a common optimum from noisy views of it, on a random graph of degree 10;
four are malicious. Models are about 10 long, benign ones within a tenth of that of each other. Runs
are compared with one in which nobody lies, the *truth*, and with one in which malicious clients are
silent, as far as the others can tell.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge

ROUNDS, N, D = 20, 20, 100
MALICIOUS = torch.arange(N) < 4
TOPOLOGY = eq.Topology.regular(N, 10, seed=0, malicious=MALICIOUS)
VIEWS = torch.randn(D, generator=torch.Generator().manual_seed(1)) + 0.1 * torch.randn(
    N, D, generator=torch.Generator().manual_seed(2)
)
GOAL = VIEWS[~MALICIOUS].mean(0)
RULES = {"FedAvg": eq.FedAvg(), "Balance": eq.Balance()}

# All that BALANCE can tell from the truth by its distance: further than 0.3 of the receiver's
# length in every round.
FAR = {
    "Gaussian": attacks.Gaussian(),
    "KrumAttack": attacks.KrumAttack(noise=0.0),
    "TrimAttack": attacks.TrimAttack(),
    "TrimAttack-fang": attacks.TrimAttack(form="fang", random=False),
    "Adaptive-literal": attacks.Adaptive(mode="literal", rule=eq.Balance()),
    "SignFlip-model": attacks.SignFlip(space="model"),
    "IPM-model": attacks.IPM(space="model"),
    "Zero": attacks.Zero(),
}
# Lies among the benign models, or made to be accepted.
NEAR = {
    "Adaptive": attacks.Adaptive(rule=eq.Balance()),
    "Adaptive-shrink": attacks.Adaptive(center="own", rule=eq.Balance()),
    "Adaptive-undo": attacks.Adaptive(center="own", perturbation="own_update", rule=eq.Balance()),
    "Adaptive-ascent": attacks.Adaptive(
        center="own", perturbation="mean_update", rule=eq.Balance()
    ),
    "KrumAttack-fang": attacks.KrumAttack(form="fang"),
    "LIE": attacks.LIE(),
    "LIE-strong": attacks.LIE(z=1.5),
    "MinMax": attacks.MinMax(),
    "MinSum": attacks.MinSum(),
    "Mimic": attacks.Mimic(),
    "SignFlip": attacks.SignFlip(),
    "IPM": attacks.IPM(epsilon=0.5),
    "KrumAttack-update": attacks.KrumAttack(space="update"),
    "TrimAttack-update": attacks.TrimAttack(space="update"),
    "Spectral": attacks.Spectral(),
}
OTHERS = {
    "truth": None,
    "silent": attacks.NonFinite(),
    "Dissensus": attacks.Dissensus(),
    "Isolation": attacks.Isolation(),
}
ATTACKS: dict[str, Any] = FAR | NEAR | OTHERS


class Run(NamedTuple):
    """Models after the last round, and per round: their mean length, how far BALANCE went, and whom
    it accepted.
    """

    models: Tensor
    lengths: list[float]
    moved: list[float]
    accepted: list[float]

    @property
    def benign(self) -> Tensor:
        return self.models[~MALICIOUS]

    @property
    def error(self) -> float:
        """The largest relative distance of a benign model from the benign optimum."""
        return float((self.benign - GOAL).norm(dim=1).max() / GOAL.norm())

    @property
    def disagreement(self) -> float:
        """The largest distance of a benign model from their mean, relative to its length."""
        center = self.benign.mean(0)
        return float((self.benign - center).norm(dim=1).max() / center.norm())

    @property
    def length(self) -> float:
        return self.lengths[-1]


def train(models: Tensor) -> Tensor:
    return models + 0.2 * (VIEWS - models)


@functools.cache
def run(rule_name: str, attack_name: str) -> Run:
    """Train; malicious clients train like the others, independent of their messages."""
    rule, attack = RULES[rule_name], ATTACKS[attack_name]
    generator = torch.Generator().manual_seed(3)
    tolerated = TOPOLOGY.malicious_neighbors(MALICIOUS)
    models, lengths, moved, accepted = train(torch.zeros(N, D)), [], [], []
    for t in range(ROUNDS):
        own, inputs = train(models), {"t": t, "total": ROUNDS, "tolerated": tolerated}
        known = Knowledge(
            own, TOPOLOGY, MALICIOUS, previous=models, rule=rule, inputs=inputs, generator=generator
        )
        inbox = TOPOLOGY.deliver(own, None if attack is None else attack.forge(known), MALICIOUS)
        out = rule(own, inbox, **inputs)
        models = eq.mix(own, out.model, alpha=0.5)
        from_malicious = MALICIOUS[inbox.senders] & inbox.mask & ~MALICIOUS[:, None]
        lengths.append(float(models[~MALICIOUS].norm(dim=1).mean()))
        moved.append(float(((out.model - own).norm(dim=1) / own.norm(dim=1))[~MALICIOUS].max()))
        accepted.append(float((out.weights > 0)[from_malicious].float().mean()))
    return Run(models, lengths, moved, accepted)


# The targets of the attacks work


@pytest.mark.parametrize("rule", RULES)
def test_training_without_lies(rule: str) -> None:
    assert run(rule, "truth").error < 0.04
    assert run(rule, "silent").error < 0.04


# FedAvg


def test_fedavg_gaussian() -> None:
    """A share of 0.2 of noise that is 14 times as large as the parameters: the error exceeds the
    models' length.
    """
    assert run("FedAvg", "Gaussian").error > 1


@pytest.mark.parametrize("attack", [name for name in FAR if name != "Gaussian"])
def test_fedavg_shrinks(attack: str) -> None:
    """Zeros, shrunken and opposite models take their share of the length away from the average."""
    assert run("FedAvg", attack).length < 0.95 * run("FedAvg", "truth").length
    assert run("FedAvg", attack).error > 5 * run("FedAvg", "truth").error


def test_krum_sends_nearly_zero() -> None:
    """Krum never chooses a lie of so few clients, so its lambda ends at 2^-17."""
    assert torch.allclose(
        run("FedAvg", "KrumAttack").benign, run("FedAvg", "Zero").benign, atol=1e-3
    )


def test_trim_is_weaker_than_zero() -> None:
    assert run("FedAvg", "Zero").length < run("FedAvg", "TrimAttack").length


@pytest.mark.parametrize("attack", ["SignFlip", "IPM", "KrumAttack-update", "TrimAttack-update"])
def test_fedavg_is_slowed_down(attack: str) -> None:
    """Attacks on updates undo training: models that grow towards the optimum are shorter in every
    early round.
    """
    attacked, truth = run("FedAvg", attack).lengths, run("FedAvg", "truth").lengths
    assert all(attacked[t] < truth[t] for t in range(5))
    assert attacked[1] < 0.99 * truth[1]
    assert run("FedAvg", attack).error > 1.1 * run("FedAvg", "truth").error


def test_lie_is_weak_but_biased() -> None:
    """Nearly every parameter ends below its value without lies, by less than the benign models
    differ.
    """
    shift = (run("FedAvg", "LIE-strong").benign - run("FedAvg", "silent").benign).mean(0)
    spread = VIEWS[~MALICIOUS].std(0)
    assert (shift < 0).float().mean() > 0.99
    assert (shift.abs() < spread).all()
    assert run("FedAvg", "silent").error * 1.2 < run("FedAvg", "LIE-strong").error < 0.1


def test_lie_default_is_weaker() -> None:
    """z is 0.157 for 4 of 20: a tenth of 1.5."""
    strong, weak = (
        (run("FedAvg", name).benign - run("FedAvg", "silent").benign).mean(0)
        for name in ("LIE-strong", "LIE")
    )
    assert 0.05 < float(weak.norm() / strong.norm()) < 0.2


def test_dissensus_prevents_consensus() -> None:
    assert run("FedAvg", "Dissensus").disagreement > 10 * run("FedAvg", "truth").disagreement


def test_isolation_leaves_victims_alone() -> None:
    """To a victim, FedAvg under Isolation is training without neighbors."""
    alone = train(torch.zeros(N, D))
    for _ in range(ROUNDS):
        alone = train(alone)
    victims = (TOPOLOGY.malicious_neighbors(MALICIOUS) > 0) & ~MALICIOUS
    assert int(victims.sum()) >= 10
    assert torch.allclose(run("FedAvg", "Isolation").models[victims], alone[victims], atol=1e-5)
    assert run("FedAvg", "Isolation").disagreement > 3 * run("FedAvg", "truth").disagreement


def test_spectral_slows_consensus() -> None:
    """Along the mode that gossip removes last, so disagreement grows, but less than under
    Dissensus.
    """
    truth, spectral, dissensus = (
        run("FedAvg", name).disagreement for name in ("truth", "Spectral", "Dissensus")
    )
    assert 1.5 * truth < spectral < dissensus


def test_mimic_moves_mean() -> None:
    """Benign models end nearer to the view of the client that is copied."""
    target = VIEWS[4]  # the first benign client
    apart = {
        name: float((run("FedAvg", name).benign - target).norm(dim=1).mean())
        for name in ("Mimic", "silent")
    }
    assert apart["Mimic"] < 0.97 * apart["silent"]


def test_min_sum_below_min_max() -> None:
    """Both hide among benign models and shrink them; neither is as bad as zeros."""
    silent, least, more, most = (
        run("FedAvg", name).length for name in ("silent", "MinSum", "MinMax", "Zero")
    )
    assert silent > 1.005 * least
    assert least > 1.002 * more
    assert more > 1.2 * most


def test_non_finite_is_absent() -> None:
    assert run("FedAvg", "silent").models.isfinite().all()
    own = train(torch.zeros(N, D))
    lies = attacks.NonFinite(value=math.nan).forge(Knowledge(own, TOPOLOGY, MALICIOUS))
    inbox = TOPOLOGY.deliver(own, lies, MALICIOUS, keep_nonfinite=True)
    victims = (TOPOLOGY.malicious_neighbors(MALICIOUS) > 0) & ~MALICIOUS
    assert eq.FedAvg()(own, inbox).model[victims].isnan().all()


# BALANCE


@pytest.mark.parametrize("attack", ATTACKS)
def test_balance_stays_in_its_ball(attack: str) -> None:
    """For all messages: ||aggregate - own|| <= gamma * exp(-kappa * t / total) * ||own|| in every
    round.
    """
    limits = [0.3 * math.exp(-t / ROUNDS) for t in range(ROUNDS)]
    assert all(
        moved <= limit * (1 + 1e-5)
        for moved, limit in zip(run("Balance", attack).moved, limits, strict=True)
    )


@pytest.mark.parametrize("attack", FAR)
def test_balance_rejects_far_lies(attack: str) -> None:
    """No lie is ever accepted, so the result is that of silent malicious clients."""
    assert run("Balance", attack).accepted == [0.0] * ROUNDS
    assert torch.allclose(run("Balance", attack).benign, run("Balance", "silent").benign, atol=1e-5)
    assert run("Balance", attack).error < 1.2 * run("Balance", "truth").error


@pytest.mark.parametrize("attack", ["LIE", "LIE-strong", "MinMax", "MinSum", "Mimic"])
def test_balance_accepts_near_lies(attack: str) -> None:
    """Lies between benign models are as close as these: BALANCE is FedAvg, and the harm is as
    small.
    """
    assert run("Balance", attack).accepted == [1.0] * ROUNDS
    assert torch.allclose(run("Balance", attack).benign, run("FedAvg", attack).benign, atol=1e-4)
    assert run("Balance", attack).error < 0.1


@pytest.mark.parametrize("attack", NEAR)
def test_balance_bounds_accepted(attack: str) -> None:
    """A lie that is accepted is near: it does less than zeros, which are not, do to FedAvg."""
    assert run("Balance", attack).error < 0.5 * run("FedAvg", "Zero").error


OWN_CENTERED = ["Adaptive-shrink", "Adaptive-undo", "Adaptive-ascent"]


def test_adaptive_is_strongest() -> None:
    """It is made for BALANCE: always accepted, and worse than any attack that is not."""
    adaptive = run("Balance", "Adaptive")
    assert adaptive.accepted == [1.0] * ROUNDS
    assert adaptive.error > 3 * run("Balance", "truth").error
    others = ATTACKS.keys() - {"Adaptive", *OWN_CENTERED}
    assert all(adaptive.error > run("Balance", name).error for name in others)


def test_own_center_is_accepted() -> None:
    """Lies start from the victim's own model; shrinking that is the worst of all."""
    for name in OWN_CENTERED:
        assert run("Balance", name).accepted == [1.0] * ROUNDS
        assert run("Balance", name).error > 2 * run("Balance", "truth").error
    shrunk = run("Balance", "Adaptive-shrink").error
    assert all(shrunk > run("Balance", name).error for name in ATTACKS.keys() - {"Adaptive-shrink"})


def test_literal_adaptive() -> None:
    """Its first test "succeeds" although the lie is rejected: it ends at mu - 10 p, and models are
    10 long.
    """
    assert run("Balance", "Adaptive-literal").error < 1.2 * run("Balance", "truth").error
    assert run("FedAvg", "Adaptive-literal").error > 10 * run("FedAvg", "truth").error


def test_balance_rejects_dissensus() -> None:
    """Few clients cancel 1.5 times the benign pull: too far, so most lies are rejected."""
    assert sum(run("Balance", "Dissensus").accepted) < 0.5 * ROUNDS
    assert run("Balance", "Dissensus").disagreement < 0.1 * run("FedAvg", "Dissensus").disagreement
    assert run("Balance", "Isolation").disagreement < run("FedAvg", "Isolation").disagreement
