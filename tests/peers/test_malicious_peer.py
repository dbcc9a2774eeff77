"""Peers that lie with the attacks of the library."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.peers import InMemoryNetwork, MaliciousPeer, Peer

MODELS = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0], [0.5, 0.25]])
NAMES = ("a", "b", "c", "m")


def attacked_round(attack: Any, *, t: int = 0, **options: Any) -> list[eq.Inbox]:
    """The inboxes of three benign peers whose fourth neighbor is malicious."""
    network = InMemoryNetwork()
    found: list[Peer] = []
    for name in NAMES:
        others = [x for x in NAMES if x != name]
        transport = network.transport(name)
        if name == "m":
            found.append(MaliciousPeer(name, others, attack, transport=transport, **options))
        else:
            found.append(Peer(name, others, transport=transport))
    with ThreadPoolExecutor(4) as pool:
        inboxes = pool.map(lambda x, own: x.exchange(own, t, deadline=60.0), found, MODELS)
        return list(inboxes)[:3]


def lie_in(inbox: eq.Inbox) -> torch.Tensor:
    assert inbox.senders[0, -1] == 3
    return inbox.bank[inbox.slots[0, -1]]


@dataclass(frozen=True)
class Recording:
    """Sends to each client its id, and remembers what it knew."""

    seen: list[eq.attacks.Knowledge]

    def forge(self, known: eq.attacks.Knowledge) -> eq.Lies:
        self.seen.append(known)
        ids = torch.arange(known.topology.n).float()
        return eq.Lies.per_receiver(ids[:, None].expand_as(known.models))


def test_each_neighbor_gets_its_lie() -> None:
    inboxes = attacked_round(Recording([]))
    assert [lie_in(inbox).tolist() for inbox in inboxes] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


def test_attack_knows_messages_of_this_round() -> None:
    attack = Recording([])
    attacked_round(attack, inputs={"total": 9}, rule=eq.Median(), t=4)
    (known,) = attack.seen
    assert known.models.equal(MODELS)
    assert known.malicious_mask.tolist() == [False, False, False, True]
    assert known.victims.tolist() == [0, 1, 2]
    assert known.inputs == {"total": 9, "t": 4}


def test_absent_models_are_unknown() -> None:
    attack = Recording([])
    transport = InMemoryNetwork().transport("m")
    with MaliciousPeer("m", ["a"], attack, transport=transport) as peer:
        peer.exchange(MODELS[0], 0, deadline=0.02)
    assert attack.seen[0].finite_benign.tolist() == [False, False]


def test_pace_is_that_of_benign_peers() -> None:
    transport = InMemoryNetwork().transport("m")
    with MaliciousPeer("m", ["a"], Recording([]), transport=transport) as peer:
        begun = time.monotonic()
        peer.exchange(MODELS[0], 0, deadline=0.2)
    assert time.monotonic() - begun >= 0.2


def test_previous_models_are_those_of_last_round() -> None:
    attack = Recording([])
    transport = InMemoryNetwork().transport("m")
    with MaliciousPeer("m", ["a"], attack, transport=transport) as peer:
        for t in range(2):
            peer.exchange(MODELS[t], t, deadline=0.02)
    first, second = attack.seen
    assert first.previous is not None
    assert first.previous[1].equal(MODELS[0])
    assert second.previous is not None
    assert second.previous[1].equal(MODELS[0])


ATTACKS = [
    eq.attacks.Adaptive(),
    eq.attacks.Backdoor(eq.attacks.EveryNth(2)),
    eq.attacks.Combined(eq.attacks.FeatureNoise(), eq.attacks.Zero()),
    eq.attacks.Dissensus(),
    eq.attacks.Gaussian(),
    eq.attacks.InModelSpace(eq.attacks.SignFlip()),
    eq.attacks.IPM(),
    eq.attacks.Isolation(),
    eq.attacks.KrumAttack(),
    eq.attacks.LIE(),
    eq.attacks.Mimic(),
    eq.attacks.MinMax(),
    eq.attacks.MinSum(),
    eq.attacks.NonFinite(),
    eq.attacks.OnlyClients(eq.attacks.Zero(), [3]),
    eq.attacks.SignFlip(),
    eq.attacks.Spectral(),
    eq.attacks.TrimAttack(),
    eq.attacks.Tuned(eq.attacks.Dissensus()),
    eq.attacks.Window(eq.attacks.Zero(), 0, 9),
    eq.attacks.Zero(),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_attacks_of_the_library_work(attack: Any) -> None:
    options = {"rule": eq.Balance(), "inputs": {"total": 9}}
    inboxes = attacked_round(attack, **options)
    assert all(inbox.mask.all() for inbox in inboxes)
    assert not any(lie_in(inbox).equal(MODELS[3]) for inbox in inboxes)


def test_all_attacks_on_messages_are_tried() -> None:
    found = {name for name in eq.attacks.__all__ if hasattr(getattr(eq.attacks, name), "forge")}
    assert found - {"MessageAttack"} == {type(attack).__name__ for attack in ATTACKS}


def test_seed_determines_the_lies() -> None:
    first, again, other = (
        lie_in(attacked_round(eq.attacks.Gaussian(), seed=seed)[0]) for seed in (1, 1, 2)
    )
    assert first.equal(again)
    assert not first.equal(other)


def test_data_attack_is_an_error() -> None:
    attack = eq.attacks.FeatureNoise()
    transport = InMemoryNetwork().transport("m")
    with pytest.raises(ValueError, match="attack must be an attack on messages"):
        MaliciousPeer("m", ["a"], attack, transport=transport)  # type: ignore[arg-type]


def test_malicious_peer_keeps_the_pace_of_benign_ones() -> None:
    transport = InMemoryNetwork().transport("m")
    begun = time.monotonic()
    with MaliciousPeer("m", ["a"], eq.attacks.Zero(), transport=transport) as peer:
        peer.exchange(torch.ones(2), 0, deadline=0.2)
        assert time.monotonic() - begun >= 0.2
