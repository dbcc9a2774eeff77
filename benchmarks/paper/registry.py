"""Names of rules, attacks, graphs and partitions, what they stand for, and the paper's labels.

A name is the one of the library's API, with the arguments that differ from the default. The paper
calls some of them differently, and calls a rule and an attack ``Krum``: its labels are in
`RULE_LABELS` and `ATTACK_LABELS`, and only tables show them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches

import torch
from torch import Tensor

from benchmarks.paper.tasks import Task
from equipoise import attacks, rules
from equipoise._utils.rng import stream
from equipoise.attacks import Attack
from equipoise.simulation import EachRound, RuleLike
from equipoise.topology import Topology

# Rules: sections 6.1.2 and 7

MIXED = (
    rules.Krum(),
    rules.TrimmedMean(),
    rules.Median(),
    rules.FLTrust(),
    rules.UBAR(),
    rules.SCClip(),
)
"""The set H of rules that the clients draw from in Cases III and IV."""

AnyRule = RuleLike | EachRound[RuleLike] | None


def _redrawn(n: int) -> EachRound[RuleLike]:
    return EachRound(lambda t, generator: rules.PerClient.drawn(MIXED, n, generator))


# Functions of gamma, kappa, the number of clients and the seed.
RULES: Mapping[str, Callable[[float, float, int, int], AnyRule]] = {
    "FedAvg": lambda *_: rules.FedAvg(),
    "Krum": lambda *_: rules.Krum(),
    "TrimmedMean": lambda *_: rules.TrimmedMean(),
    "Median": lambda *_: rules.Median(),
    "FLTrust": lambda *_: rules.FLTrust(),
    "UBAR": lambda *_: rules.UBAR(),
    "LEARN": lambda *_: rules.LEARN(),
    "SCClip": lambda *_: rules.SCClip(),
    "Balance": lambda gamma, kappa, *_: rules.Balance(gamma, kappa),
    "Balance(kappa=0)": lambda gamma, *_: rules.Balance(gamma, 0.0),
    "BalanceMedian": lambda gamma, *_: rules.BalanceMedian(gamma),
    "PerClient": lambda _, __, n, seed: rules.PerClient.drawn(MIXED, n, stream(seed, "case III")),
    "EachRound(PerClient)": lambda gamma, kappa, n, seed: _redrawn(n),
    "Alone": lambda *_: None,
    "SCClip(tau=10)": lambda *_: rules.SCClip(tau=10.0),  # its authors' radius for CIFAR-10
}
METHODS = tuple(RULES)[:9]
"""The nine methods that the paper compares."""

RULE_LABELS: Mapping[str, str] = {
    **{name: name for name in METHODS},
    "TrimmedMean": "Trim-mean",
    "SCClip": "SCCLIP",
    "Balance": "BALANCE",
    "Balance(kappa=0)": "Variant-I",
    "BalanceMedian": "Variant-II",
    "PerClient": "Case-III",
    "EachRound(PerClient)": "Case-IV",
}
"""The paper's label of each rule that it has."""

# Attacks: appendix D and section 7, and other readings of their descriptions

AnyAttack = Attack | None
INNER = attacks.PixelPattern(
    tuple((row - 2, column - 2) for row, column in attacks.PixelPattern().pixels)
)
"""The pattern moved two pixels inward.

The paper's network ignores rows and columns 26 and 27 of 28, because its second pooling reduces
11 x 11 to 5 x 5. Three of the four pixels of the original pattern are there.
"""


def _inner_backdoor(task: Task) -> AnyAttack:
    if task.trigger != attacks.PixelPattern():
        return None
    return attacks.Backdoor(INNER, task.target)


def _backdoor(task: Task) -> AnyAttack:
    return None if task.trigger is None else attacks.Backdoor(task.trigger, task.target)


NO_ATTACK = "none"
ATTACKS: Mapping[str, Callable[[Task], AnyAttack]] = {
    NO_ATTACK: lambda task: None,
    "LabelFlip": lambda task: task.flip,
    "FeatureNoise": lambda task: attacks.FeatureNoise(),
    "Gaussian": lambda task: attacks.Gaussian(),
    "KrumAttack": lambda task: attacks.KrumAttack(),
    "TrimAttack": lambda task: attacks.TrimAttack(),
    "Backdoor": _backdoor,
    "Adaptive(mode=literal)": lambda task: attacks.Adaptive("literal", rule=rules.Balance()),
    "LIE": lambda task: attacks.LIE(),
    "Dissensus": lambda task: attacks.Dissensus(),
    "FeatureNoise(std=1000)": lambda task: attacks.FeatureNoise(std=1000.0),
    "Gaussian(std=200)": lambda task: attacks.Gaussian(std=200.0),
    "InModelSpace(KrumAttack)": lambda task: attacks.InModelSpace(attacks.KrumAttack()),
    "Backdoor(trigger=inner)": _inner_backdoor,
    "Adaptive": lambda task: attacks.Adaptive("max", rule=rules.Balance()),
    "Adaptive(center=own)": lambda task: attacks.Adaptive(
        "max", rule=rules.Balance(), center="own"
    ),
    "MinMax": lambda task: attacks.MinMax(),
    "Mimic": lambda task: attacks.Mimic(),
    "SignFlip": lambda task: attacks.SignFlip(),
}
PUBLISHED = tuple(ATTACKS)[:8]
"""The columns of the paper's tables."""

ATTACK_LABELS: Mapping[str, str] = {
    NO_ATTACK: "No",
    "LabelFlip": "LF",
    "FeatureNoise": "Feature",
    "Gaussian": "Gauss",
    "KrumAttack": "Krum",
    "TrimAttack": "Trim",
    "Backdoor": "Backdoor",
    "Adaptive(mode=literal)": "Adapt",
    "LIE": "LIE",
    "Dissensus": "Dissensus",
}
"""The paper's label of each attack that it has."""


def paper_label(name: str) -> str:
    """Return the paper's label of a name, or of names joined by commas; empty if it has none.

    >>> from benchmarks.paper.registry import paper_label
    >>> paper_label("SCClip"), paper_label("ring, TrimmedMean"), paper_label("Alone")
    ('SCCLIP', 'ring, Trim-mean', '')
    """
    labels = {**RULE_LABELS, **ATTACK_LABELS}
    parts = name.split(", ")
    if not any(part in labels for part in parts):
        return ""
    return ", ".join(labels.get(part, part) for part in parts)


# Graphs: section 6.1.5 and appendix C. The paper does not state the parameters of the random ones.

# Functions of the number of clients, the malicious clients and the seed.
GRAPHS: Mapping[str, Callable[[int, Tensor, int], Topology]] = {
    "complete": lambda n, malicious, seed: Topology.complete(n),
    "ring": lambda n, malicious, seed: Topology.ring(n),
    "erdos_renyi": lambda n, malicious, seed: Topology.erdos_renyi(
        n, 0.5, seed=seed, malicious=malicious
    ),
    "small_world": lambda n, malicious, seed: Topology.small_world(
        n, 10, 0.3, seed=seed, malicious=malicious
    ),
    **{
        f"random_with_femb({femb})": lambda n, malicious, seed, femb=femb: (  # type: ignore[misc]
            Topology.random_with_femb(n, femb, malicious, seed=seed)
        )
        for femb in (0.16, 0.22, 0.32)
    },
}
REGULAR = tuple(f"regular({n},{n // 2})" for n in (10, 20, 30, 40, 50))


def regular(name: str) -> tuple[int, int] | None:
    """Parse the number of clients and neighbors in the name of a regular graph.

    >>> from benchmarks.paper.registry import regular
    >>> regular("regular(20,10)"), regular("ring")
    ((20, 10), None)
    """
    found = re.fullmatch(r"regular\((\d+), ?(\d+)\)", name)
    return None if found is None else (int(found[1]), int(found[2]))


def draw_graph(name: str, n: int, malicious: Tensor, seed: int) -> Topology:
    """Draw the named graph.

    The benign clients of all graphs but the ring form a connected graph.
    """
    shape = regular(name)
    if shape is None:
        return GRAPHS[name](n, malicious, seed)
    return Topology.regular(*shape, seed=seed, malicious=malicious)


# Alpha: section 6.2. The paper calls these Case I and Case II.

RANDOM_ALPHAS = ("per-client", "each-round")


def draw_alpha(name: str, n: int, seed: int) -> float | Tensor | EachRound[float | Tensor]:
    """Alpha of all clients: a number, or uniform in [0, 1], drawn once or in each round."""
    if name == "per-client":
        return _alphas(n, stream(seed, "case I"))
    if name == "each-round":
        return EachRound(lambda t, generator: _alphas(n, generator))
    return float(name)


def _alphas(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, dtype=torch.float32, device="cpu")


# Wrong names


def check_name(argument: str, name: object, known: Collection[str]) -> None:
    """Raise unless the name is known; the error has the nearest name and the list.

    >>> from benchmarks.paper.registry import METHODS, check_name
    >>> check_name("rule", "Trim-mean", METHODS)
    Traceback (most recent call last):
    ValueError: rule must be one of FedAvg, Krum, TrimmedMean, Median, FLTrust, UBAR, LEARN, SCClip,
    Balance, found 'Trim-mean': did you mean TrimmedMean?
    """
    if name in known:
        return
    nearest = _nearest(str(name), known)
    hint = f": did you mean {nearest}?" if nearest else ""
    raise ValueError(f"{argument} must be one of {', '.join(known)}, found {name!r}{hint}")


def _nearest(name: str, known: Collection[str]) -> str | None:
    # A label of the paper, such as LF, need not resemble the name that it stands for.
    for labels in (RULE_LABELS, ATTACK_LABELS):
        for candidate, label in labels.items():
            if label.lower() == name.lower() and candidate in known:
                return candidate
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[close[0]] if close else None
