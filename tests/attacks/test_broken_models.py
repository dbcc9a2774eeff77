"""Attacks on rounds with non-finite or huge models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from tests.attack_rounds import assert_agrees, knowledge, received_lies
from tests.graphs import complete


def survivors() -> dict[str, Any]:
    """Attacks that learn from benign models, in all their forms."""
    return {
        repr(attack): attack
        for attack in (
            *(
                attacks.LIE(z=1.0),
                attacks.IPM(),
                attacks.SignFlip(),
                attacks.MinMax(),
                attacks.MinSum(),
            ),
            *(attacks.Dissensus(), attacks.Spectral(), attacks.Adaptive(rule=eq.Balance(kappa=0))),
            *(attacks.TrimAttack(form, random=False) for form in ("group", "fang")),
            *(attacks.KrumAttack(form, noise=0.0) for form in ("group", "fang")),
        )
    }


@pytest.mark.parametrize("attack", survivors().values(), ids=survivors())
def test_broken_victim_is_contained(attack: Any) -> None:
    """On a ring, client 2 has only malicious neighbors."""
    known = knowledge(complete(8), 4, torch.float32, [1, 3])
    models = known.models.index_fill(0, torch.tensor(2), torch.nan)
    broken = dataclasses.replace(known, models=models, topology=eq.Topology.ring(8))
    lies = attack.forge(broken)
    assert sorted(set(lies.receivers.tolist())) == [0, 2, 4]
    for receiver, row in zip(lies.receivers.tolist(), lies.rows[lies.which], strict=True):
        assert receiver == 2 or row.isfinite().all(), receiver


@pytest.mark.parametrize("broken", [[1], [1, 2], [2, 5], [1, 2, 4]], ids=str)
def test_mimic_skips_broken_models(broken: list[int]) -> None:
    known = knowledge(complete(7), 4, torch.float32, [0, 3])
    models = known.models.index_fill(0, torch.tensor(broken), torch.inf)
    assert_agrees(attacks.Mimic(), dataclasses.replace(known, models=models))
    alive = next(i for i in (1, 2, 4, 5, 6) if i not in broken)
    assert torch.equal(
        received_lies(dataclasses.replace(known, models=models), attacks.Mimic())[0, 6],
        known.models[alive],
    )


def test_mimic_without_models() -> None:
    models = torch.full((3, 4), torch.nan).index_fill(0, torch.tensor(1), 1.0)
    assert attacks.Mimic().forge(Knowledge(models, eq.Topology.complete(3), [1])) is None


@pytest.mark.parametrize(
    "attack", [attacks.TrimAttack(random=False), attacks.KrumAttack(noise=0.0)], ids=repr
)
def test_broken_malicious_is_ignored(attack: Any) -> None:
    known = knowledge(complete(6), 4, torch.float32, [0, 1])
    broken = dataclasses.replace(
        known, models=known.models.index_fill(0, torch.tensor(0), torch.nan), previous=None
    )
    for edge, found in received_lies(broken, attack).items():
        assert found.isfinite().all(), edge
        assert (found != 0).any(), edge


@pytest.mark.parametrize("scope", ["receiver", "global"])
@pytest.mark.parametrize(
    "name", ["LIE", "IPM", "SignFlip", "MinMax", "MinSum", "KrumAttack", "TrimAttack", "Adaptive"]
)
def test_no_finite_benign_models(name: str, scope: str) -> None:
    models = torch.full((3, 4), torch.nan).index_fill(0, torch.tensor(1), 1.0)
    known = Knowledge(
        models, eq.Topology.complete(3), [1], previous=models, rule=eq.Balance(kappa=0)
    )
    assert getattr(attacks, name)(scope=scope).forge(known) is None


def test_global_base_is_finite() -> None:
    known = knowledge(complete(8), 4, torch.float32, [1, 3])
    assert known.previous is not None
    lost = torch.tensor(5)
    models, previous = (x.index_fill(0, lost, torch.nan) for x in (known.models, known.previous))
    broken = dataclasses.replace(known, models=models, previous=previous)
    lies = attacks.KrumAttack("fang", noise=0.0, scope="global").forge(broken)
    assert lies is not None
    assert lies.rows.isfinite().all()


@pytest.mark.parametrize(
    "attack",
    [attacks.LIE(z=1.0, scope="global"), attacks.MinSum(perturbation="std", scope="global")],
    ids=repr,
)
def test_huge_deviations(attack: Any) -> None:
    known = knowledge(complete(6), 3, torch.float32, [0])
    huge = dataclasses.replace(
        known, models=known.models * torch.tensor([1, 1, 1e30, 1, 1, 1])[:, None], previous=None
    )
    lies = attack.forge(huge)
    assert lies.rows.isfinite().all()
    if isinstance(attack, attacks.LIE):
        benign = huge.models[1:].double()
        torch.testing.assert_close(
            lies.rows[0].double(), benign.mean(0) - benign.std(0, correction=0), rtol=1e-5, atol=0
        )
