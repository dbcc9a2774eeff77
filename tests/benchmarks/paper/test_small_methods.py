"""Each rule under each attack on digits: Table 1 of the paper, costs, and variants."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import attacks
from tests.benchmarks.paper.digits import (
    ATTACKS,
    DEGREE,
    METHODS,
    MODEL,
    ROUNDS,
    D,
    N,
    accepted,
    digits,
    length,
    metrics,
    run,
    training,
    worst,
)

pytestmark = pytest.mark.exhaustive

OUTCOMES = {  # LF Feature Gauss Krum Trim Backdoor Adapt LIE Dissensus
    "FedAvg": "    .   x     x    x    x      b      x    .     x",
    "Krum": "      .   0     0    0    0      0      0    .     ~",
    "TrimmedMean": " .   .     .    .    .      .      .    .     .",
    "Median": "    .   .     .    .    .      .      .    .     .",
    "FLTrust": "   .   s     .    .    .      b      .    .     x",
    "UBAR": "      .   0     0    0    0      0      0    .     0",
    "LEARN": "     .   .     .    .    ?      .      .    .     .",
    "SCClip": "    .   .     .    s    s      b      s    .     x",
    "Balance": "   .   0     0    0    0      0      0    .     .",
    "Balance(kappa=0)": " .   0     0    0    0      0      0    .     a",
    "BalanceMedian": ".   0     0    0    0      0      0    .     0",
}


CELLS = [
    pytest.param(method, attack, outcome, id=f"{method}-{attack}")
    for method, row in OUTCOMES.items()
    for attack, outcome in zip(list(ATTACKS)[1:], row.split(), strict=True)
]


@pytest.mark.parametrize(("method", "attack", "outcome"), CELLS)
def test_outcome_of_each_cell(method: str, attack: str, outcome: str) -> None:
    """Outcomes: the error rises (x), hardly (.), or depending on the seed (?).

    The backdoor works (b), models shrink (s), or many (a), few (~) or no malicious messages (0)
    are accepted. Errors are means over benign clients: the worst client depends on the graph.
    """
    attacked, clean = run("default", method, attack), run("default", method)
    harm = attacked.history.summary()["mean_TER"] - clean.history.summary()["mean_TER"]
    match outcome:
        case "x":
            assert harm > 0.03
        case "b":
            assert worst(attacked, "ASR") > 0.3 > 0.1 > worst(clean, "ASR")
        case "s":
            assert length(attacked) < 0.9 * length(clean)
        case "a":
            assert statistics.mean(accepted(attacked, "malicious")) > 0.25
        case "~":
            assert statistics.mean(accepted(attacked, "malicious")) < 0.05
        case "0":
            assert accepted(attacked, "malicious") == [0.0] * ROUNDS
        case "?":
            assert harm < 0.15
        case _:
            assert harm < 0.05


@pytest.mark.parametrize("attack", ATTACKS)
def test_balance_matches_clean_fedavg(attack: str) -> None:
    """The paper's two goals: competitive learning and Byzantine robustness."""
    assert worst(run("default", "Balance", attack)) < worst(run("default", "FedAvg")) + 0.04
    assert worst(run("default", "Balance", attack), "ASR") < 0.03


@pytest.mark.parametrize("method", METHODS)
def test_clients_gain_together(method: str) -> None:
    """A client alone knows the class of most of its examples; UBAR accepts few others."""
    alone = run("clients solely train models locally").history.summary()
    together = run("default", method).history.summary()
    assert together["mean_TER"] < (0.97 if method == "UBAR" else 0.6) * alone["mean_TER"]
    assert alone["max_TER"] > 0.4


def test_server_assisted() -> None:
    """On a complete graph with self-loops, all clients have the same model."""
    served = run("server-assisted FL", "FedAvg")
    assert served.history.summary()["consensus"] == 0
    assert worst(run("default", "FedAvg")) - 0.08 < worst(served) < worst(run("default", "FedAvg"))


def test_error_per_client() -> None:
    """Under TrimAttack, each client of Balance is about as good as FedAvg without attack."""
    clean, safe, hurt = (
        run("default", *how)
        for how in (("FedAvg",), ("Balance", "TrimAttack"), ("FedAvg", "TrimAttack"))
    )
    benign = safe.history.benign
    assert len(benign) == 16
    errors, expected = safe.history.per_client("TER"), clean.history.per_client("TER")
    assert all(errors[client] < expected[client] + 0.05 for client in benign)
    assert max(hurt.history.per_client("TER")[client] for client in benign) > max(expected) + 0.05


def test_communication_cost() -> None:
    """One model per neighbor and round; LEARN first sends ceil(log2(t + 1)) updates."""
    for method in METHODS:
        sent = [math.ceil(math.log2(t + 1)) + 1 if method == "LEARN" else 1 for t in range(ROUNDS)]
        assert run("default", method).history.series("bytes")[1] == [
            DEGREE * D * 4 * times for times in sent
        ]


def test_computation_cost() -> None:
    """The time of aggregation; LEARN aggregates several times per round."""
    seconds = {
        method: [one.seconds["aggregate"] for one in run("default", method).history]
        for method in ("FedAvg", "LEARN")
    }
    assert all(value > 0 for values in seconds.values() for value in values)
    assert min(seconds["LEARN"][4:]) > min(seconds["FedAvg"][4:])


def test_consensus_error() -> None:
    """A small consensus error does not imply a good model."""
    for method, attack in (("FedAvg", "Gaussian"), ("Balance", "Gaussian")):
        simulator = run("default", method, attack)
        benign = simulator.models[~simulator.malicious].double()
        by_hand = float((benign - benign.mean(0)).square().sum(1).mean())
        assert simulator.history.summary()["consensus"] == pytest.approx(by_hand)
    assert run("default", "FedAvg", "Gaussian").history.summary()["consensus"] > 100
    assert run("default", "Balance", "Gaussian").history.summary()["consensus"] < 0.1
    agreed_on_nonsense = run("server-assisted FL", "FedAvg", "Gaussian")
    assert agreed_on_nonsense.history.summary()["consensus"] == 0
    assert worst(agreed_on_nonsense) > 0.8


def test_label_flip_effect() -> None:
    """With most clients malicious; Balance cannot tell their models from others."""
    threes = digits().test_x[digits().test_y == 3]
    not_fives = {"not 5": eq.metrics.ErrorRate(MODEL, threes, torch.full((len(threes),), 5))}
    options: dict[str, Any] = {
        "partition": eq.data.iid,
        "malicious": eq.draw_malicious(N, 0.6),
        "metrics": not_fives | metrics(),
        "total": 20,
    }
    for rule in (eq.FedAvg(), eq.Balance()):
        flipped, clean = (
            training(rule, attack, **options).run() for attack in (ATTACKS["LabelFlip"], None)
        )
        assert clean.summary()["mean_not 5"] > 0.98 > 0.9 > flipped.summary()["mean_not 5"]
        assert flipped.summary()["accepted_malicious"] == 1


def test_adaptive_shrinks_models() -> None:
    """All its messages are within the acceptance radius."""
    simulator = training(eq.Balance(), attacks.Adaptive(), total=5)
    simulator.run()
    assert accepted(simulator, "malicious") == [1.0] * 5
    assert 0.7 < length(simulator) / length(run("default")) < 0.95


def test_kappa_0_keeps_its_radius() -> None:
    """It accepts Dissensus to the end; the radius of Balance becomes too small for it."""
    half = ROUNDS // 2
    first, variant = (
        accepted(run("default", method, "Dissensus"), "malicious")
        for method in ("Balance", "Balance(kappa=0)")
    )
    assert first[0] == variant[0]
    assert sum(variant[half:]) > 2 * sum(first[half:])


def test_balance_median_takes_half() -> None:
    """Five of ten neighbors, all of them benign."""
    assert accepted(run("default", "BalanceMedian"), "benign") == [0.5] * ROUNDS
    assert worst(run("default", "BalanceMedian")) > worst(run("default", "Balance"))
