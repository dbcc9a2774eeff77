"""All attacks on training data: laws, dtypes and errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise import Topology
from equipoise.attacks import DataAttack, MessageAttack
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.feature_noise import FeatureNoise
from equipoise.attacks.knowledge import Knowledge
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.triggers import EveryNth
from equipoise.testing import DATA_LAWS, check_attack
from tests.examples import examples, seeded

ATTACKS: dict[str, Any] = {
    "flip": LabelFlip({3: 5, 5: 0}),
    "offset": LabelFlip(offset=2),
    "noise": FeatureNoise(),
    "backdoor": Backdoor(EveryNth(2), target=1),
}


every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())


@every_attack
def test_protocols(attack: Any):
    assert isinstance(attack, DataAttack)
    assert isinstance(attack, MessageAttack) == isinstance(attack, Backdoor)


@every_attack
def test_laws(attack: Any):
    check_attack(attack, laws=DATA_LAWS, examples=20)


@every_attack
def test_equality_and_hash(attack: Any):
    assert attack == replace(attack)
    assert hash(attack) == hash(replace(attack))
    with pytest.raises(AttributeError):
        attack.scale = attack.std = attack.offset = 1


@every_attack
@pytest.mark.parametrize("view", ["own", "slice", "expanded"])
def test_inputs_are_unchanged(attack: Any, view: str):
    base_x, base_y = examples()
    before = base_x.clone(), base_y.clone()
    x, y = {
        "own": lambda: (base_x, base_y),
        "slice": lambda: (
            base_x[10:20],
            base_y[10:20],
        ),  # one client's part of everybody's examples
        "expanded": lambda: (base_x[3].expand(10, -1), base_y[3].expand(10)),
    }[view]()
    poisoned_x, poisoned_y = attack.poison(x, y, generator=seeded(0))
    reference_x, reference_y = attack.poison(x.clone(), y.clone(), generator=seeded(0))
    assert torch.equal(base_x, before[0])
    assert torch.equal(base_y, before[1])
    assert torch.equal(poisoned_x, reference_x)
    assert torch.equal(poisoned_y, reference_y)
    assert not (torch.equal(poisoned_x, x) and torch.equal(poisoned_y, y))


@every_attack
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("label", [torch.uint8, torch.int32, torch.int64])
def test_dtypes_stay(attack: Any, dtype: torch.dtype, label: torch.dtype):
    x, y = examples()
    poisoned_x, poisoned_y = attack.poison(x.to(dtype), y.to(label))
    assert (poisoned_x.dtype, poisoned_y.dtype) == (dtype, label)


@every_attack
def test_no_examples(attack: Any):
    x, y = attack.poison(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert (x.shape, y.shape, y.dtype) == ((0, 4), (0,), torch.int64)


@every_attack
def test_no_gradients(attack: Any):
    x, y = examples()
    poisoned_x, _ = attack.poison(x.requires_grad_(), y)
    assert poisoned_x is x or not poisoned_x.requires_grad


X, Y = torch.zeros(3, 2), torch.tensor([0, 1, 2])


def forge_without_previous() -> object:
    return Backdoor(EveryNth(), space="update").forge(
        Knowledge(torch.zeros(3, 2), Topology.ring(3), [0])
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LabelFlip(), "mapping or offset must be given, one of the two, found neither"),
        (
            lambda: LabelFlip({3: 5}, 1.0),
            "mapping or offset must be given, one of the two, found both",
        ),
        (lambda: LabelFlip({}, 0.0), "mapping or offset must be given, one of the two, found both"),
        (lambda: LabelFlip(offset=math.inf), "offset must be a finite number, found inf"),
        (lambda: LabelFlip(offset="a"), "offset must be a finite number, found 'a'"),
        (
            lambda: LabelFlip({3: 5.0}),
            "mapping must be from integer labels to integer labels, found {3: 5.0}",
        ),
        (lambda: LabelFlip(3), "mapping must be from integer labels to integer labels, found 3"),
        (
            lambda: LabelFlip(((3, 5, 7),)),
            "mapping must be from integer labels to integer labels, found ((3, 5, 7),)",
        ),
        (
            lambda: LabelFlip(((3, 5), (3, 7))),
            "mapping must name every label once, found 3 more than once",
        ),
        (
            lambda: LabelFlip({3: 5}).poison(X, Y.float()),
            "y must be a tensor of integer labels, found float32 (3,)",
        ),
        (
            lambda: LabelFlip({0: 1}).poison(X, Y > 0),
            "y must be a tensor of integer labels, found bool (3,)",
        ),
        (
            lambda: LabelFlip({0: 1}).poison(X, [0, 1, 2]),
            "y must be a tensor of integer labels, found list",
        ),
        (
            lambda: LabelFlip(offset=1).poison(X, Y > 0),
            "y must be a tensor of integer labels, found bool (3,)",
        ),
        (
            lambda: LabelFlip(offset=1).poison(X, [0, 1, 2]),
            "y must be a tensor of integer labels, found list",
        ),
        (
            lambda: LabelFlip({258: 0}).poison(X, Y.byte()),
            "every label of mapping must be an integer from 0 to 255, found 258",
        ),
        (
            lambda: LabelFlip({0: -1}).poison(X, Y.byte()),
            "every label of mapping must be an integer from 0 to 255, found -1",
        ),
        (
            lambda: LabelFlip(offset=0.5).poison(X, Y),
            "offset must be a whole number for integer labels, found 0.5",
        ),
        (
            lambda: LabelFlip(offset=126).poison(X, Y.to(torch.int8)),
            "y + offset must be an integer from -128 to 127, found 128",
        ),
        (
            lambda: LabelFlip(offset=-1).poison(X, Y.byte()),
            "y + offset must be an integer from 0 to 255, found -1",
        ),
        (lambda: FeatureNoise(-1.0), "std must be a finite number >= 0, found -1.0"),
        (lambda: FeatureNoise(math.nan), "std must be a finite number >= 0, found nan"),
        (lambda: FeatureNoise(math.inf), "std must be a finite number >= 0, found inf"),
        (
            lambda: FeatureNoise().poison(Y, Y),
            "x must be a tensor of floating-point features, found int64 (3,)",
        ),
        (
            lambda: FeatureNoise().poison([1.0], Y),
            "x must be a tensor of floating-point features, found list",
        ),
        (lambda: Backdoor("trigger"), "trigger must be a Trigger, found str"),
        (lambda: Backdoor(EveryNth(), target=0.5), "target must be an integer label, found 0.5"),
        (
            lambda: Backdoor(EveryNth(), scale=0),
            "scale must be a finite number > 0 or None, found 0",
        ),
        (
            lambda: Backdoor(EveryNth(), scale=math.nan),
            "scale must be a finite number > 0 or None, found nan",
        ),
        (
            lambda: Backdoor(EveryNth(), scale=math.inf),
            "scale must be a finite number > 0 or None, found inf",
        ),
        (
            lambda: Backdoor(EveryNth(), space="both"),
            "space must be one of 'model', 'update', found 'both'",
        ),
        (
            lambda: Backdoor(EveryNth(2)).poison(X, Y[:2]),
            "y must hold one label for every example of x, float32 (3, 2), found int64 (2,)",
        ),
        (
            lambda: Backdoor(EveryNth(2)).poison(X, Y.float()),
            "y must be a tensor of integer labels, found float32 (3,)",
        ),
        (
            lambda: Backdoor(EveryNth(2), target=-1).poison(X, Y.byte()),
            "target must be an integer from 0 to 255, found -1",
        ),
        (forge_without_previous, "previous must be given to Knowledge for Backdoor, found None"),
    ],
)
def test_errors(call: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
