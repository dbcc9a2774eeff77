"""Which attacks use the models of malicious clients, and how combinations compose."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge, uses_malicious_models
from equipoise.testing import MESSAGE_LAWS
from equipoise.testing._attacked_rounds import (
    delivered,
    random_knowledge,
    with_other_malicious_models,
    with_seed,
)
from tests.attack_cases import edges_to_victims

FLIP = attacks.LabelFlip({3: 5})
NOISE = attacks.FeatureNoise()
BACKDOOR = attacks.Backdoor(attacks.EveryNth())
ZERO = attacks.Zero()
KRUM = attacks.KrumAttack()

UNUSED = [
    attacks.Gaussian(),
    attacks.TrimAttack(form="fang"),
    attacks.TrimAttack(form="fang", random=False, scope="global", space="update"),
    attacks.LIE(),
    attacks.LIE(scope="global", space="update"),
    attacks.Dissensus(),
    attacks.Dissensus(weights="metropolis"),
    attacks.Isolation(),
    attacks.Spectral(),
    attacks.SignFlip(),
    attacks.IPM(),
    attacks.IPM(scope="global", space="model"),
    attacks.MinMax(),
    attacks.MinMax(perturbation="std", scope="global"),
    attacks.MinSum(),
    attacks.MinSum(perturbation="sign", space="update"),
    attacks.Mimic(),
    attacks.NonFinite(),
    ZERO,
]
USED = [
    attacks.KrumAttack(noise=0.0),
    attacks.KrumAttack(form="fang", noise=0.0, space="update"),
    attacks.KrumAttack(form="fang", noise=0.0, scope="global"),
    attacks.TrimAttack(random=False),
    attacks.TrimAttack(scope="global", space="update"),
    BACKDOOR,
]


def large_round(dtype: torch.dtype) -> Knowledge:
    """A round with more than one block of columns, in the fast paths of the kernels."""
    return random_knowledge(20, 5000, [0, 3, 4, 11], p=0.6, dtype=dtype)


def central_round() -> Knowledge:
    """A round in which malicious clients have the mean model and update, which Krum chooses."""
    known = random_knowledge(8, 100, [0, 5], p=1.0)
    malicious = known.malicious_mask
    models, previous = (
        vectors.where(~malicious[:, None], vectors[~malicious].mean(0))
        for vectors in (known.models, known.previous)
    )
    return dataclasses.replace(known, models=models, previous=previous)


def lies_to_benign(attack: Any, known: Knowledge) -> Tensor:
    messages = delivered(known, attack.forge(with_seed(known, 0)))
    return torch.stack([messages[edge] for edge in edges_to_victims(known)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attack", UNUSED, ids=repr)
def test_unused(attack: Any, dtype: torch.dtype) -> None:
    assert attack.uses_malicious_models is False
    assert not uses_malicious_models(attack)
    MESSAGE_LAWS["unused_models"](attack, large_round(dtype))


@pytest.mark.parametrize("attack", USED, ids=repr)
def test_used(attack: Any) -> None:
    """The lies change with the models of malicious clients."""
    assert attack.uses_malicious_models is True
    assert uses_malicious_models(attack)
    known = central_round()
    lies = lies_to_benign(attack, known)
    for other in with_other_malicious_models(known):
        assert not torch.equal(lies_to_benign(attack, other), lies)


def test_adaptive() -> None:
    """It asks a rule about all clients. A rule may use models that a victim does not receive."""

    def rule(own: Tensor, inbox: eq.Inbox, **_: Any) -> eq.Aggregated:
        limit = own.norm(dim=1).median()
        lengths = inbox.bank[inbox.slots].norm(dim=2)
        return eq.Aggregated(own, (inbox.mask & (lengths <= limit)).double())

    attack = attacks.Adaptive(rule=rule)
    assert attack.uses_malicious_models is True
    known = random_knowledge(5, 6, [0, 1], p=1.0)
    lies = lies_to_benign(attack, known)
    huge = list(with_other_malicious_models(known))[-1]
    assert not torch.equal(lies_to_benign(attack, huge), lies)


def test_tuned() -> None:
    """It asks a rule about all clients, as `Adaptive` does."""

    def rule(own: Tensor, inbox: eq.Inbox, **_: Any) -> eq.Aggregated:
        limit = own.abs().max()
        return eq.Aggregated(eq.Gossip()(own, inbox).model.clamp(-limit, limit), None)

    attack = attacks.Tuned(attacks.Dissensus())
    assert attack.uses_malicious_models is True
    known = dataclasses.replace(random_knowledge(5, 6, [0, 1], p=1.0), rule=rule)
    lies = lies_to_benign(attack, known)
    huge = list(with_other_malicious_models(known))[-1]
    assert not torch.equal(lies_to_benign(attack, huge), lies)


@pytest.mark.parametrize("attack", [FLIP, NOISE], ids=repr)
def test_data_attacks(attack: Any) -> None:
    """Malicious clients send the models that they train."""
    assert uses_malicious_models(attack)
    assert not isinstance(attack, attacks.MessageAttack)


def test_every_attack_is_listed() -> None:
    listed = {type(attack).__name__ for attack in [*UNUSED, *USED, FLIP, NOISE]}
    listed |= {"Adaptive", "Tuned"}
    combinations = {"Combined", "InModelSpace", "OnlyClients", "Window"}
    protocols = {"DataAttack", "MessageAttack"}
    public = {name: getattr(attacks, name) for name in attacks.__all__}
    found = {name for name, x in public.items() if hasattr(x, "forge") or hasattr(x, "poison")}
    assert found - combinations - protocols == listed
    assert len(listed) == 19


def test_no_finite_benign_model() -> None:
    """A promise is for rounds in which there is something to learn from."""
    known = random_knowledge(4, 3, [0])
    broken = known.models.clone()
    broken[1:] = torch.nan
    assert attacks.LIE().forge(dataclasses.replace(known, models=broken)) is None


class Undeclared:
    def __repr__(self) -> str:  # the name of a case must not hold an address
        return "Undeclared()"

    def forge(self, known: Knowledge) -> eq.Lies:
        return eq.Lies.to_all(torch.zeros_like(known.models[0]))


class Both(Undeclared):
    """It declares too much: poisoned data have a purpose."""

    uses_malicious_models = False

    def __repr__(self) -> str:  # the name of a case must not hold an address
        return "Both()"

    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        return x, y


def only(attack: Any, *clients: int) -> attacks.OnlyClients:
    return attacks.OnlyClients(attack, clients)


HALVES = attacks.Combined(attacks.Window(ZERO, 0, 5), attacks.Window(attacks.LIE(), 5, 10))


@pytest.mark.parametrize(
    ("attack", "malicious", "rounds", "expected"),
    [
        (Undeclared(), [1], [0], True),
        (Both(), [1], [0], True),
        # Rounds.
        (attacks.Window(ZERO, 2, 5), None, None, True),
        (attacks.Window(ZERO, 2, 5), None, range(2, 5), False),
        (attacks.Window(ZERO, 2, 5), None, range(2, 6), True),
        (attacks.Window(ZERO, 2, 5), None, range(1, 5), True),
        (attacks.Window(KRUM, 2, 5), None, range(2, 5), True),
        (attacks.Window(FLIP, 2, 5), None, range(2, 5), True),
        (HALVES, None, None, True),
        (HALVES, None, range(10), False),
        (HALVES, None, range(11), True),
        (attacks.Combined(ZERO, attacks.Window(KRUM, 0, 5)), None, None, True),
        (attacks.Combined(ZERO, attacks.Window(KRUM, 0, 5)), None, range(4, 9), True),
        (attacks.Combined(ZERO, attacks.Window(KRUM, 0, 5)), None, range(5, 9), False),
        # Clients.
        (only(ZERO, 1, 2), None, None, True),
        (only(ZERO, 1, 2), [1, 2], None, False),
        (only(ZERO, 1, 2), torch.tensor([False, True, False]), None, False),
        (only(ZERO, 1, 2), [1, 2, 3], None, True),
        (only(KRUM, 1, 2), [1], None, True),
        (attacks.Combined(only(ZERO, 1), only(attacks.LIE(), 2)), [1, 2], None, False),
        (attacks.Combined(only(ZERO, 1), only(attacks.LIE(), 2)), [1, 2, 3], None, True),
        (attacks.Combined(only(ZERO, 1), only(KRUM, 2)), [1, 2], None, True),
        (attacks.Combined(only(attacks.LIE(), 1), ZERO), None, None, False),
        (only(only(ZERO, 1, 2), 2, 3), [2], None, False),
        (only(only(ZERO, 1, 2), 2, 3), [1, 2], None, True),
        # Clients in some rounds.
        (
            attacks.Combined(only(ZERO, 1), attacks.Window(only(ZERO, 2), 3, 5)),
            [1, 2],
            range(3, 5),
            False,
        ),
        (
            attacks.Combined(only(ZERO, 1), attacks.Window(only(ZERO, 2), 3, 5)),
            [1, 2],
            range(2, 5),
            True,
        ),
        # Data attacks, and several attacks on the same edges.
        (attacks.Combined(), None, None, True),
        (attacks.Combined(ZERO, FLIP), None, None, True),
        (attacks.Combined(ZERO, KRUM), None, None, True),
        (attacks.Combined(KRUM, ZERO), None, None, True),
        (attacks.Combined(ZERO, Undeclared()), None, None, True),
        (attacks.Combined(ZERO, attacks.LIE()), None, None, False),
        # Spaces.
        (attacks.InModelSpace(attacks.LIE()), None, None, False),
        (attacks.InModelSpace(KRUM), None, None, True),
        (attacks.InModelSpace(FLIP), None, None, True),
        # Nobody, never.
        (ZERO, [], None, False),
        (attacks.Window(ZERO, 2, 5), None, [], False),
    ],
    ids=repr,
)
def test_combinations(attack: Any, malicious: Any, rounds: Any, expected: bool) -> None:
    assert uses_malicious_models(attack, malicious=malicious, rounds=rounds) is expected


@pytest.mark.parametrize(
    "attack",
    [
        HALVES,
        attacks.Combined(only(attacks.LIE(), 0, 3), only(attacks.Gaussian(), 4, 11)),
        attacks.InModelSpace(attacks.Combined(attacks.MinMax(), only(attacks.Mimic(), 3))),
        attacks.Window(attacks.InModelSpace(attacks.Dissensus()), 0, 5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("sends_updates", [False, True], ids=["models", "updates"])
def test_unused_in_combination(attack: Any, sends_updates: bool) -> None:
    known = large_round(torch.float64)
    assert not uses_malicious_models(attack, malicious=known.malicious, rounds=[2])
    if sends_updates:
        sent = known.models - known.previous
        zeros = torch.zeros_like(sent)
        known = dataclasses.replace(known, models=sent, previous=zeros, origin=known.previous)
    MESSAGE_LAWS["unused_models"](attack, known)


def test_used_in_combination() -> None:
    """Each part of a combination that is not forged, or looks, shows in the messages."""
    known = central_round()
    other = list(with_other_malicious_models(known))[1]
    for attack in (
        attacks.Window(ZERO, 5, 9),  # t = 2
        only(ZERO, 5),
        attacks.Combined(only(ZERO, 5), attacks.Window(ZERO, 5, 9)),
        attacks.Combined(only(KRUM, 0), only(ZERO, 5)),
        attacks.InModelSpace(KRUM),
    ):
        assert uses_malicious_models(attack, malicious=known.malicious, rounds=[2])
        assert not torch.equal(lies_to_benign(attack, other), lies_to_benign(attack, known))


def test_invalid_clients() -> None:
    with pytest.raises(ValueError, match="malicious must be at least 0, found -1"):
        uses_malicious_models(ZERO, malicious=[-1])
    with pytest.raises(ValueError, match="malicious must name every client once, found client 1"):
        uses_malicious_models(ZERO, malicious=[1, 1])
