"""A small decentralized training under attack, with every rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import equipoise as eq

RULES: dict[str, eq.Aggregator | eq.MultiExchange] = {
    "FedAvg": eq.FedAvg(),
    "Krum": eq.Krum(),
    "TrimmedMean": eq.TrimmedMean(),
    "Median": eq.Median(),
    "FLTrust": eq.FLTrust(),
    "UBAR": eq.UBAR(),
    "LEARN": eq.LEARN(),
    "SCClip": eq.SCClip(),
    "Balance": eq.Balance(),
    "Balance(kappa=0)": eq.Balance(kappa=0),
    "BalanceMedian": eq.BalanceMedian(),
}


@dataclass(frozen=True)
class Problem:
    """Clients that look for a common optimum, each from a noisy view of it: training is a step towards the view."""

    topology: eq.Topology
    malicious: Tensor
    views: Tensor

    @classmethod
    def draw(cls, seed: int, n: int = 20, degree: int = 10, d: int = 1000) -> Problem:
        """Twenty clients on a random regular graph; the first four are malicious."""
        generator = torch.Generator().manual_seed(seed)
        malicious = torch.arange(n) < n // 5
        views = torch.randn(d, generator=generator) + 0.1 * torch.randn(n, d, generator=generator)
        return cls(eq.Topology.regular(n, degree, seed=seed, malicious=malicious), malicious, views)

    def train(self, models: Tensor) -> Tensor:
        """One local step of every client."""
        return models + 0.2 * (self.views - models)

    def loss_of(self, models: Tensor, clients: Tensor) -> Tensor:
        """Squared distance of candidate models to the views of some clients."""
        return (models - self.views[clients]).square().sum(1)

    def error(self, models: Tensor) -> float:
        """Largest distance of a benign client's model to the mean of the benign views, relative to its length."""
        goal = self.views[~self.malicious].mean(0)
        return float((models[~self.malicious] - goal).norm(dim=1).max() / goal.norm())


def final_error(
    problem: Problem, rule: eq.Aggregator | eq.MultiExchange, attack: bool, seed: int, rounds: int
) -> float:
    """The error after some rounds, with or without malicious clients that send Gaussian noise."""
    generator = torch.Generator().manual_seed(seed)
    models = problem.train(torch.zeros_like(problem.views))
    tolerated = problem.topology.malicious_neighbors(problem.malicious) if attack else 0

    def exchange(messages: Tensor) -> eq.Inbox:
        noise = 200**0.5 * torch.randn(messages.shape, generator=generator)
        return problem.topology.deliver(messages, noise if attack else None, problem.malicious)

    for t in range(rounds):
        trained = problem.train(models)
        inputs: eq.RoundInputs = {"t": t, "total": rounds, "tolerated": tolerated}
        inputs |= {"loss_of": problem.loss_of, "update": trained - models}
        own, out = eq.converse(rule, trained, exchange, **inputs)
        models = eq.mix(own, out.model, alpha=0.5)
    return problem.error(models)


def lines(seed: int = 0, rounds: int = 50) -> Iterator[str]:
    """The demo's table, line by line as it is computed."""
    problem = Problem.draw(seed)
    yield "20 clients on a random 10-regular graph, 4 of them malicious, 1,000 parameters, 50 rounds."
    yield "Worst relative distance of a benign client's model to the benign optimum:"
    yield f"{'rule':<18}{'no attack':>12}{'Gaussian':>12}"
    for name, rule in RULES.items():
        errors = [final_error(problem, rule, attack, seed, rounds) for attack in (False, True)]
        yield f"{name:<18}{errors[0]:>12.3f}{errors[1]:>12.3f}"


def run(seed: int, write: Callable[[str], object] = print) -> None:
    """Print the table."""
    for line in lines(seed):
        write(line)
