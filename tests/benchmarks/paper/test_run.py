"""From a setting to a result."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from benchmarks.paper import registry, run
from benchmarks.paper.run import simulator
from benchmarks.paper.setting import Setting
from tests.benchmarks.paper.helpers import (
    SHORT,
    interrupt_after_seven_rounds,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"alpha": "per-client"},
            lambda one: isinstance(one.alpha, torch.Tensor) and one.alpha.unique().numel() == 20,
        ),
        ({"alpha": "each-round"}, lambda one: isinstance(one.alpha, eq.EachRound)),
        ({"alpha": "0.9"}, lambda one: one.alpha == 0.9),
        ({"rule": "PerClient"}, lambda one: isinstance(one.rule, eq.PerClient)),
        ({"rule": "EachRound(PerClient)"}, lambda one: isinstance(one.rule, eq.EachRound)),
        ({"rule": "Alone"}, lambda one: one.rule is None),
        ({"rule": "SCClip(tau=10)"}, lambda one: one.rule == eq.SCClip(tau=10.0)),
        ({"attack": "Gaussian(std=200)"}, lambda one: one.attack == eq.attacks.Gaussian(std=200.0)),
        ({"rule": "Balance(kappa=0)"}, lambda one: one.rule == eq.Balance(0.3, 0.0)),
        ({"gamma": 0.7, "kappa": 2.0}, lambda one: one.rule == eq.Balance(0.7, 2.0)),
        (
            {"own": True},
            lambda one: one.alpha == 0 and one.topology.degrees.unique().tolist() == [11],
        ),
        ({"disconnect": 0.2}, lambda one: isinstance(one.topology, eq.EachRound)),
        ({"start": "different"}, lambda one: len(one.models.unique(dim=0)) == 20),
        ({"start": "same"}, lambda one: len(one.models.unique(dim=0)) == 1),
        ({"graph": "ring"}, lambda one: one.topology.degrees.unique().tolist() == [2]),
        (
            {"graph": "regular(10,5)"},
            lambda one: (one.n, one.topology.degrees.unique().tolist()) == (10, [5]),
        ),
        (
            {"graph": "random_with_femb(0.16)"},
            lambda one: one.topology.femb(one.malicious) == pytest.approx(0.16),
        ),
        ({"malicious": 0.5}, lambda one: int(one.malicious.sum()) == 10),
        ({"attack": "none"}, lambda one: not one.malicious.any()),
        (
            {"window": "first-half"},
            lambda one: one.attack == eq.attacks.Window(eq.attacks.Gaussian(), 0, 10),
        ),
        (
            {"window": "second-half"},
            lambda one: one.attack == eq.attacks.Window(eq.attacks.Gaussian(), 10, 20),
        ),
        ({"nonfinite": "kept"}, lambda one: one.keep_nonfinite),
        ({"step": 3.0}, lambda one: one.trainer.lr == pytest.approx(18e-4)),
        (
            {"batch": 8, "local_steps": 2},
            lambda one: (one.trainer.batch_size, one.trainer.steps) == (8, 2),
        ),
    ],
)
def test_fields_reach_the_simulator(changes: dict[str, Any], expected: Any) -> None:
    assert expected(simulator(SHORT.changed(**changes), 0, "."))


@pytest.mark.parametrize("graph", [*registry.REGULAR, *registry.GRAPHS])
def test_graphs_are_connected(graph: str) -> None:
    one = simulator(SHORT.changed(graph=graph, data="synthetic"), 1, ".")
    # Without its malicious clients, a ring falls apart.
    assert one.topology.is_connected(None if graph == "ring" else one.malicious)


def test_rules_share_data_and_graph() -> None:
    one, other = (
        simulator(SHORT.changed(rule=rule, attack=attack), 3, ".")
        for rule, attack in (("FedAvg", "none"), ("Krum", "TrimAttack"))
    )
    assert torch.equal(one.models, other.models)
    assert torch.equal(one.topology.adjacency(), other.topology.adjacency())
    assert torch.equal(one.trainer(one.models, 0), other.trainer(other.models, 0))


def test_seeds_change_everything() -> None:
    one, other = (simulator(SHORT, seed, ".") for seed in (0, 1))
    assert not torch.equal(one.models, other.models)
    assert not torch.equal(one.topology.adjacency(), other.topology.adjacency())
    assert not torch.equal(one.malicious, other.malicious)


def test_evaluated_rounds() -> None:
    for rounds in (300, 1000, 1500, 2000):
        evaluated = run.evaluated(rounds)
        assert len(evaluated) == 6
        assert len([t for t in evaluated if t >= rounds - rounds // 20]) == 5
        assert rounds - 1 in evaluated
    assert all(0 <= t < rounds for rounds in range(1, 50) for t in run.evaluated(rounds))


def test_summary_of_a_run() -> None:
    found, history = run.run(SHORT, 0, ".")
    worst = history.worst("MSE")[1]
    assert found["max_MSE"] == pytest.approx(worst, rel=1e-5)
    assert found["evaluated"] == [one.t for one in history.evaluated] == [9, 19]
    assert len(found["clients_MSE"]) == 16
    assert max(found["clients_MSE"]) == pytest.approx(worst[-1], rel=1e-5)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["seed"], found["trained"], found["version"]) == (0, 20, eq.__version__)


def test_last_rounds_evaluated() -> None:
    usual, few = run.run(SHORT, 0, ".")
    found, history = run.run(SHORT, 0, ".", last=6)
    assert [one.t for one in history.evaluated] == [9, *range(14, 20)]
    assert history.worst("MSE")[1][-1] == few.worst("MSE")[1][-1]
    assert without_times(found) == without_times(usual)


def without_times(found: run.Run) -> run.Run:
    return {
        name: value for name, value in found.items() if name not in {"seconds", "aggregate_seconds"}
    }


def test_interrupted_run_resumes(tmp_path: Path) -> None:
    whole, _ = run.run(SHORT, 0, ".")
    path = tmp_path / "unfinished"
    interrupt_after_seven_rounds(path)
    resumed = simulator(SHORT, 0, ".")
    resumed.load(path)
    assert resumed.t == 7
    again, _ = run.run(SHORT, 0, ".", checkpoint=path)
    assert without_times(again) == without_times(whole)


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "unfinished"
    path.write_text("half a file")
    with pytest.raises(ValueError, match="unfinished must be a checkpoint of format"):
        run.run(SHORT, 0, ".", checkpoint=path)


def test_no_guarantee_warnings() -> None:
    """A simulator warns by default; a setting of the paper runs as it is."""
    setting = Setting(data="synthetic", rule="Krum", attack="Gaussian", rounds=2, malicious=0.5)
    run.run(setting, 0, ".")
    with pytest.warns(eq.GuaranteeWarning):
        eq.Simulator.step(run.simulator(setting, 0, "."))


def test_collapsed_run_stops_early() -> None:
    setting = Setting(
        data="synthetic",
        rule="FedAvg",
        attack="FeatureNoise",
        rounds=300,
        step=50.0,
        nonfinite="kept",
    )
    found, _ = run.run(setting, 0, ".")
    assert found["trained"] < 300
    assert (
        found["stopped"] == f"all benign models were not finite after round {found['trained'] - 1}"
    )
    assert found["max_MSE"][-1] is None
    assert run.tail(found, "MSE") == math.inf


def test_tail_of_a_stopped_run() -> None:
    late = {"trained": 1950, "evaluated": [999, 1919, 1939, 1949], "max_TER": [0.1, 0.1, 0.1, 0.9]}
    assert run.tail(late | {"stopped": "after round 1949"}, "TER") == 0.9


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, eq.Balance()),
        ({"gamma": 0.1, "kappa": 2.0}, eq.Balance(0.1, 2.0)),
        ({"rule": "Balance(kappa=0)", "gamma": 0.1}, eq.Balance(0.1, 0.0)),
        ({"rule": "BalanceMedian"}, eq.BalanceMedian()),
        ({"rule": "Median", "gamma": 0.1}, eq.Balance(0.1)),
    ],
)
def test_adaptive_knows_the_rule(changes: dict[str, Any], expected: Any) -> None:
    for name in ("Adaptive", "Adaptive(center=own)"):
        one = simulator(Setting(data="synthetic", attack=name, **changes), 0, "")
        assert isinstance(one.attack, eq.attacks.Adaptive)
        assert one.attack.rule == expected
    literal = Setting(data="synthetic", attack="Adaptive(mode=literal)", **changes)
    # The paper tailors it to Balance for all rules.
    expected = eq.attacks.Adaptive("literal", rule=eq.Balance())
    assert simulator(literal, 0, "").attack == expected
