"""Small simulations for the tests of sweeps; a module that workers can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

import equipoise as eq

GRAPH = eq.Topology.ring(4)
ATTACKS = {"none": None, "Gaussian": eq.attacks.Gaussian()}


class Approach:
    """Local training that moves every model to a target; it has no memory."""

    stateless = True

    def __init__(self, target: float) -> None:
        self.target = target

    def __call__(self, models: torch.Tensor, t: int) -> torch.Tensor:
        return models - 0.1 * (models - self.target)


def make(
    rule: eq.Aggregator | None = None,
    attack: eq.Attack | None = None,
    seed: int = 0,
    total: int = 4,
    graph: eq.Topology = GRAPH,
) -> eq.Simulator:
    return eq.Simulator(
        Approach(float(seed)),
        graph,
        eq.Median() if rule is None else rule,
        torch.ones(graph.n, 2),
        attack=attack,
        malicious=None if attack is None else [0],
        total=total,
        metrics={"distance": lambda models: (models - seed).abs().sum(1)},
        seed=seed,
    )


def fails_on_median(rule: eq.Aggregator, seed: int) -> eq.Simulator:
    if isinstance(rule, eq.Median):
        raise ArithmeticError(f"no median for seed {seed}")
    return make(rule, seed=seed)


def dies_on_median(rule: eq.Aggregator, seed: int) -> eq.Simulator:
    if isinstance(rule, eq.Median):
        os.kill(os.getpid(), signal.SIGKILL)
    return make(rule, seed=seed)


def counted(seed: int, log: str, total: int = 4) -> eq.Simulator:
    """Append a line to a file for every cell that runs."""
    with open(log, "a") as file:
        file.write(f"{seed}\n")
    return make(seed=seed, total=total)


def slow(seed: int, log: str) -> eq.Simulator:
    """A run of seconds, which writes every round to a file."""
    simulator = make(seed=seed, total=400)
    trainer: Any = simulator.trainer

    class Slow(Approach):
        def __call__(self, models: torch.Tensor, t: int) -> torch.Tensor:
            time.sleep(0.02)
            with open(log, "a") as file:
                file.write(f"{seed} {t}\n")
            return super().__call__(models, t)

    return eq.Simulator(
        Slow(trainer.target), GRAPH, eq.Median(), torch.ones(4, 2), total=400, seed=seed
    )


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []
