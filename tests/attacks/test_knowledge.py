"""Validation of Knowledge and of the options of attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_rounds import knowledge
from tests.graphs import regular


def test_models_must_match() -> None:
    graph = eq.Topology.complete(4)
    with pytest.raises(ValueError, match="models must have parameters, found none"):
        Knowledge(torch.zeros(4, 0), graph, [0])
    for name in ("previous", "origin"):
        with pytest.raises(
            ValueError, match=rf"{name} must be like models, float32 \(4, 2\), found int"
        ):
            Knowledge(torch.zeros(4, 2), graph, [0], **{name: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "attack",
    [
        attacks.SignFlip(),
        attacks.IPM(),
        attacks.LIE(space="update"),
        attacks.MinMax(space="update"),
        attacks.MinSum(space="update", scope="global"),
        attacks.KrumAttack(space="update"),
        attacks.KrumAttack(form="fang", noise=0.0),
        attacks.TrimAttack(space="update"),
        attacks.TrimAttack(form="fang"),
    ],
    ids=repr,
)
def test_previous_is_required(attack: Any) -> None:
    known = dataclasses.replace(knowledge(regular(10, 4), 3, torch.float32, [0, 1]), previous=None)
    with pytest.raises(ValueError, match="previous"):
        attack.forge(known)


@pytest.mark.parametrize("mode", ["max", "literal"])
def test_adaptive_needs_rule(mode: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        attacks.Adaptive(mode=mode).forge(knowledge(regular(10, 4), 3, torch.float32, [0, 1]))


def test_window_needs_round() -> None:
    known = knowledge(regular(10, 4), 3, torch.float32, [0, 1], inputs={})
    with pytest.raises(ValueError, match=r"\bt\b"):
        attacks.Window(attacks.Zero(), 0, 5).forge(known)


@pytest.mark.parametrize(
    ("attack", "options", "named"),
    [
        (attacks.KrumAttack, {"form": "other"}, "form"),
        (attacks.TrimAttack, {"form": "other"}, "form"),
        (attacks.LIE, {"scope": "other"}, "scope"),
        (attacks.LIE, {"space": "other"}, "space"),
        (attacks.SignFlip, {"space": "other"}, "space"),
        (attacks.IPM, {"scope": "other"}, "scope"),
        (attacks.MinMax, {"perturbation": "other"}, "perturbation"),
        (attacks.MinSum, {"perturbation": "other"}, "perturbation"),
        (attacks.Adaptive, {"mode": "other"}, "mode"),
        (attacks.Adaptive, {"perturbation": "other"}, "perturbation"),
        (attacks.Adaptive, {"center": "other"}, "center"),
        (attacks.Dissensus, {"weights": "other"}, "weights"),
        (attacks.Gaussian, {"std": -1.0}, "std"),
    ],
)
def test_unknown_options(attack: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        attack(**options)


def test_mimic_needs_benign_target() -> None:
    with pytest.raises(ValueError, match="target"):
        attacks.Mimic(target=1).forge(knowledge(regular(10, 4), 3, torch.float32, [0, 1]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: attacks.Gaussian("a"), "std must be a finite number >= 0, found 'a'"),
        (lambda: attacks.FeatureNoise(std=None), "std must be a finite number >= 0, found None"),
        (lambda: attacks.LIE(z="a"), "z must be a finite number, found 'a'"),
        (
            lambda: attacks.Backdoor(attacks.EveryNth(1), scale="a"),
            "scale must be a finite number > 0 or None, found 'a'",
        ),
        (lambda: attacks.NonFinite("a"), "value must be NaN or infinite, found 'a'"),
        (lambda: attacks.NonFinite(None), "value must be NaN or infinite, found None"),
        (
            lambda: attacks.Adaptive(rule=eq.Balance),
            "rule must be a rule .* found the class Balance; ",
        ),
        (lambda: attacks.Adaptive(rule=3), "rule must be a rule .* found int; "),
        (lambda: attacks.Mimic(1.0), r"target must be an integer at least 0, found 1\.0"),
        (
            lambda: attacks.Window(attacks.Zero(), "a", 2),
            "start must be an integer at least 0, found 'a'",
        ),
        (
            lambda: attacks.Window("x", 0, 1),
            "attack must have a method forge or a method poison, found str",
        ),
        (
            lambda: attacks.OnlyClients(attacks.Zero, (1,)),
            "attack must have a method forge or a method poison, found ",
        ),
        (
            lambda: attacks.OnlyClients(attacks.Zero(), 3),
            r"clients must be a bool mask of shape \(n,\) or client ids, found 3",
        ),
        (
            lambda: attacks.OnlyClients(attacks.Zero(), [0.5]),
            r"clients must be a bool mask of shape \(n,\) or client ids, found float64 \(1,\)",
        ),
        (lambda: attacks.OnlyClients(attacks.Zero(), [-1]), "clients must be at least 0, found -1"),
        (
            lambda: attacks.OnlyClients(attacks.Zero(), (2, 2)),
            "clients must name every client once, found client 2 more than once",
        ),
        (
            lambda: attacks.InModelSpace(3),
            "attack must have a method forge or a method poison, found int",
        ),
        (
            lambda: attacks.Combined(attacks.Zero(), 3),
            "attack must have a method forge or a method poison, found int",
        ),
    ],
)
def test_invalid_options(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_lie_z_max_all_malicious() -> None:
    assert attacks.lie_z_max(3, 3) == 0
