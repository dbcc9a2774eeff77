"""Every law catches a wrong attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.attacks import Knowledge
from equipoise.testing import DATA_LAWS, MESSAGE_LAWS, check_attack


class Wrong:
    """An attack that does one thing wrong."""

    def __init__(self, lie: Callable[[Knowledge], Tensor]) -> None:
        self.lie = lie

    def forge(self, known: Knowledge) -> eq.Lies:
        return eq.Lies.to_all(self.lie(known))


class Listed:
    def forge(self, known: Knowledge) -> Any:
        return [[0.0] * known.models.shape[1]]


class Misaddressed:
    def forge(self, known: Knowledge) -> eq.Lies:
        rows = torch.zeros_like(known.models)
        return eq.Lies.per_edge(torch.tensor([[0, known.topology.n]]), rows[:1])


class Declared(Wrong):
    """It wrongly declares that it does not use malicious models."""

    uses_malicious_models = False


class Silent:
    uses_malicious_models = False

    def forge(self, known: Knowledge) -> None:
        return None


class Forgetful:
    """It lies to all victims but the last."""

    uses_malicious_models = False

    def forge(self, known: Knowledge) -> eq.Lies:
        return eq.Lies.per_receiver(torch.zeros_like(known.models), only=known.victims[:-1])


WRONG_ATTACKS: dict[str, tuple[Any, str]] = {
    "float32 always": (Wrong(lambda known: torch.zeros(known.models.shape[1])), "fitting"),
    "one parameter too many": (
        Wrong(lambda known: known.models.new_zeros(known.models.shape[1] + 1)),
        "fitting",
    ),
    "no lies but a list": (Listed(), "fitting"),
    "to nobody": (Misaddressed(), "fitting"),
    "in place": (Wrong(lambda known: known.models[0].neg_()), "unchanged"),
    "global randomness": (Wrong(lambda known: torch.randn_like(known.models[0])), "unchanged"),
    "unseeded": (Wrong(lambda known: torch.randn_like(known.models[0])), "repeatable"),
    "needs a victim": (Wrong(lambda known: known.models[known.victims[0]]), "extremes"),
    "looks at all models": (Declared(lambda known: known.models.mean(0)), "unused_models"),
    "looks at all previous models": (Declared(lambda known: known.previous[0]), "unused_models"),
    "never lies": (Silent(), "unused_models"),
    "forgets a victim": (Forgetful(), "unused_models"),
}


@pytest.mark.parametrize(("attack", "law"), WRONG_ATTACKS.values(), ids=WRONG_ATTACKS)
def test_wrong_attack(attack: Any, law: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s)breaks the law '{law}'.*The smallest case"):
        check_attack(attack, laws=[law])
    assert {law for _, law in WRONG_ATTACKS.values()} == MESSAGE_LAWS.keys()


@pytest.mark.parametrize("name", ["update", "origin"])
def test_all_malicious_rows_differ(name: str) -> None:
    """The law also changes vectors that only some rounds have."""

    def look(known: Knowledge) -> Tensor:
        value = known.origin if name == "origin" else known.inputs["update"]
        return value.mean(0)

    law = MESSAGE_LAWS["unused_models"]
    models = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    details: Any = {"origin": models} if name == "origin" else {"inputs": {"update": models}}
    known = Knowledge(torch.zeros(4, 3), eq.Topology.ring(4), [1], **details)
    with pytest.raises(AssertionError, match=r"1 sent 0 .* if only the models of malicious"):
        law(Declared(look), known)
    law(Wrong(look), known)


def test_unsent_lie() -> None:
    known = Knowledge(torch.zeros(4, 3), eq.Topology.ring(4), [1])
    with pytest.raises(AssertionError, match=r"^1 sent 2 its model, not a lie$"):
        MESSAGE_LAWS["unused_models"](Forgetful(), known)


class Poison:
    """An attack on data that does one thing wrong."""

    def __init__(self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self.change = change

    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.change(x, y)


WRONG_POISONS: dict[str, tuple[Any, str]] = {
    "wider": (Poison(lambda x, y: (x.double(), y)), "poison_fits"),
    "labels forgotten": (Poison(lambda x, y: (torch.cat([x, x]), y)), "poison_fits"),
    "in place": (Poison(lambda x, y: (x, y.fill_(0))), "poison_leaves"),
    "global randomness": (Poison(lambda x, y: (torch.rand_like(x), y)), "poison_leaves"),
    "unseeded": (Poison(lambda x, y: (torch.rand_like(x), y)), "poison_repeats"),
}


@pytest.mark.parametrize(("attack", "law"), WRONG_POISONS.values(), ids=WRONG_POISONS)
def test_wrong_poison(attack: Any, law: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s)breaks the law '{law}'.*The smallest case"):
        check_attack(attack, laws=[law])
    assert {law for _, law in WRONG_POISONS.values()} == DATA_LAWS.keys()


def test_features_shape() -> None:
    attack = eq.attacks.Backdoor(eq.attacks.PixelPattern(), target=1)
    check_attack(attack, laws=DATA_LAWS, features=(1, 28, 28), examples=5)
