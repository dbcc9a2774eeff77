"""The settings of sections 6 and 7 of the BALANCE paper, in a few lines each, on small data.

- `METHODS` are the rows of the paper's tables, `ATTACKS` their columns.
- `SETTINGS` are the changes to the default, by the titles of the paper's paragraphs.

Clients learn real digits by logistic regression for 12 rounds. They start from a partly trained
model, so that a few rounds show the effect of an attack: as in the paper, benign models differ by
some percent of their norm. With FedAvg and without attack, clients misclassify up to 12 %.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import attacks

N, DEGREE, ROUNDS = 20, 10, 12


MODEL = eq.models.logistic_regression(64, 10)


D = len(eq.flatten(MODEL))


MALICIOUS = eq.draw_malicious(N, 0.2)


GRAPH = eq.Topology.regular(N, DEGREE, seed=0, malicious=MALICIOUS)


CORNER = attacks.PixelPattern(((7, 7), (7, 5), (6, 6), (5, 7)))  # BadNets' pattern on 8 x 8 pixels


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# Section 6.1.2, and the two variants of section 7

METHODS: dict[str, Any] = {
    "FedAvg": eq.FedAvg(),
    "Krum": eq.Krum(),
    "TrimmedMean": eq.TrimmedMean(),
    "Median": eq.Median(),
    "FLTrust": eq.FLTrust(),
    "UBAR": eq.UBAR(),
    "LEARN": eq.LEARN(),
    "SCClip": eq.SCClip(),
    "Balance": eq.Balance(gamma=0.3, kappa=1.0),
    "Balance(kappa=0)": eq.Balance(gamma=0.3, kappa=0.0),
    "BalanceMedian": eq.BalanceMedian(gamma=0.3),
}


# Section 6.1.1, appendix D, and the two attacks of section 7. The prediction of a linear model does
# not depend on its norm, so the backdoor scales updates here; on HAR it scales models, as in the
# paper. The search of the literal Adaptive stops early: against Balance it never leaves its start.

ATTACKS: dict[str, Any] = {
    "none": None,
    "LabelFlip": attacks.LabelFlip({3: 5}),
    "FeatureNoise": attacks.FeatureNoise(),
    "Gaussian": attacks.Gaussian(),
    "KrumAttack": attacks.KrumAttack(),
    "TrimAttack": attacks.TrimAttack(),
    "Backdoor": attacks.Backdoor(CORNER, target=0, space="update"),
    "Adaptive(mode=literal)": attacks.Adaptive(mode="literal", rule=eq.Balance(), tolerance=1.0),
    "LIE": attacks.LIE(),
    "Dissensus": attacks.Dissensus(),
}


# Sections 6.1.4 and 6.1.5: the default


@cache
def digits() -> eq.data.Dataset:
    return eq.data.digits()


def non_iid(data: eq.data.Dataset, n: int, p: float = 0.8) -> tuple[Tensor, ...]:
    return eq.data.by_group(data, n, p=p)


@cache
def trainer(
    partition: Callable[[eq.data.Dataset, int], tuple[Tensor, ...]] = non_iid, n: int = N
) -> eq.LocalSGD:
    return eq.LocalSGD(
        MODEL, cross_entropy, digits().split(partition(digits(), n)), lr=0.3, batch_size=32
    )


@cache
def start() -> Tensor:
    """Return a partly trained model (1, d)."""
    together = eq.LocalSGD(
        MODEL, cross_entropy, [(digits().x, digits().y)], lr=0.5, batch_size=64, steps=60
    )
    return together(eq.flatten(MODEL)[None], 0)


@cache
def metrics() -> dict[str, Any]:
    x, y = digits().test_x, digits().test_y
    return {
        "TER": eq.metrics.ErrorRate(MODEL, x, y),
        "ASR": eq.metrics.AttackSuccess(MODEL, x, y, CORNER, target=0),
    }


def training(
    rule: Any,
    attack: Any = None,
    *,
    n: int = N,
    malicious: Tensor | None = None,
    partition: Callable[[eq.data.Dataset, int], tuple[Tensor, ...]] = non_iid,
    **changes: Any,
) -> eq.Simulator:
    """20 clients on a regular(20,10) graph, 20 % of them malicious; equal initial models.

    Without an attack, all clients are benign.
    """
    malicious = eq.draw_malicious(n, 0.2) if malicious is None else malicious
    default: dict[str, Any] = {
        "trainer": trainer(partition, n),
        "topology": eq.Topology.regular(n, n // 2, seed=0, malicious=malicious),
        "models": start().expand(n, -1),
        "malicious": None if attack is None else malicious,
        "alpha": 0.5,
        "metrics": metrics(),
        "total": ROUNDS,
        "evaluate_every": ROUNDS // 2,
    }
    return eq.Simulator(rule=rule, attack=attack, **default | changes)


# Sections 6.2 and 7: changes to the default. H is the set of rules that clients draw from.

H = [METHODS[name] for name in ("Krum", "TrimmedMean", "Median", "FLTrust", "UBAR", "SCClip")]


SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "Our proposed BALANCE is effective (Table 1, consensus error, figure of costs)": {
        "default": {},
        "server-assisted FL": {"topology": eq.Topology.complete(N).with_self_loops(), "alpha": 0.0},
        "clients solely train models locally": {"rule": None},
    },
    "Impact of gamma and kappa (figure)": {
        **{f"gamma = {x}": {"rule": eq.Balance(gamma=x)} for x in (0.05, 0.1, 0.3, 0.5, 1.0, 3.0)},
        **{f"kappa = {x}": {"rule": eq.Balance(kappa=x)} for x in (0, 1, 5, 20, 50)},
    },
    "Impact of fraction of malicious clients (figure)": {
        f"{x} % malicious": {"malicious": eq.draw_malicious(N, x / 100)}
        for x in (0, 10, 20, 30, 50, 80)
    },
    "Impact of degree of Non-IID (figure)": {
        "IID": {"partition": eq.data.iid},
        **{f"p = {p}": {"partition": partial(non_iid, p=p)} for p in (0.1, 0.3, 0.5, 0.8, 1.0)},
    },
    "Impact of alpha (figure; table of AGG over the neighbors and own)": {
        **{f"alpha = {x}": {"alpha": x} for x in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)},
        "own included": {"topology": GRAPH.with_self_loops(), "alpha": 0.0},
    },
    "Clients use different alpha or different aggregation rules (three tables)": {
        "Case I": {"alpha": torch.rand(N, generator=seeded())},
        "Case II": {"alpha": eq.EachRound(lambda t, generator: torch.rand(N, generator=generator))},
        "Case III": {"rule": eq.PerClient.drawn(H, N, seeded())},
        "Case IV": {"rule": eq.EachRound(lambda t, generator: eq.PerClient.drawn(H, N, generator))},
    },
    "Time-varying communication graph (table)": {
        "disconnecting clients": {
            "topology": eq.EachRound(lambda t, generator: GRAPH.drop(0.2, generator))
        },
    },
    "Impact of the total number of clients (figure); regular-(n, n/2) graphs (figure of graphs)": {
        f"regular-({n}, {n // 2})": {"n": n} for n in (10, 20, 30, 40, 50)
    },
    "Different initial models or communication graphs (two tables, figure of graphs)": {
        "different initial models": {
            "models": eq.models.initial_models(
                lambda seed: eq.models.logistic_regression(64, 10, seed=seed), N, same=False
            )
        },
        "complete graph": {"topology": eq.Topology.complete(N)},
        "Erdős-Rényi graph": {
            "topology": eq.Topology.erdos_renyi(N, 0.5, seed=0, malicious=MALICIOUS)
        },
        "small-world graph": {
            "topology": eq.Topology.small_world(N, 10, 0.3, seed=0, malicious=MALICIOUS)
        },
        "ring graph": {"topology": eq.Topology.ring(N)},
    },
    "Impact of fraction of edges between malicious and benign clients (table, figure of graphs)": {
        f"FEMB {x}": {"topology": eq.Topology.random_with_femb(N, x, MALICIOUS, seed=0)}
        for x in (0.16, 0.22, 0.32)
    },
    "More extreme Non-IID distribution (table)": {
        "three classes a client": {"partition": partial(eq.data.by_classes, classes_each=3)},
    },
    "Different variants of BALANCE (table: METHODS; attacks in one half of the rounds)": {
        "first half": {"attack": attacks.Window(attacks.KrumAttack(), 0, ROUNDS // 2)},
        "second half": {"attack": attacks.Window(attacks.KrumAttack(), ROUNDS // 2, ROUNDS)},
    },
}


CHANGES = {name: changes for paragraph in SETTINGS.values() for name, changes in paragraph.items()}


@cache
def run(setting: str = "default", method: str = "Balance", attack: str = "none") -> eq.Simulator:
    """Return a finished training; a setting may replace the rule or the attack."""
    options = {"rule": METHODS[method], "attack": ATTACKS[attack]} | CHANGES[setting]
    simulator = training(**options)
    simulator.run()
    return simulator


def worst(simulator: eq.Simulator, metric: str = "TER") -> float:
    """Return Max.TER, or Max.ASR, after the last round."""
    return simulator.history.summary()[f"max_{metric}"]


def accepted(simulator: eq.Simulator, whose: str) -> list[float]:
    return simulator.history.series(f"accepted_{whose}")[1]


def length(simulator: eq.Simulator) -> float:
    """Return the mean norm of the benign models."""
    return float(simulator.models[~simulator.malicious].norm(dim=1).mean())
