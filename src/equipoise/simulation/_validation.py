"""Validation of the parts of a run."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from equipoise._utils.validation import (
    check_callable,
    check_choice,
    check_count,
    describe,
    is_floating,
)
from equipoise.attacks import (
    Attack,
    DataAttack,
    MessageAttack,
    poisoners,
    uses_malicious_models,
)
from equipoise.rules import Aggregator, MultiExchange, PerClient, as_shares, default_alpha
from equipoise.simulation._evaluation import MetricFunction
from equipoise.simulation._sharding import Part, Shard
from equipoise.simulation.each_round import EachRound
from equipoise.topology import Topology
from equipoise.topology.gossip_weights import KINDS
from equipoise.training import Trainer

WORD = 8  # bytes that are summed as one integer
BLOCK_WORDS = 1024  # words per sum: a write is missed only if all sums of blocks stay the same


def check_models(models: object) -> None:
    """Raise unless these are stacked models."""
    if not is_floating(models) or models.dim() != 2:
        expected = "a floating-point tensor of shape (n, d)"
        raise ValueError(f"models must be {expected}, found {describe(models)}")


def check_trainer(trainer: Any, loss_of: object, models: Tensor) -> None:
    """Raise unless it can train these models, and ``loss_of`` is a function or None."""
    check_callable("trainer", trainer)
    if loss_of is not None:
        check_callable("loss_of", loss_of)
    if hasattr(trainer, "check_models"):
        trainer.check_models(models)


def as_rounds(evaluate_every: int | Container[int] | None) -> int | Container[int] | None:
    """The rounds to measure metrics after, if they are valid."""
    # A string is a container as well, of characters.
    is_rounds = isinstance(evaluate_every, Container) and not isinstance(evaluate_every, str)
    if evaluate_every is None or is_rounds:
        return evaluate_every
    check_count("evaluate_every", evaluate_every, 1)
    return int(cast(int, evaluate_every))  # it may be a number of numpy


def as_metrics(metrics: object) -> dict[str, MetricFunction]:
    """A copy of the metrics, if they are functions by name; none for None."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be functions by name, a dict, found {describe(metrics)}")
    for name, metric in metrics.items():
        if not isinstance(name, str):
            raise ValueError(f"metrics must be functions by name, found {name!r} for a name")
        check_callable(f"metrics[{name!r}]", metric)
    return dict(metrics)


def is_drawn(name: str, setting: object) -> bool:
    """Whether a setting depends on the round: a function of the round, or an `EachRound`."""
    if isinstance(setting, type):
        expected = "a value or a function of the round"
        raise ValueError(f"{name} must be {expected}, found the class {setting.__name__}")
    return isinstance(setting, EachRound) or callable(setting)


def check_topology_setting(topology: object, n: int) -> None:
    """Raise unless it is a graph of n clients; one that depends on the round is checked then."""
    if not is_drawn("topology", topology):
        check_topology(topology, n)


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


def check_rule_setting(rule: object, n: int) -> None:
    """Raise unless it is a rule for n clients, or None."""
    if isinstance(rule, type):
        name = rule.__name__
        raise ValueError(f"rule must be a rule, found the class {name}; {name}() makes one")
    # Classes were excluded first: they have the methods that these protocols look for.
    if rule is not None and not isinstance(rule, Aggregator | MultiExchange):
        raise ValueError(f"rule must be a rule such as Median(), found {describe(rule)}")
    if isinstance(rule, PerClient):
        rule.check_clients(n)


def as_alpha(alpha: Any, rule: Any, models: Tensor) -> Any:
    """The weight of a client's own model if it is valid, by default that of the rule."""
    # A rule that is drawn later has its own default.
    if alpha is None and not isinstance(rule, EachRound):
        alpha = default_alpha(rule)
    if alpha is not None and not is_drawn("alpha", alpha):
        # For its errors only: every round converts alpha again.
        as_shares(alpha, models)
    return alpha


def check_gossip(gossip: object) -> None:
    """Raise unless it is a kind of gossip weights, a function of the topology, or None."""
    if isinstance(gossip, str):
        check_choice("gossip", gossip, KINDS)
    elif gossip is not None:
        check_callable("gossip", gossip)


def check_attack_setting(attack: object, malicious: object) -> None:
    """Raise unless it is None, or an attack of clients that are named."""
    if isinstance(attack, type):
        name = attack.__name__
        raise ValueError(f"attack must be an attack, found the class {name}; {name}() makes one")
    if attack is not None and not isinstance(attack, DataAttack | MessageAttack):
        expected = "a method forge or a method poison"
        raise ValueError(f"attack must have {expected}, found {describe(attack)}")
    if attack is not None and malicious is None:
        raise ValueError("malicious must say which clients attack, found None; [] is no client")


def are_unheard(malicious: Tensor, attack: Attack | None, trainer: Trainer) -> bool:
    """Whether malicious clients need no training, and the trainer can leave them out."""
    if attack is None or not malicious.any() or not hasattr(trainer, "train_into"):
        return False
    return not uses_malicious_models(attack, malicious=malicious)


@contextmanager
def unmodified_by(modifier: str, t: int, **shown: Tensor | None) -> Iterator[None]:
    """Raise if one of the shown tensors is modified in place in this block of round t.

    torch counts its own writes. A write through numpy shows only in the values, and so does any
    write to an inference tensor, which has no version. Values are compared in the rounds 0, 1, 2,
    4, 8, ...: code that modifies them rarely does so once only, and reading all models four times a
    round would take longer than some rules.
    """
    sums_bits = t & (t - 1) == 0
    before = {name: _content(x, sums_bits) for name, x in shown.items()}
    yield
    for name, x in shown.items():
        if _content(x, sums_bits) != before[name]:
            raise ValueError(f"{modifier} modified {name} in place; clone it first")


def _content(x: Tensor | None, sums_bits: bool) -> tuple[int | None, bytes]:
    """What changes if a tensor is modified: its version, and its bits if they are summed."""
    if x is None:
        return None, b""
    version = None if x.is_inference() else x._version
    return version, _bit_sums(x) if sums_bits else b""


def _bit_sums(x: Tensor) -> bytes:
    """Sums of the bits of a tensor, block by block; empty on devices that numpy cannot write to.

    Integer sums of 64 bits run at the speed of memory, five to ten times as fast as a checksum or
    a comparison with a copy. Sums of blocks also notice most permutations, such as sorting.
    """
    if x.device.type != "cpu":
        return b""
    values = x.detach().contiguous()
    if values.storage_offset():  # a view as 64-bit words must start at a multiple of 8 bytes
        values = values.clone()
    bits = values.flatten().view(torch.uint8)
    whole = len(bits) // (WORD * BLOCK_WORDS) * (WORD * BLOCK_WORDS)
    blocks = bits[:whole].view(torch.int64).view(-1, BLOCK_WORDS)
    # The rest is shorter than a block. Weights make its sum depend on the order of its bytes.
    weights = torch.arange(1, len(bits) - whole + 1, device="cpu")
    rest = (bits[whole:] * weights).sum()
    return torch.cat([blocks.sum(1), rest[None]]).numpy().tobytes()


def trainer_of_part(trainer: Trainer, part: Part) -> Trainer:
    """The trainer of the clients of this process."""
    if not isinstance(part, Shard):
        return trainer
    if not hasattr(trainer, "of_clients"):
        expected = "a method of_clients(clients, gather=...) to run in a group, as LocalSGD has"
        raise ValueError(f"trainer must have {expected}, found {type(trainer).__name__}")
    found: Trainer = trainer.of_clients(part.ids(part.n), gather=part.all_rows)
    return found


def prepare_trainer(trainer: Trainer, attack: Attack | None, malicious: Tensor) -> Trainer:
    """The trainer before its first round, with poisoned data if the attack is one on data."""
    # Two runs with one trainer must not share its momentum.
    if hasattr(trainer, "restarted"):
        trainer = trainer.restarted()
    clients = malicious.nonzero().flatten().tolist()
    if attack is None or not any(poisoners(attack, client) for client in clients):
        return trainer
    if not hasattr(trainer, "poisoned"):
        expected = "a method poisoned(attack, malicious), as LocalSGD has"
        raise ValueError(
            f"trainer must have {expected}, for {type(attack).__name__}, "
            f"an attack on data, found {type(trainer).__name__}"
        )
    poisoned: Trainer = trainer.poisoned(attack, malicious)
    return poisoned
