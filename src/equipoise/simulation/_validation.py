"""What a simulator is made of, checked before the first round."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from equipoise._utils.validation import check_count, describe, is_floating
from equipoise.attacks import Attack, DataAttack, MessageAttack, poisoners
from equipoise.rules import Aggregator, MultiExchange, PerClient
from equipoise.simulation.schedule import EachRound
from equipoise.topology import Topology
from equipoise.training import Trainer

BLOCK = 1024  # words of eight bytes whose bits are summed


def check_options(models: object, total: object, every: object, metrics: object, **called: object) -> None:
    """Raise unless models are stacked, counts are counts, metrics have names, and what is to be called can be."""
    if not is_floating(models) or models.dim() != 2:
        raise ValueError(f"models must be a floating-point tensor of shape (n, d), found {describe(models)}")
    if total is not None:
        check_count("total", total, 1)
    if isinstance(every, str) or not isinstance(every, Container):
        check_count("every", every, 1)
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be functions by name, a dict, found {describe(metrics)}")
    if unnamed := [name for name in metrics if not isinstance(name, str)]:
        raise ValueError(f"metrics must be functions by name, found {unnamed[0]!r} for a name")
    for name, value in (called | {f"metrics[{name!r}]": metric for name, metric in metrics.items()}).items():
        if isinstance(value, type) or not callable(value):
            raise ValueError(f"{name} must be a function, found {_class_or_type(value)}")


def _class_or_type(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else describe(value)


def is_drawn(name: str, setting: object) -> bool:
    """Whether a setting is known only in its round: a function of the round, or an `EachRound`."""
    if isinstance(setting, type):
        raise ValueError(f"{name} must be a value or a function of the round, found the class {setting.__name__}")
    return isinstance(setting, EachRound) or callable(setting)


def check_topology(topology: object, n: int) -> Topology:
    """The topology, if it is one of n clients."""
    if isinstance(topology, Topology) and topology.n == n:
        return topology
    found = type(topology).__name__
    if isinstance(topology, Topology):
        found = f"{topology.n} clients"
    elif hasattr(topology, "adjacency"):  # a graph of networkx
        found += "; Topology.from_networkx(graph) makes one"
    raise ValueError(f"topology must be a Topology of {n} clients, as models has, found {found}")


def check_rule(rule: object, n: int) -> None:
    """Raise unless it is a rule for n clients, or None."""
    if isinstance(rule, type):
        raise ValueError(f"rule must be a rule, found the class {rule.__name__}; {rule.__name__}() makes one")
    if rule is not None and not isinstance(rule, Aggregator | MultiExchange):
        raise ValueError(f"rule must be a rule such as Median(), found {describe(rule)}")
    if isinstance(rule, PerClient):
        rule.check_clients(n)


def check_attack(attack: object, malicious: object) -> None:
    """Raise unless it is an attack, and somebody is there to carry it out, or None."""
    if isinstance(attack, type):
        raise ValueError(f"attack must be an attack, found the class {attack.__name__}; {attack.__name__}() makes one")
    if attack is not None and not isinstance(attack, DataAttack | MessageAttack):
        raise ValueError(f"attack must have a method forge or a method poison, found {describe(attack)}")
    if attack is not None and malicious is None:
        raise ValueError("malicious must say which clients attack, found None; [] is nobody")


@contextmanager
def unchanged(who: str, **shown: Tensor | None) -> Iterator[None]:
    """Raise if one of the shown tensors is modified in place in this block.

    torch counts its own writes. A write through numpy shows only in the values, and so does any
    write to an inference tensor, which has no version.
    """
    tensors = {name: x for name, x in shown.items() if x is not None}
    versions = {name: _version(x) for name, x in tensors.items()}
    bits = {name: _bit_sums(x) for name, x in tensors.items()}
    yield
    for name, x in tensors.items():
        if _version(x) != versions[name] or not torch.equal(_bit_sums(x), bits[name]):
            raise ValueError(f"{who} modified {name} in place; clone it first")


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _bit_sums(x: Tensor) -> Tensor:
    """Sums of the bits of a tensor, block by block; empty on devices that numpy cannot write to.

    Integer sums of 64 bits run at the speed of memory, five to ten times as fast as a checksum or
    a comparison with a copy. Sums of blocks also notice most permutations, such as sorting.
    """
    if x.device.type != "cpu":
        return x.new_empty(0, dtype=torch.int64)
    values = x.detach().contiguous()
    if values.storage_offset():  # eight bytes at a time need an aligned start
        values = values.clone()
    bits = values.flatten().view(torch.uint8)
    whole = len(bits) // (8 * BLOCK) * (8 * BLOCK)
    blocks = bits[:whole].view(torch.int64).view(-1, BLOCK)
    weights = torch.arange(1, len(bits) - whole + 1, device="cpu")
    rest = (bits[whole:] * weights).sum()
    return torch.cat([blocks.sum(1), rest[None]])


def poisoned(trainer: Trainer, attack: Attack | None, malicious: Tensor) -> Trainer:
    """The trainer as it begins, with poisoned data where the attack is one on data."""
    if hasattr(trainer, "restarted"):
        trainer = trainer.restarted()
    clients = malicious.nonzero().flatten().tolist()
    if attack is None or not any(poisoners(attack, client) for client in clients):
        return trainer
    if not hasattr(trainer, "poisoned"):
        raise ValueError(
            f"trainer must have a method poisoned(attack, malicious), as LocalSGD has, for {type(attack).__name__}, "
            f"an attack on data, found {type(trainer).__name__}"
        )
    changed: Trainer = trainer.poisoned(attack, malicious)
    return changed
