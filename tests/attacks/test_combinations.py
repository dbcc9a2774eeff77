"""Attacks in some rounds, by some clients, on models, and several at once."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import attacks
from tests.attack_rounds import knowledge, received_lies
from tests.graphs import complete, regular


@pytest.mark.parametrize(
    ("t", "active"), [(0, False), (2, False), (3, True), (6, True), (7, False), (9, False)]
)
def test_window(t: int, active: bool) -> None:
    """From start, before stop."""
    known = knowledge(regular(10, 4), 3, torch.float32, [0, 1], inputs={"t": t, "total": 10})
    window = attacks.Window(attacks.Zero(), start=3, stop=7)
    assert (window.forge(known) is not None) == active
    for (sender, _), found in received_lies(known, window).items():
        assert torch.equal(found, torch.zeros(3) if active else known.models[sender])


FLIP = attacks.LabelFlip({3: 5})


@pytest.mark.parametrize(
    "attack",
    [
        attacks.OnlyClients(FLIP, (0,)),
        attacks.Combined(attacks.Zero(), FLIP),
        attacks.InModelSpace(attacks.Window(FLIP, 0, 5)),
        attacks.Window(attacks.Combined(FLIP), 0, 5),
    ],
    ids=repr,
)
def test_window_rejects_combination(attack: Any) -> None:
    text = r"attack must have a method poison, found \w+, .* poisoners\(attack, client, t\)"
    with pytest.raises(ValueError, match=text):
        attacks.Window(attack, 0, 5).poison(torch.zeros(2, 1), torch.tensor([3, 3]))


@pytest.mark.parametrize(
    ("attack", "flips"),
    [
        (FLIP, True),
        (attacks.Window(FLIP, 0, 1), True),
        (attacks.Zero(), False),
        (
            attacks.Combined(
                attacks.Zero(), attacks.OnlyClients(attacks.InModelSpace(attacks.MinMax()), (0,))
            ),
            False,
        ),
    ],
    ids=repr,
)
def test_window_poisons(attack: Any, flips: bool) -> None:
    labels = attacks.Window(attack, 0, 5).poison(torch.zeros(2, 1), torch.tensor([3, 3]))[1]
    assert labels.tolist() == [5 if flips else 3] * 2


@pytest.mark.parametrize(
    "attack", [attacks.Zero(), attacks.LIE(z=1.0), attacks.Mimic(), attacks.MinMax()], ids=repr
)
def test_only_clients(attack: Any) -> None:
    """The others tell the truth, and what the followers say does not depend on who else follows."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    everybody = received_lies(known, attack)
    for (sender, victim), found in received_lies(
        known, attacks.OnlyClients(attack, clients=[0, 7])
    ).items():
        expected = known.models[3] if sender == 3 else everybody[sender, victim]
        assert torch.allclose(found, expected, rtol=1e-12), f"{sender} -> {victim}"


@pytest.mark.parametrize(
    "kind", [list, set, iter, torch.tensor, np.array], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("masked", [False, True], ids=["ids", "mask"])
@settings(max_examples=20)
@given(clients=st.lists(st.integers(0, 6), unique=True))
def test_only_clients_types(kind: Any, masked: bool, clients: list[int]) -> None:
    """Masks and ids, as everywhere; who is named is poisoned, and nobody else, and equal attacks
    are equal.
    """
    if masked and kind is set:
        return
    flip, known = attacks.LabelFlip({3: 5}), knowledge(complete(7), 2, torch.float32, [0, 3, 6])
    attack = attacks.OnlyClients(
        flip, kind([i in clients for i in range(7)] if masked else clients)
    )
    assert attack == attacks.OnlyClients(flip, clients=tuple(clients))
    assert hash(attack) == hash(attacks.OnlyClients(flip, clients=tuple(clients)))
    assert [i for i in range(7) if attacks.poisoners(attack, i)] == sorted(clients)
    lies = dataclasses.replace(attack, attack=attacks.Zero()).forge(known)
    assert ([] if lies is None else lies.senders.unique().tolist()) == sorted(
        {0, 3, 6} & set(clients)
    )


def test_only_benign_clients() -> None:
    """Benign clients follow no attack."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    for (sender, _), found in received_lies(
        known, attacks.OnlyClients(attacks.Zero(), clients=[1, 2])
    ).items():
        assert torch.equal(found, known.models[sender])


@pytest.mark.parametrize(
    "attack",
    [attacks.Zero(), attacks.LIE(z=1.0), attacks.Dissensus(), attacks.KrumAttack(noise=0.0)],
    ids=repr,
)
def test_in_model_space(attack: Any) -> None:
    """A victim that follows the update arrives at the lie about its model."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    origin = known.previous
    assert origin is not None
    sent = known.models - origin
    updates = dataclasses.replace(
        known, models=sent, previous=torch.zeros_like(sent), origin=origin
    )
    expected, found = (
        received_lies(known, attack),
        received_lies(updates, attacks.InModelSpace(attack)),
    )
    assert found.keys() == expected.keys()
    for sender, victim in found:
        torch.testing.assert_close(origin[victim] + found[sender, victim], expected[sender, victim])
    plain = received_lies(known, attacks.InModelSpace(attack))
    assert all(torch.equal(plain[edge], expected[edge]) for edge in expected)


def test_combined() -> None:
    """Each malicious client follows the last of the attacks that has something for it."""
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7, 8])
    mixed = attacks.Combined(
        attacks.OnlyClients(attacks.Zero(), clients=[0, 3]),
        attacks.OnlyClients(attacks.Mimic(target=5), clients=[3]),
        attacks.OnlyClients(attacks.NonFinite(value=math.inf), clients=[7]),
    )
    says = {
        0: torch.zeros(4),
        3: known.models[5],
        7: torch.full((4,), math.inf),
        8: known.models[8],
    }
    lies = received_lies(known, mixed)
    assert {sender for sender, _ in lies} == {0, 3, 7, 8}
    for (sender, victim), found in lies.items():
        assert torch.equal(found, says[sender].to(found)), f"{sender} -> {victim}"


def test_combined_order() -> None:
    known = knowledge(regular(10, 6), 4, torch.float64, [0, 3, 7])
    mimics, flips = received_lies(known, attacks.Mimic()), received_lies(known, attacks.SignFlip())
    lies = received_lies(
        known,
        attacks.Combined(attacks.SignFlip(), attacks.OnlyClients(attacks.Mimic(), clients=[3])),
    )
    for edge, found in lies.items():
        assert torch.equal(found, (mimics if edge[0] == 3 else flips)[edge])
    overridden = received_lies(
        known,
        attacks.Combined(attacks.OnlyClients(attacks.Mimic(), clients=[3]), attacks.SignFlip()),
    )
    for edge, found in overridden.items():
        assert torch.equal(found, flips[edge])


def test_combined_windows() -> None:
    """One attack in the first half of the rounds, another one in the second."""
    halves = attacks.Combined(
        attacks.Window(attacks.Zero(), 0, 5), attacks.Window(attacks.Mimic(), 5, 10)
    )
    for t in range(11):
        known = knowledge(complete(5), 2, torch.float32, [4], inputs={"t": t, "total": 11})
        expected = known.models[4] if t == 10 else torch.zeros(2) if t < 5 else known.models[0]
        assert torch.equal(received_lies(known, halves)[4, 0], expected)
    assert halves.forge(known) is None


def test_data_attacks_send_no_lies() -> None:
    known = knowledge(complete(5), 3, torch.float32, [0, 1])
    flip = attacks.LabelFlip({3: 5})
    assert attacks.OnlyClients(flip, clients=(0,)).forge(known) is None
    assert attacks.InModelSpace(flip).forge(known) is None
    assert (
        attacks.InModelSpace(attacks.Window(attacks.Zero(), 5, 9)).forge(
            dataclasses.replace(known, origin=known.models)
        )
        is None
    )
    assert attacks.poisoners(attacks.InModelSpace(flip), client=0) == (flip,)
    assert attacks.Combined(flip, flip).forge(known) is None
    both = attacks.Combined(flip, attacks.OnlyClients(attacks.Zero(), clients=(1,))).forge(known)
    assert both is not None
    assert both.senders.unique().tolist() == [1]
