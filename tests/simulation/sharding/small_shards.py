"""Small simulations that run in one process, or in several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import equipoise as eq
from equipoise._utils.rng import stream
from tests.attack_cases import ATTACKS
from tests.cases import LEARNS, RULES

CLASSES = 3
FEATURES = 5


EVERY_RULE: dict[str, Any] = {
    **RULES,
    **LEARNS,
    "none": None,
    "mda": eq.MDA(),
    "smea": eq.SMEA(),
    "centered-clip-last": eq.CenteredClip(tau=0.25),
    "sketch-guard": eq.SketchGuard(size=5),
    "static-clip": eq.StaticClip(eq.GeometricMedian(), radius=0.5),
    "nested": eq.NNM(eq.Bucketing(eq.ARC(eq.CenteredClip(tau=0.25, start="own")))),
    "per-group": partial(eq.PerGroup, rules=eq.Krum()),
    "per-client": [eq.Balance(), eq.Median(), eq.Krum()],
    "each-round": eq.EachRound(lambda t, generator: eq.Krum() if t % 2 else eq.RTC()),
}
EVERY_ATTACK: dict[str, Any] = {
    **{name: attack for name, (attack, _) in ATTACKS.items()},
    "none": None,
    "label-flip": eq.attacks.LabelFlip({0: 1, 1: 2}),
    "feature-noise": eq.attacks.FeatureNoise(std=3.0),
    "backdoor": eq.attacks.Backdoor(eq.attacks.EveryNth(2)),
    "late-noise": eq.attacks.Window(eq.attacks.FeatureNoise(), 1, 3),
}


@dataclass(frozen=True)
class Setting:
    rule: str = "balance"
    attack: str = "Gaussian"
    n: int = 9
    graph: str = "random"
    model: str = "linear"
    alpha: str = "half"
    gossip: str | None = None
    momentum: float = 0.0
    steps: int = 1
    partition: str = "contiguous"
    train_malicious: bool = False
    keep_nonfinite: bool = False
    rounds: int = 3
    seed: int = 0

    @property
    def malicious(self) -> Tensor:
        return eq.draw_malicious(self.n, 0.3, seed=self.seed)

    def topology(self) -> Any:
        n = self.n
        if self.graph == "complete":
            return eq.Topology.complete(n)
        if self.graph == "ring":
            return eq.Topology.ring(n)
        pairs = torch.rand(n, n, generator=stream(self.seed, "directed")) < 0.5
        if self.graph == "directed":
            return eq.Topology.from_adjacency(pairs.fill_diagonal_(False))
        if self.graph == "loops":
            return eq.Topology.from_adjacency(pairs).with_self_loops()
        graph = eq.Topology.erdos_renyi(n, 0.6, seed=self.seed)
        if self.graph == "dropping":
            return eq.EachRound(lambda t, generator: graph.drop(0.3, generator))
        return graph

    def module(self) -> nn.Module:
        if self.model == "linear":
            return nn.Linear(FEATURES, CLASSES)
        if self.model == "regression":
            return nn.Linear(FEATURES, 1)
        if self.model == "wide":  # so wide that a block of models holds 9 of them
            return nn.Sequential(nn.Linear(FEATURES, 12000), nn.ReLU(), nn.Linear(12000, CLASSES))
        if self.model == "tanh":
            return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))
        if self.model == "random":
            return nn.Sequential(nn.Dropout(0.2), nn.Linear(FEATURES, CLASSES))
        layers = nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten()
        return nn.Sequential(nn.Unflatten(1, (1, FEATURES)), *layers, nn.Linear(10, CLASSES))

    def examples(self) -> list[tuple[Tensor, Tensor]]:
        generator = stream(self.seed, "examples")
        counts = torch.randint(3, 12, (self.n,), generator=generator).tolist()
        return [self._examples(count, generator) for count in counts]

    def _examples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, FEATURES, generator=generator)
        if self.model == "regression":
            return x, x.sum(1, keepdim=True)
        return x, torch.randint(CLASSES, (count,), generator=generator)

    def alphas(self) -> Any:
        if self.alpha == "each":
            return torch.rand(self.n, generator=stream(self.seed, "alpha"))
        if self.alpha == "drawn":
            return eq.EachRound(lambda t, generator: torch.rand(self.n, generator=generator))
        return 0.5

    def owners(self, ranks: int) -> Any:
        if self.partition != "scattered":
            return self.partition
        # Each rank gets a client, whatever is drawn.
        drawn = torch.randint(ranks, (self.n - ranks,), generator=stream(self.seed, "owners"))
        return torch.cat([torch.arange(ranks), drawn])

    def simulator(self, group: Any = None, ranks: int = 1, **options: Any) -> eq.Simulator:
        torch.manual_seed(self.seed)
        module = self.module()
        loss = mse_loss if self.model == "regression" else cross_entropy
        test_x, test_y = self._examples(40, stream(self.seed, "test"))
        metric = eq.metrics.MeanSquaredError if self.model == "regression" else eq.metrics.ErrorRate
        rule = EVERY_RULE[self.rule]
        if isinstance(rule, list):
            rule = eq.PerClient.drawn(rule, self.n, stream(self.seed, "rules"))
        if isinstance(rule, partial):
            rule = rule(eq.groups(module))
        settings: dict[str, Any] = {
            "attack": EVERY_ATTACK[self.attack],
            "malicious": self.malicious,
            "alpha": self.alphas(),
            # Gossip weights are those of undirected graphs.
            "gossip": self.gossip if self.graph in ("random", "complete", "ring") else None,
            "metrics": {
                "error": metric(module, test_x, test_y),
                "length": lambda models: models.double().square().sum(1),
            },
            "evaluate_every": 2,
            "keep_nonfinite": self.keep_nonfinite,
            "train_malicious": self.train_malicious,
            "total": self.rounds,
            "seed": self.seed,
        }
        if group is not None:
            settings |= {"group": group, "partition": self.owners(ranks)}
        return eq.Simulator(
            eq.LocalSGD(
                module,
                loss,
                self.examples(),
                lr=0.2,
                batch_size=6,
                momentum=self.momentum,
                steps=self.steps,
                seed=self.seed,
            ),
            self.topology(),
            rule,
            eq.flatten(module).expand(self.n, -1),
            **settings | options,
        )


def played(group: Any, setting: Setting) -> tuple[Tensor, list[eq.Round]]:
    """The models of all clients after the last round, and the history."""
    ranks = 1 if group is None else group.size()
    simulator = setting.simulator(group, ranks)
    history = simulator.run()
    return simulator.all_models(), list(history)
