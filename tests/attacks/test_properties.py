"""Properties of every message attack, for any graph, models and malicious clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from equipoise.testing import MESSAGE_LAWS, attacked_rounds, check_attack
from equipoise.testing._attacked_rounds import delivered, random_knowledge, with_rule, with_seed
from tests.attack_cases import ATTACKS, edges_to_victims, few_examples

RANDOM = ["Gaussian", "TrimAttack", "TrimAttack-fang", "TrimAttack-global"]


every_attack = pytest.mark.parametrize(
    "attack", [attack for attack, _ in ATTACKS.values()], ids=ATTACKS
)


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_benign_messages_unchanged(attack: Any, known: Knowledge) -> None:
    """Every message of a benign client is its model, bit by bit."""
    for (sender, receiver), message in delivered(known, attack.forge(with_seed(known, 0))).items():
        if not known.malicious_mask[sender]:
            assert torch.equal(message, known.models[sender]), f"{sender} -> {receiver}"


@pytest.mark.parametrize("law", MESSAGE_LAWS)
@every_attack
def test_attacks_obey(attack: Any, law: str) -> None:
    check_attack(attack, laws=[law], examples=5)


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_lies_are_finite(attack: Any, known: Knowledge) -> None:
    used = delivered(known, attack.forge(with_seed(known, 0)))
    for edge in edges_to_victims(known):
        assert bool(used[edge].isfinite().all()) != isinstance(attack, attacks.NonFinite), (
            f"{edge}: {used[edge]}"
        )


@pytest.mark.parametrize(("attack", "limit"), ATTACKS.values(), ids=ATTACKS)
@few_examples
@given(known=attacked_rounds())
def test_lies_are_stored_once(
    attack: Any, limit: Callable[[Knowledge], int], known: Knowledge
) -> None:
    lies = attack.forge(with_seed(known, 0))
    assert lies is None or len(lies.rows) <= limit(known)


@pytest.mark.parametrize("name", RANDOM)
@few_examples
@given(known=attacked_rounds(dtypes=(torch.float64,)))
def test_seeds_differ(name: str, known: Knowledge) -> None:
    attack = ATTACKS[name][0]
    first, second = (delivered(known, attack.forge(with_seed(known, seed))) for seed in (0, 1))
    for edge in edges_to_victims(known):
        assert not torch.equal(first[edge], second[edge]), f"{edge}"


@pytest.mark.parametrize("name", RANDOM)
def test_rounds_differ(name: str) -> None:
    """The generator moves on, and without one torch's own is used."""
    known = with_seed(random_knowledge(6, 5, [0, 1]), 0)
    unseeded = dataclasses.replace(known, generator=None)
    attack = ATTACKS[name][0]
    for source in (known, unseeded):
        assert not torch.equal(attack.forge(source).rows, attack.forge(source).rows)
    torch.manual_seed(3)
    rows = attack.forge(unseeded).rows
    torch.manual_seed(3)
    assert torch.equal(attack.forge(unseeded).rows, rows)


@pytest.mark.parametrize(
    "name", ["LIE", "Dissensus", "MinMax", "Zero", "KrumAttack", "Adaptive", "TrimAttack-fixed"]
)
def test_generator_is_unused(name: str) -> None:
    known = with_seed(random_knowledge(6, 5, [0, 1]), 0)
    ATTACKS[name][0].forge(known)
    assert torch.equal(known.generator.get_state(), torch.Generator().manual_seed(0).get_state())


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_nobody_malicious(attack: Any, known: Knowledge) -> None:
    assert attack.forge(dataclasses.replace(known, malicious=[])) is None


@every_attack
@few_examples
@given(known=attacked_rounds())
def test_everybody_malicious(attack: Any, known: Knowledge) -> None:
    """An attack without a victim is no error."""
    full = with_seed(dataclasses.replace(known, malicious=range(known.topology.n)), 0)
    messages = delivered(full, attack.forge(full))
    assert set(messages) == {tuple(edge) for edge in full.topology.edges().tolist()}


@every_attack
def test_unreachable(attack: Any) -> None:
    """Malicious clients that only hear benign ones, or only talk among themselves, change nothing
    for these.
    """
    islands = eq.Topology.from_edges(7, [(0, 1), (1, 2), (2, 0), (3, 4), (5, 6)])
    one_way = eq.Topology.from_edges(
        7, [(0, 1), (1, 2), (2, 0), (2, 3), (1, 4), (5, 6), (6, 5)], directed=True
    )
    for topology in (islands, one_way):
        known = with_seed(
            dataclasses.replace(random_knowledge(7, 3, [3, 4, 5, 6]), topology=topology), 0
        )
        assert not len(known.victims)
        for (sender, receiver), message in delivered(known, attack.forge(known)).items():
            if not known.malicious_mask[receiver]:
                assert torch.equal(message, known.models[sender])


@every_attack
def test_no_benign_neighbors(attack: Any) -> None:
    """The leaves of a star with a malicious hub, and a client between two malicious ones."""
    star = eq.Topology.from_edges(5, [(0, i) for i in range(1, 5)])
    path = eq.Topology.from_edges(5, [(0, 1), (1, 2), (3, 4)])
    for topology, malicious, victims in ((star, [0], [1, 2, 3, 4]), (path, [0, 2], [1])):
        known = dataclasses.replace(random_knowledge(5, 3, malicious), topology=topology)
        known = with_seed(with_rule(known, eq.Balance()), 0)
        assert known.victims.tolist() == victims
        for (sender, _), message in delivered(known, attack.forge(known)).items():
            if known.malicious_mask[sender] and not isinstance(attack, attacks.NonFinite):
                assert message.isfinite().all()


def test_lone_victim_observes_itself() -> None:
    """Without benign neighbors, lies are made from the victim's own model."""
    known = dataclasses.replace(
        random_knowledge(3, 4, [0]), topology=eq.Topology.from_edges(3, [(0, 1), (0, 2)])
    )
    own, before = known.models[1], known.previous[1]
    expected = {
        attacks.LIE(z=2.0): own,
        attacks.MinMax(): own,
        attacks.MinSum(space="update"): own,
        attacks.Dissensus(): own,
        attacks.SignFlip(space="model"): -own,
        attacks.SignFlip(): before - (own - before),
    }
    for attack, lie in expected.items():
        found = delivered(known, attack.forge(known))[0, 1]
        assert torch.allclose(found, lie, rtol=1e-12), attack


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ATTACKS)
def test_half_precision_rounds_once(name: str, dtype: torch.dtype) -> None:
    half = dataclasses.replace(
        random_knowledge(12, 40, [0, 1, 2], dtype=dtype), generator=torch.Generator().manual_seed(5)
    )
    assert half.previous is not None
    wide = dataclasses.replace(half, models=half.models.float(), previous=half.previous.float())
    found, attack = ATTACKS[name][0].forge(half), ATTACKS[name][0]
    wide.generator.manual_seed(5)
    expected = attack.forge(wide)
    assert found.rows.dtype == dtype
    if "Adaptive" in name or "Tuned" in name:  # they ask a rule that hears rounded lies
        torch.testing.assert_close(found.rows.float(), expected.rows, rtol=0.05, atol=0.02)
    else:
        assert torch.equal(found.rows.nan_to_num(), expected.rows.to(dtype).nan_to_num())
