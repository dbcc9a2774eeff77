"""Laws that every attack obeys, as functions that raise AssertionError.

They are ``law(attack, known)`` for attacks on messages and ``law(attack, examples)`` for attacks on
data. Attacks need not restrict themselves to malicious senders: `equipoise.Topology.deliver`
ignores lies in the name of benign clients.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from equipoise.attacks import Knowledge, uses_malicious_models
from equipoise.messages import unforged
from equipoise.testing._asserts import require, same_bits
from equipoise.testing._attacked_rounds import (
    ClientExamples,
    delivered,
    with_other_malicious_models,
    with_seed,
)


def fitting(attack: Any, known: Knowledge) -> None:
    """Lies have the dtype, length and device of the models, and address clients of the graph."""
    lies = attack.forge(with_seed(known, 0))
    if lies is None:
        return
    expected_type = "forge returned {}, expected Lies or None"
    require(isinstance(lies, eq.Lies), expected_type, type(lies).__name__)
    for name, found, expected in (
        ("length", lies.rows.shape[1], known.models.shape[1]),
        ("dtype", lies.rows.dtype, known.models.dtype),
        ("device", lies.rows.device, known.models.device),
    ):
        require(found == expected, "lies have {} {}, expected {}", name, found, expected)
    delivered(known, lies)  # raises for unknown clients


def unchanged(attack: Any, known: Knowledge) -> None:
    """An attack modifies no input; with a generator, it leaves the global one alone."""
    known = with_seed(known, 0)
    before = _tensors(known)
    random_state = torch.random.get_rng_state()
    # A copy of the dict: the attack could add or remove entries.
    inputs = copy.copy(known.inputs)
    settings = copy.copy(getattr(attack, "__dict__", {}))
    attack.forge(known)
    for name, value in _tensors(known).items():
        require(same_bits(value, before[name]), "{} was modified", name)
    # Keys only: tensors among the values were compared above.
    require(known.inputs.keys() == inputs.keys(), "the round inputs were modified")
    require(getattr(attack, "__dict__", {}) == settings, "the attack changed itself")
    _require_same_random_state(random_state)


def repeatable(attack: Any, known: Knowledge) -> None:
    """The same seed gives the same lies."""
    first = delivered(known, attack.forge(with_seed(known, 7)))
    second = delivered(known, attack.forge(with_seed(known, 7)))
    # Compare messages and not lies, which may be different but deliver the same messages.
    for (sender, receiver), message in first.items():
        other = second[sender, receiver]
        text = "{} sent {} first {} and then {}"
        require(same_bits(message, other), text, sender, receiver, message, other)


def extremes(attack: Any, known: Knowledge) -> None:
    """No malicious clients, only malicious clients, and no edges are not errors."""
    n = known.topology.n
    # All of these occur in simulations: a graph that drops edges can lose all of them.
    for other in (
        dataclasses.replace(known, malicious=[]),
        dataclasses.replace(known, malicious=range(n)),
        dataclasses.replace(known, topology=eq.Topology.from_edges(n, [])),
    ):
        fitting(attack, other)


def unused_models(attack: Any, known: Knowledge) -> None:
    """An attack that declares not to use malicious models lies to all, whatever these models are.

    It has ``uses_malicious_models = False``. Other attacks obey this law.
    """
    t = known.inputs.get("t")
    rounds = None if t is None else [t]
    if uses_malicious_models(attack, malicious=known.malicious, rounds=rounds):
        return
    expected = _lies_to_benign(attack, known)
    for other in with_other_malicious_models(known):
        found = _lies_to_benign(attack, other)
        for edge, lie in expected.items():
            text = "{} sent {} {}, and {} if only the models of malicious clients differ"
            require(same_bits(found[edge], lie), text, *edge, lie, found[edge])


def _lies_to_benign(attack: Any, known: Knowledge) -> dict[tuple[int, int], Tensor]:
    """Return the message along every edge from a malicious to a benign client, all lies."""
    lies = attack.forge(with_seed(known, 0))
    topology = known.topology
    senders = topology.senders.clamp_min(0)
    malicious = known.malicious_mask
    # Messages to malicious clients may be anything: these clients need not aggregate.
    edges = topology.mask & malicious[senders] & ~malicious[:, None]
    for receiver, slot in unforged(lies, senders, edges).nonzero().tolist():
        require(False, "{} sent {} its model, not a lie", senders[receiver, slot], receiver)
    messages = delivered(known, lies)
    receivers, slots = edges.nonzero(as_tuple=True)
    pairs = zip(senders[receivers, slots].tolist(), receivers.tolist(), strict=True)
    return {pair: messages[pair] for pair in pairs}


# Attacks on data.


def poison_fits(attack: Any, given: ClientExamples) -> None:
    """Poisoned examples keep shape and dtypes, have one label each, and require no gradients."""
    x, y = attack.poison(given.x, given.y, generator=torch.Generator().manual_seed(0))
    require(len(x) == len(y), "{} examples with {} labels", len(x), len(y))
    for name, found, expected in (("x", x, given.x), ("y", y, given.y)):
        same_dtype = found.dtype == expected.dtype
        require(same_dtype, "{} is {}, expected {}", name, found.dtype, expected.dtype)
        # Not the first dimension: an attack may add or remove examples.
        same_shape = found.shape[1:] == expected.shape[1:]
        require(same_shape, "{} is {}, given {}", name, found.shape, expected.shape)
        require(not found.requires_grad, "{} requires gradients", name)


def poison_leaves(attack: Any, given: ClientExamples) -> None:
    """The given examples are not modified; with a generator, the global one is left alone."""
    before = (given.x.clone(), given.y.clone())
    random_state = torch.random.get_rng_state()
    attack.poison(given.x, given.y, generator=torch.Generator().manual_seed(0))
    for name, found, expected in zip("xy", given, before, strict=True):
        require(same_bits(found, expected), "{} was modified", name)
    _require_same_random_state(random_state)


def poison_repeats(attack: Any, given: ClientExamples) -> None:
    """The same seed gives the same poisoned examples."""
    first = attack.poison(*given, generator=torch.Generator().manual_seed(7))
    second = attack.poison(*given, generator=torch.Generator().manual_seed(7))
    for name, one, other in zip("xy", first, second, strict=True):
        require(same_bits(one, other), "{} differs: {} and {}", name, one, other)


def _require_same_random_state(before: Tensor) -> None:
    same = torch.equal(torch.random.get_rng_state(), before)
    require(same, "the global generator was used")


def _tensors(known: Knowledge) -> dict[str, Tensor]:
    """Copy all tensors that are known."""
    # `previous` may be None.
    named = {name: getattr(known, name) for name in ("models", "previous", "malicious")}
    named |= {"senders": known.topology.senders}
    named |= {name: value for name, value in known.inputs.items() if isinstance(value, Tensor)}
    return {name: value.clone() for name, value in named.items() if value is not None}
