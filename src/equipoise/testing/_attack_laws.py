"""Laws that every attack obeys, as functions that raise AssertionError.

``law(attack, known)`` for attacks on messages, ``law(attack, examples)`` for attacks on data. That only malicious
clients lie is no law of attacks: `equipoise.Topology.deliver` ignores what is said in the name of others.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from equipoise.attacks import Knowledge
from equipoise.testing._asserts import require, same_bits
from equipoise.testing._attacked_rounds import Examples, heard, seeded


def fitting(attack: Any, known: Knowledge) -> None:
    """Lies have the dtype, length and device of the models, and are addressed to clients of the graph."""
    lies = attack.forge(seeded(known, 0))
    if lies is None:
        return
    require(isinstance(lies, eq.Lies), "forge returned {}, expected Lies or None", type(lies).__name__)
    for name, found, expected in (
        ("length", lies.rows.shape[1], known.models.shape[1]),
        ("dtype", lies.rows.dtype, known.models.dtype),
        ("device", lies.rows.device, known.models.device),
    ):
        require(found == expected, "lies have {} {}, expected {}", name, found, expected)
    heard(known, lies)


def unchanged(attack: Any, known: Knowledge) -> None:
    """Nothing that is known changes, and with a generator the global one is left alone."""
    known = seeded(known, 0)
    before, random_state = _tensors(known), torch.random.get_rng_state()
    inputs, settings = copy.copy(known.inputs), copy.copy(getattr(attack, "__dict__", {}))
    attack.forge(known)
    for name, value in _tensors(known).items():
        require(same_bits(value, before[name]), "{} was modified", name)
    require(known.inputs.keys() == inputs.keys(), "the round inputs were modified")
    require(getattr(attack, "__dict__", {}) == settings, "the attack changed itself")
    require(torch.equal(torch.random.get_rng_state(), random_state), "the global generator was used")


def repeatable(attack: Any, known: Knowledge) -> None:
    """The same seed gives the same lies."""
    first, second = (heard(known, attack.forge(seeded(known, 7))) for _ in range(2))
    for (sender, receiver), message in first.items():
        other = second[sender, receiver]
        require(same_bits(message, other), "{} told {} once {} and once {}", sender, receiver, message, other)


def extremes(attack: Any, known: Knowledge) -> None:
    """Nobody malicious, everybody malicious, and nobody to lie to are no errors."""
    n = known.topology.n
    alone = eq.Topology.from_edges(n, [])
    for other in (
        dataclasses.replace(known, malicious=[]),
        dataclasses.replace(known, malicious=range(n)),
        dataclasses.replace(known, topology=alone),
    ):
        fitting(attack, other)


# Attacks on data.


def poison_fits(attack: Any, given: Examples) -> None:
    """Poisoned examples look like the given ones, each with its label, in the same dtypes and without gradients."""
    x, y = attack.poison(given.x, given.y, generator=torch.Generator().manual_seed(0))
    require(len(x) == len(y), "{} examples with {} labels", len(x), len(y))
    for name, found, expected in (("x", x, given.x), ("y", y, given.y)):
        require(found.dtype == expected.dtype, "{} is {}, expected {}", name, found.dtype, expected.dtype)
        require(found.shape[1:] == expected.shape[1:], "{} is {}, given {}", name, found.shape, expected.shape)
        require(not found.requires_grad, "{} requires gradients", name)


def poison_leaves(attack: Any, given: Examples) -> None:
    """The given examples stay as they are, and with a generator the global one is left alone."""
    before, random_state = (given.x.clone(), given.y.clone()), torch.random.get_rng_state()
    attack.poison(given.x, given.y, generator=torch.Generator().manual_seed(0))
    for name, found, expected in zip("xy", given, before, strict=True):
        require(same_bits(found, expected), "{} was modified", name)
    require(torch.equal(torch.random.get_rng_state(), random_state), "the global generator was used")


def poison_repeats(attack: Any, given: Examples) -> None:
    """The same seed gives the same poisoned examples."""
    first, second = (attack.poison(*given, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    for name, one, other in zip("xy", first, second, strict=True):
        require(same_bits(one, other), "{} differs: {} and {}", name, one, other)


def _tensors(known: Knowledge) -> dict[str, Tensor]:
    """Copies of all that is known."""
    named = {name: getattr(known, name) for name in ("models", "previous", "malicious")}
    named |= {"senders": known.topology.senders}
    named |= {name: value for name, value in known.inputs.items() if isinstance(value, Tensor)}
    return {name: value.clone() for name, value in named.items() if value is not None}
