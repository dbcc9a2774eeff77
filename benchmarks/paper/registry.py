"""The names that the BALANCE paper gives to rules, attacks and graphs, and what they stand for here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.paper.tasks import Task
from equipoise import attacks, rules
from equipoise._utils.rng import stream
from equipoise.attacks import Attack
from equipoise.simulation import EachRound, RuleLike
from equipoise.topology import Topology

# Rules: sections 6.1.2 and 7

MIXED = (rules.Krum(), rules.TrimmedMean(), rules.Median(), rules.FLTrust(), rules.UBAR(), rules.SCClip())
"""The set H that clients choose from in Cases III and IV."""

AnyRule = RuleLike | EachRound[RuleLike] | None
RULES: Mapping[str, Callable[[float, float, int, int], AnyRule]] = {  # of gamma, kappa, n and the seed
    "FedAvg": lambda *_: rules.FedAvg(),
    "Krum": lambda *_: rules.Krum(),
    "Trim-mean": lambda *_: rules.TrimmedMean(),
    "Median": lambda *_: rules.Median(),
    "FLTrust": lambda *_: rules.FLTrust(),
    "UBAR": lambda *_: rules.UBAR(),
    "LEARN": lambda *_: rules.LEARN(),
    "SCCLIP": lambda *_: rules.SCClip(),
    "BALANCE": lambda gamma, kappa, *_: rules.Balance(gamma, kappa),
    "Variant-I": lambda gamma, *_: rules.Balance(gamma, 0.0),
    "Variant-II": lambda gamma, *_: rules.BalanceMedian(gamma),
    "Case-III": lambda gamma, kappa, n, seed: rules.PerClient.drawn(MIXED, n, stream(seed, "case III")),
    "Case-IV": lambda gamma, kappa, n, seed: EachRound(lambda t, generator: rules.PerClient.drawn(MIXED, n, generator)),
    "Alone": lambda *_: None,
    "SCCLIP-10": lambda *_: rules.SCClip(tau=10.0),  # its authors' other radius, for CIFAR-10
}
METHODS = tuple(RULES)[:9]
"""The nine methods that the paper compares."""

# Attacks: appendix D and section 7, and what else may be meant by their words

AnyAttack = Attack | None
SEEN = attacks.PixelPattern(tuple((row - 2, column - 2) for row, column in attacks.PixelPattern().pixels))
"""The pattern two pixels further in: the paper's network does not see rows and columns 26 and 27 of 28, because its
second pooling makes 5 x 5 of 11 x 11, and with them three of the pattern's four pixels."""


def _seen(task: Task) -> AnyAttack:
    return attacks.Backdoor(SEEN, task.target) if task.trigger == attacks.PixelPattern() else None


ATTACKS: Mapping[str, Callable[[Task], AnyAttack]] = {
    "No": lambda task: None,
    "LF": lambda task: task.flip,
    "Feature": lambda task: attacks.FeatureNoise(),
    "Gauss": lambda task: attacks.Gaussian(),
    "Krum": lambda task: attacks.KrumAttack(),
    "Trim": lambda task: attacks.TrimAttack(),
    "Backdoor": lambda task: None if task.trigger is None else attacks.Backdoor(task.trigger, task.target),
    "Adapt": lambda task: attacks.Adaptive("literal", rule=rules.Balance()),
    "LIE": lambda task: attacks.LIE(),
    "Dissensus": lambda task: attacks.Dissensus(),
    "Feature-1000": lambda task: attacks.FeatureNoise(std=1000.0),
    "Gauss-200": lambda task: attacks.Gaussian(std=200.0),
    "Krum-models": lambda task: attacks.OnModels(attacks.KrumAttack()),
    "Backdoor-seen": _seen,
    "Adapt-max": lambda task: attacks.Adaptive("max", rule=rules.Balance()),
    "Adapt-own": lambda task: attacks.Adaptive("max", rule=rules.Balance(), centre="own"),
    "MinMax": lambda task: attacks.MinMax(),
    "Mimic": lambda task: attacks.Mimic(),
    "SignFlip": lambda task: attacks.SignFlip(),
}
PUBLISHED = tuple(ATTACKS)[:8]
"""The columns of the paper's tables."""

# Graphs: section 6.1.5 and appendix C. The parameters of the random ones are not stated.

GRAPHS: Mapping[str, Callable[[int, Tensor, int], Topology]] = {  # of n, who is malicious, and the seed
    "complete": lambda n, malicious, seed: Topology.complete(n),
    "ring": lambda n, malicious, seed: Topology.ring(n),
    "erdos-renyi": lambda n, malicious, seed: Topology.erdos_renyi(n, 0.5, seed=seed, malicious=malicious),
    "small-world": lambda n, malicious, seed: Topology.small_world(n, 10, 0.3, seed=seed, malicious=malicious),
    "femb-0.16": lambda n, malicious, seed: Topology.random_with_femb(n, 0.16, malicious, seed=seed),
    "femb-0.22": lambda n, malicious, seed: Topology.random_with_femb(n, 0.22, malicious, seed=seed),
    "femb-0.32": lambda n, malicious, seed: Topology.random_with_femb(n, 0.32, malicious, seed=seed),
}
REGULAR = tuple(f"regular-({n},{n // 2})" for n in (10, 20, 30, 40, 50))


def regular(name: str) -> tuple[int, int] | None:
    """The number of clients and neighbours in the name of a regular graph, or None.

    >>> from benchmarks.paper.registry import regular
    >>> regular("regular-(20,10)"), regular("ring")
    ((20, 10), None)
    """
    found = re.fullmatch(r"regular-\((\d+), ?(\d+)\)", name)
    return None if found is None else (int(found[1]), int(found[2]))


def draw_graph(name: str, n: int, malicious: Tensor, seed: int) -> Topology:
    """The graph of that name; benign clients are connected among themselves, except in a ring, which others cut."""
    shape = regular(name)
    if shape is None:
        return GRAPHS[name](n, malicious, seed)
    return Topology.regular(*shape, seed=seed, malicious=malicious)


# Alpha: section 6.2


def draw_alpha(name: str, n: int, seed: int) -> float | Tensor | EachRound[float | Tensor]:
    """Alpha of all clients: a number, or drawn from [0, 1], once in Case I, in every round in Case II."""
    if name == "Case-I":
        return _alphas(n, stream(seed, "case I"))
    if name == "Case-II":
        return EachRound(lambda t, generator: _alphas(n, generator))
    return float(name)


def _alphas(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, dtype=torch.float32, device="cpu")
