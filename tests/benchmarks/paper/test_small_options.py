"""Sections 6.2 and 7 of the paper on digits: hyper-parameters, partitions, windows."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import equipoise as eq
from equipoise import attacks
from tests.benchmarks.paper.digits import (
    ATTACKS,
    CHANGES,
    GRAPH,
    METHODS,
    MODEL,
    ROUNDS,
    H,
    N,
    accepted,
    digits,
    length,
    run,
    start,
    trainer,
    training,
    worst,
)

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize(
    "setting", [name for name, changes in CHANGES.items() if not {"rule", "attack"} & set(changes)]
)
def test_balance_rejects_noise(setting: str) -> None:
    """In all rounds in which a benign client has a malicious neighbor."""
    simulator = run(setting, "Balance", "Gaussian")
    rates = {rate for rate in accepted(simulator, "malicious") if not math.isnan(rate)}
    assert rates == (set() if setting == "0 % malicious" else {0.0})
    assert length(simulator) < 8


def test_smaller_gamma_accepts_less() -> None:
    gammas = [
        "gamma = 0.05",
        "gamma = 0.1",
        "gamma = 0.3",
        "gamma = 0.5",
        "gamma = 1.0",
        "gamma = 3.0",
    ]
    benign, lies = (
        [statistics.mean(accepted(run(x, attack="TrimAttack"), who)) for x in gammas]
        for who in ("benign", "malicious")
    )
    assert benign == sorted(benign)
    assert benign[0] < 0.1 < 0.9 < benign[2]
    assert lies == sorted(lies)
    assert lies[2] == 0 < 0.1 < lies[3] < lies[-1] == 1


@pytest.mark.parametrize(
    ("gamma", "attack"), [("gamma = 0.05", "none"), ("gamma = 3.0", "KrumAttack")]
)
def test_extreme_gamma_is_harmful(gamma: str, attack: str) -> None:
    """Too small, clients train alone; too large, they accept zeros."""
    assert worst(run(gamma, attack=attack)) > worst(run("gamma = 0.3", attack=attack)) + 0.2


def test_larger_kappa_accepts_less() -> None:
    """All start with the same radius."""
    rates = {x: accepted(run(f"kappa = {x}"), "benign") for x in (0, 1, 5, 20, 50)}
    assert all(series[0] == 1 for series in rates.values())
    assert rates[1][-1] > 0.9
    assert rates[5][-1] < 0.1 < 0.9 < rates[5][1]
    assert [sum(series) for series in rates.values()] == sorted(
        (sum(series) for series in rates.values()), reverse=True
    )
    assert worst(run("kappa = 50")) > worst(run("kappa = 1")) + 0.2


@pytest.mark.parametrize("percent", [0, 10, 20, 30, 50, 80])
def test_malicious_fraction(percent: int) -> None:
    """FedAvg fails with any; Balance stays useful, without the data of malicious clients."""
    safe, unsafe = (
        run(f"{percent} % malicious", method, "Gaussian") for method in ("Balance", "FedAvg")
    )
    assert len(safe.history.malicious) == N * percent // 100
    assert worst(safe) < worst(run("default")) + (0.1 if percent <= 50 else 0.25)
    assert worst(safe) < worst(run("clients solely train models locally")) - 0.1
    assert (worst(unsafe) > 0.7) == (percent > 0)


def test_degree_of_non_iid() -> None:
    """Alone, clients learn less of other classes; together they hardly notice."""
    degrees = ["IID", "p = 0.3", "p = 0.5", "p = 0.8", "p = 1.0"]
    alone = []
    for degree in degrees:
        simulator = training(None, **CHANGES[degree])
        alone.append(simulator.run().summary()["mean_TER"])
    assert alone == sorted(alone)
    assert alone[-1] > 4 * alone[0]
    for degree in degrees:
        assert (
            worst(run(degree, "Balance", "TrimAttack")) < worst(run(degree, "FedAvg")) + 0.06 < 0.21
        )


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8, 1.0])
def test_p_is_share_of_a_class(p: float) -> None:
    """For ten classes, p = 0.1 is IID."""
    parts = CHANGES[f"p = {p}"]["partition"](digits(), N)
    counts = torch.stack([digits().y[part].bincount(minlength=10) for part in parts])
    assert counts.sum() == len(digits().y)
    assert float((counts.amax(1) / counts.sum(1)).mean()) == pytest.approx(max(p, 0.17), abs=0.05)


def test_three_classes_per_client() -> None:
    """A client alone forgets the other seven classes."""
    simulator = training(
        None, **CHANGES["three classes a client"], models=eq.flatten(MODEL).expand(N, -1), total=40
    )
    assert min(simulator.run().per_client("TER")) > 0.65
    for method, attack in (("FedAvg", "none"), ("Balance", "TrimAttack"), ("Balance", "LabelFlip")):
        assert worst(run("three classes a client", method, attack)) < 0.15
    assert worst(run("three classes a client", "FedAvg", "KrumAttack")) > 0.4


def test_larger_alpha_limits_noise() -> None:
    """Without attack, clients learn less from others."""
    alphas = [f"alpha = {x}" for x in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)]
    noise = [length(run(alpha, "FedAvg", "Gaussian")) for alpha in alphas]
    errors = [run(alpha, "FedAvg").history.summary()["mean_TER"] for alpha in alphas]
    assert noise == sorted(noise, reverse=True)
    assert errors == sorted(errors)


def test_alpha_1_is_training_alone() -> None:
    assert torch.equal(
        run("alpha = 1.0", "FedAvg").models, run("clients solely train models locally").models
    )


@pytest.mark.parametrize("method", ["FedAvg", "Balance"])
def test_own_model_included(method: str) -> None:
    """For means, the same as alpha = 1/11; it costs no message."""
    simulator = training(METHODS[method], alpha=1 / 11)
    simulator.run()
    included = run("own included", method)
    torch.testing.assert_close(included.models, simulator.models, atol=1e-4, rtol=1e-4)
    assert included.history.series("bytes") == simulator.history.series("bytes")


@pytest.mark.parametrize("case", ["Case I", "Case II"])
def test_random_alpha_by_hand(case: str) -> None:
    """Two rounds; drawn once, or again in each round."""
    setting = CHANGES[case]["alpha"]
    alphas = [setting if case == "Case I" else setting.at(t, seed=0, name="alpha") for t in (0, 1)]
    assert all(
        alpha.shape == (N,) and 0 <= alpha.min() < 0.3 < 0.7 < alpha.max() <= 1 for alpha in alphas
    )
    assert torch.equal(*alphas) == (case == "Case I")
    simulator, models = training(eq.FedAvg(), **CHANGES[case]), start().expand(N, -1)
    for t, alpha in enumerate(alphas):
        own = trainer()(models, t)
        models = eq.mix(own, eq.FedAvg()(own, GRAPH.deliver(own)).model, alpha)
        simulator.step()
        torch.testing.assert_close(simulator.models, models)


@pytest.mark.parametrize("case", ["Case I", "Case II"])
def test_random_alpha_under_attack(case: str) -> None:
    """They do not help, and make the worst client worse without attack."""
    assert worst(run(case, "FedAvg", "KrumAttack")) > worst(run(case, "FedAvg")) + 0.2
    assert worst(run(case, "Balance", "KrumAttack")) < worst(run(case, "FedAvg")) + 0.04
    assert worst(run(case, "FedAvg")) > worst(run("default", "FedAvg"))


@pytest.mark.parametrize("case", ["Case III", "Case IV"])
def test_random_rules_by_hand(case: str) -> None:
    """In round 0, each client has the result of its rule in a run with only that rule."""
    setting = CHANGES[case]["rule"]
    rules = (setting if case == "Case III" else setting.at(0, seed=0, name="rule")).rules
    assert len(rules) == N
    assert set(rules) == set(H)
    mixed = training(setting, ATTACKS["Gaussian"])
    mixed.step()
    for rule in H:
        followers = [client for client in range(N) if rules[client] == rule]
        uniform = training(rule, ATTACKS["Gaussian"])
        uniform.step()
        torch.testing.assert_close(mixed.models[followers], uniform.models[followers])


def test_rules_are_redrawn() -> None:
    setting = CHANGES["Case IV"]["rule"]
    first, second, again = (setting.at(t, seed=0, name="rule").rules for t in (0, 1, 0))
    assert first == again != second


@pytest.mark.parametrize("case", ["Case III", "Case IV"])
@pytest.mark.parametrize(
    "attack",
    [
        "none",
        "LabelFlip",
        "FeatureNoise",
        "Gaussian",
        "KrumAttack",
        "TrimAttack",
        "Backdoor",
        "Adaptive(mode=literal)",
    ],
)
def test_random_rules_under_attack(case: str, attack: str) -> None:
    """Some clients are misled; within 12 rounds, all still learn from others."""
    simulator, alone = run(case, attack=attack), run("clients solely train models locally")
    assert simulator.history.summary()["mean_TER"] < 0.85 * alone.history.summary()["mean_TER"]
    if attack in ("KrumAttack", "TrimAttack", "Adaptive(mode=literal)"):
        assert length(simulator) < length(run(case))
    assert (worst(simulator, "ASR") > 0.2) == (attack == "Backdoor")


@pytest.mark.parametrize("method", ["FedAvg", "Median"])
def test_attack_in_half_the_rounds(method: str) -> None:
    """Runs are equal before the attack begins; clients recover after it ends."""
    clean, first, second = (run(name, method) for name in ("default", "first half", "second half"))
    middle = ROUNDS // 2 - 1
    assert second.history.per_client("TER", middle) == clean.history.per_client("TER", middle)
    assert first.history.per_client("TER", middle) != clean.history.per_client("TER", middle)
    assert (
        length(run("default", method, "KrumAttack"))
        < length(second)
        < length(first)
        < length(clean)
    )


def test_poison_in_half_the_rounds() -> None:
    attack = attacks.Window(ATTACKS["FeatureNoise"], ROUNDS // 2, ROUNDS)
    simulator = training(eq.FedAvg(), attack)
    simulator.run()
    clean, middle = run("default", "FedAvg"), ROUNDS // 2 - 1
    assert simulator.history.per_client("TER", middle) == clean.history.per_client("TER", middle)
    assert worst(simulator) > worst(clean) + 0.03
