"""All message attacks, with the number of distinct lies that each may send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings

from equipoise import attacks
from equipoise.attacks import Knowledge


def one(known: Knowledge) -> int:
    return 1


def per_victim(known: Knowledge) -> int:
    return len(known.victims)


def per_victim_and_one(known: Knowledge) -> int:
    return len(known.victims) + 1


def per_victim_or_edge(known: Knowledge) -> int:
    """One per victim; one per edge to those that hear at most two clients."""
    few = [i for _, i in edges_to_victims(known) if known.topology.degrees[i] <= 2]
    return len(few) + len(set(known.victims.tolist()) - set(few))


def per_sender(known: Knowledge) -> int:
    return int(known.malicious_mask.sum())


def per_edge(known: Knowledge) -> int:
    return len(edges_to_victims(known))


ATTACKS: dict[str, tuple[Any, Callable[[Knowledge], int]]] = {
    "Gaussian": (attacks.Gaussian(), per_sender),
    "KrumAttack": (attacks.KrumAttack(noise=0.0), per_victim_or_edge),
    "KrumAttack-update-global": (
        attacks.KrumAttack(noise=0.0, space="update", scope="global"),
        one,
    ),
    "KrumAttack-fang": (attacks.KrumAttack(form="fang", noise=0.0), per_victim),
    "KrumAttack-noise": (attacks.KrumAttack(), per_edge),
    "TrimAttack": (attacks.TrimAttack(), per_edge),
    "TrimAttack-fixed": (attacks.TrimAttack(random=False), per_victim),
    "TrimAttack-fang": (attacks.TrimAttack(form="fang"), per_edge),
    "TrimAttack-global": (attacks.TrimAttack(scope="global"), per_sender),
    "Adaptive": (attacks.Adaptive(), per_victim),
    "Adaptive-sign": (attacks.Adaptive(perturbation="sign"), per_victim),
    "Adaptive-std": (attacks.Adaptive(perturbation="std"), per_victim),
    "Adaptive-undo": (
        attacks.Adaptive(perturbation="own_update", center="own"),
        per_victim,
    ),
    "Adaptive-ascent": (
        attacks.Adaptive(perturbation="mean_update", center="own"),
        per_victim,
    ),
    "Adaptive-global": (attacks.Adaptive(scope="global"), one),
    "Adaptive-literal": (attacks.Adaptive(mode="literal"), per_victim),
    "LIE": (attacks.LIE(z=1.5), per_victim),
    "LIE-global": (attacks.LIE(z=1.5, scope="global"), one),
    "Dissensus": (attacks.Dissensus(), per_victim),
    "Dissensus-metropolis": (attacks.Dissensus(weights="metropolis"), per_victim),
    "Isolation": (attacks.Isolation(), per_victim),
    "SignFlip": (attacks.SignFlip(), per_victim),
    "SignFlip-global": (attacks.SignFlip(scope="global", space="model"), one),
    "IPM": (attacks.IPM(), per_victim),
    "MinMax": (attacks.MinMax(), per_victim),
    "MinMax-std-update": (attacks.MinMax(perturbation="std", space="update"), per_victim),
    "MinSum": (attacks.MinSum(), per_victim),
    "MinSum-global": (attacks.MinSum(scope="global", perturbation="sign"), one),
    "Mimic": (attacks.Mimic(), one),
    "NonFinite": (attacks.NonFinite(), one),
    "Zero": (attacks.Zero(), one),
    "Spectral": (attacks.Spectral(), per_victim),
    "Tuned": (attacks.Tuned(attacks.Dissensus()), per_victim),
    "Tuned-global": (attacks.Tuned(attacks.LIE(z=1.0, scope="global"), queries=4), per_victim),
    "Window": (attacks.Window(attacks.LIE(z=1.0), 0, 5), per_victim),
    "OnlyClients": (attacks.OnlyClients(attacks.Gaussian(), clients=(0,)), per_sender),
    "InModelSpace": (attacks.InModelSpace(attacks.LIE(z=1.0)), per_victim),
    "Combined": (
        attacks.Combined(attacks.Dissensus(), attacks.OnlyClients(attacks.Zero(), clients=(0,))),
        per_victim_and_one,
    ),
}


few_examples = settings(max_examples=5)


def edges_to_victims(known: Knowledge) -> list[tuple[int, int]]:
    """(sender, receiver) of all edges from malicious to benign clients."""
    return [
        (s, i)
        for s, i in known.topology.edges().tolist()
        if known.malicious_mask[s] and not known.malicious_mask[i]
    ]
