"""Training on poisoned data."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import LocalSGD
from equipoise._utils.rng import stream
from equipoise.attacks import (
    Backdoor,
    Combined,
    EveryNth,
    FeatureNoise,
    Gaussian,
    LabelFlip,
    OnlyClients,
    Window,
)
from equipoise.training._ensemble._stacked import Backend
from equipoise.training._examples import Examples
from equipoise.training._poisoning import Poisoning
from tests.training.trainers import (
    convolutions,
    every_way,
    examples,
    logistic,
    start,
)


def poisoned_by_hand(
    clients: list[tuple[Tensor, Tensor]], attack: Any, malicious: list[int], seed: int = 0
) -> Any:
    return [
        attack.poison(x, y, generator=stream(seed, "poison", i)) if i in malicious else (x, y)
        for i, (x, y) in enumerate(clients)
    ]


ATTACKS = {
    "flip": LabelFlip({1: 2, 2: 0}),
    "noise": FeatureNoise(),
    "backdoor": Backdoor(EveryNth(2), target=1),
}


@every_way
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("shape", [(6,), (2, 5, 5)])
def test_poisoned_training(backend: Backend, attack: Any, shape: tuple[int, ...]):
    if len(shape) == 3 and isinstance(attack, Backdoor):
        attack = Backdoor(eq.attacks.ONE_PIXEL, target=1)
    model = convolutions() if len(shape) == 3 else nn.Linear(6, 3)
    clients, malicious = examples(shape, [9, 3, 20, 4, 8]), [1, 3]
    models = start(model, 5)
    options: Any = {"lr": 0.01, "batch_size": 5, "steps": 2, "seed": 3, "backend": backend}
    clean = LocalSGD(model, cross_entropy, clients, **options)
    expected = LocalSGD(
        model, cross_entropy, poisoned_by_hand(clients, attack, malicious, 3), **options
    )(models, 2)
    trained = clean.poisoned(attack, malicious)(models, 2)
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
    benign = [0, 2, 4]
    assert torch.equal(trained[benign], clean(models, 2)[benign])
    assert not torch.equal(trained[malicious], clean(models, 2)[malicious])


def test_benign_examples_are_shared():
    clients = examples((6,), [9, 3, 20])
    clean = Examples.of(clients)
    poisoned = Poisoning(clean, FeatureNoise(), [1], seed=0).examples(0)
    assert poisoned.x.data_ptr() == clean.x.data_ptr()
    assert torch.equal(poisoned.x, torch.cat([x for x, _ in clients]))
    assert poisoned.replacements is not None
    assert len(poisoned.replacements.x) == 3


@pytest.mark.parametrize("shape", [(6,), (2, 5, 5)])
@pytest.mark.parametrize("in_other_order", [False, True])
def test_attack_writes_in_place(shape, in_other_order: bool):
    def spoil(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.zero_(), y.fill_(2)

    clean = Examples.of(examples(shape, [9, 3, 20]))
    clean = clean.with_channels_last() if in_other_order and len(shape) == 3 else clean
    before = clean.x.clone(), clean.y.clone()
    poisoned = Poisoning(clean, Window(Bad(spoil), 1, 2), [1], seed=0)
    for t in range(3):
        x, _ = poisoned.examples(t).take(torch.tensor([1]), torch.arange(3)[None])
        assert bool((x == 0).all()) == (t == 1)
    assert torch.equal(clean.x, before[0])
    assert torch.equal(clean.y, before[1])


def test_window_limits_rounds():
    trainer, models = logistic()
    attack = LabelFlip({0: 1, 1: 2, 2: 0})
    always, sometimes = trainer.poisoned(attack, [2]), trainer.poisoned(Window(attack, 2, 4), [2])
    for t in (0, 1, 2, 3, 4, 2, 7):
        expected = always if t in (2, 3) else trainer
        assert torch.equal(sometimes(models, t), expected(models, t))
    assert not torch.equal(always(models, 2), trainer(models, 2))


def test_combined_poisoning():
    trainer, models = logistic(n=6)
    flip, noise = LabelFlip({0: 1, 1: 2, 2: 0}), FeatureNoise()
    attack: Any = Combined(
        OnlyClients(Window(flip, 0, 5), (1, 4)), OnlyClients(noise, (2,)), Gaussian()
    )  # type: ignore[arg-type]
    poisoned = trainer.poisoned(attack, [1, 2, 3])  # 4 is named, but benign
    for t, flipped in ((0, True), (5, False)):
        trained = poisoned(models, t)
        clean, by_flip, by_noise = (
            trainer(models, t),
            trainer.poisoned(flip, [1])(models, t),
            trainer.poisoned(noise, [2])(models, t),
        )
        assert torch.equal(trained[[0, 3, 4, 5]], clean[[0, 3, 4, 5]])
        assert torch.equal(trained[1], (by_flip if flipped else clean)[1])
        assert torch.equal(trained[2], by_noise[2])
        assert not torch.equal(by_flip[1], clean[1])
        assert not torch.equal(by_noise[2], clean[2])


def test_successive_attacks():
    trainer, models = logistic()
    twice: Any = Combined(LabelFlip({0: 1}), LabelFlip({1: 2}))  # type: ignore[arg-type]
    once = LabelFlip({0: 2, 1: 2})
    assert torch.equal(
        trainer.poisoned(twice, [0])(models, 0), trainer.poisoned(once, [0])(models, 0)
    )


def test_successive_attacks_differ():
    def noisy(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn.append(torch.randn(x.shape, generator=generator))
        return x + drawn[-1], y

    drawn: list[Tensor] = []
    three: Any = Combined(Drawing(noisy), Combined(Drawing(noisy), Drawing(noisy)))  # type: ignore[arg-type]
    Poisoning(Examples.of(examples((6,), [9, 3])), three, [1], seed=5)
    expected = [
        torch.randn(3, 6, generator=stream(5, "poison", 1, *later)) for later in ((), (1,), (2,))
    ]
    assert all(map(torch.equal, drawn, expected))
    assert len({tuple(noise.flatten().tolist()) for noise in drawn}) == 3


def test_noise_per_client():
    poisoned = Poisoning(
        Examples.of(examples((6,), [9, 3])), Window(FeatureNoise(), 0, 2), [0, 1], seed=0
    )
    first = poisoned.examples(0).replacements
    poisoned.examples(5)
    again = poisoned.examples(1).replacements
    assert first is not None
    assert again is not None
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.of_client(0)[0], first.of_client(1)[0])


def test_poisoning_is_cached():
    poisoned = Poisoning(Examples.of(examples((6,), [9, 3])), FeatureNoise(), [0], seed=0)
    assert poisoned.examples(0) is poisoned.examples(1)


def test_message_attack_on_data():
    trainer, models = logistic()
    assert torch.equal(trainer.poisoned(Gaussian(), [0])(models, 0), trainer(models, 0))


def test_poisoning_resets_momentum():
    trainer, models = logistic(momentum=0.9)
    trainer(models, 0)
    state = trainer.state_dict()["velocity"]
    poisoned = trainer.poisoned(LabelFlip({0: 1}), [0])
    assert poisoned.state_dict() == {}
    poisoned(models, 0)
    assert torch.equal(trainer.state_dict()["velocity"], state)


def test_last_poisoning_counts():
    trainer, models = logistic()
    flip = LabelFlip({0: 1, 1: 2, 2: 0})
    twice = trainer.poisoned(FeatureNoise(), [0, 1]).poisoned(flip, [1])
    assert torch.equal(twice(models, 0), trainer.poisoned(flip, [1])(models, 0))


class Drawing:
    def __init__(self, make: Callable[[Tensor, Tensor, Any], Any]) -> None:
        self.make = make

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Any:
        return self.make(x, y, generator)


class Bad:
    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        self.make = make

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Any:
        return self.make(x, y)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("label flip", "attack must have poison(x, y) or forge(known), found str"),
        (
            Window(LabelFlip(offset=0.5), 1000, 2000),
            "offset must be a whole number for integer labels",
        ),
        (
            Bad(lambda x, y: (x[:0], y[:0])),
            "poisoned examples of client 1 must hold at least one example, found none",
        ),
        (
            Bad(lambda x, y: (x[:2], y)),
            "poisoned examples of client 1 must have one y for every x, found 2 x and 10 y",
        ),
        (
            Bad(lambda x, y: (x[:, :2], y)),
            "poisoned examples of client 1 must look like those of client 0",
        ),
        (
            Bad(lambda x, y: (x, y.float())),
            "poisoned examples of client 1 must look like those of client 0",
        ),
    ],
)
def test_unsuitable_attack(attack: Any, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        logistic()[0].poisoned(attack, [1])
