"""A small simulator in float64, on quadratic losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise._utils.rng import stream

N, DEGREE, D, ROUNDS = 10, 6, 7, 5


MALICIOUS = [0, 1]


GRAPH = eq.Topology.regular(N, DEGREE, seed=1, malicious=MALICIOUS)


GOALS = 1 + 0.1 * torch.randn(N, D, generator=stream(0, "goals"), dtype=torch.float64)


def pull(models: Tensor, t: int) -> Tensor:
    """Local training on a quadratic loss: half of the way to the client's own optimum."""
    return models + 0.5 * (GOALS - models)


def losses(t: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda models, clients: (models - GOALS[clients]).square().sum(1)


def distance(models: Tensor) -> Tensor:
    return (models - GOALS.mean(0)).norm(dim=1)


def simulator(rule: Any = None, **options: Any) -> eq.Simulator:
    """Small, quick and in float64; malicious clients send noise if there is a rule to fool."""
    settings: dict[str, Any] = {
        "trainer": pull,
        "topology": GRAPH,
        "models": torch.ones(N, D, dtype=torch.float64),
        "malicious": MALICIOUS,
        "metrics": {"distance": distance},
        "total": ROUNDS,
        "loss_of": losses,
    }
    return eq.Simulator(rule=rule, **settings | options)


def noisy(rule: Any, **options: Any) -> eq.Simulator:
    return simulator(rule, attack=attacks.Gaussian(std=100.0), **options)
