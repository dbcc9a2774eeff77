"""Attacks on training data: what changes, and that nothing else does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import Topology
from equipoise.attacks import DataAttack, MessageAttack
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.feature_noise import FeatureNoise
from equipoise.attacks.knowledge import Knowledge
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.triggers import ONE_PIXEL, EveryNth, PixelPattern, Trigger
from equipoise.testing import DATA_LAWS, check_attack

ATTACKS: dict[str, Any] = {
    "flip": LabelFlip({3: 5, 5: 0}),
    "offset": LabelFlip(offset=2),
    "noise": FeatureNoise(),
    "backdoor": Backdoor(EveryNth(2), target=1),
}

every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def examples(count: int = 30, features: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(count, features), torch.arange(count) % 10


# What all of them promise


@every_attack
def test_a_data_attack_is_one(attack: Any):
    assert isinstance(attack, DataAttack)
    assert isinstance(attack, MessageAttack) == isinstance(attack, Backdoor)


@every_attack
def test_data_attacks_obey_the_laws(attack: Any):
    check_attack(attack, laws=DATA_LAWS, examples=20)


@every_attack
def test_attacks_are_values(attack: Any):
    assert attack == replace(attack)
    assert hash(attack) == hash(replace(attack))
    with pytest.raises(AttributeError):
        attack.scale = attack.std = attack.offset = 1


@every_attack
@pytest.mark.parametrize("view", ["own", "slice", "expanded"])
def test_the_callers_tensors_and_everybody_elses_examples_stay(attack: Any, view: str):
    base_x, base_y = examples()
    before = base_x.clone(), base_y.clone()
    x, y = {
        "own": lambda: (base_x, base_y),
        "slice": lambda: (base_x[10:20], base_y[10:20]),  # one client's part of everybody's examples
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
def test_no_examples_become_none(attack: Any):
    x, y = attack.poison(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert (x.shape, y.shape, y.dtype) == ((0, 4), (0,), torch.int64)


@every_attack
def test_poisoned_examples_carry_no_gradient(attack: Any):
    x, y = examples()
    poisoned_x, _ = attack.poison(x.requires_grad_(), y)
    assert poisoned_x is x or not poisoned_x.requires_grad


# Label flip


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_mapping_against_a_dictionary(mapping: dict[int, int], labels: list[int]):
    y = torch.tensor(labels, dtype=torch.int64)
    x = torch.zeros(len(labels), 2)
    same_x, flipped = LabelFlip(mapping).poison(x, y)
    assert same_x is x
    assert flipped is not y
    assert flipped.tolist() == [mapping.get(label, label) for label in labels]


@pytest.mark.parametrize(
    ("attack", "y", "expected"),
    [
        (LabelFlip({3: 5}), list(range(10)), [0, 1, 2, 5, 4, 5, 6, 7, 8, 9]),
        (LabelFlip({0: 1, 1: 0}), [0, 1, 1, 0], [1, 0, 0, 1]),
        (LabelFlip(offset=5), [0.5, -2.25], [5.5, 2.75]),
        (LabelFlip(offset=-0.5), [0.5], [0.0]),
        (LabelFlip(offset=5.0), [0, 4], [5, 9]),
        (LabelFlip({-1: 1, 1: -1}), [[1, -1], [2, 1]], [[-1, 1], [2, -1]]),
    ],
)
def test_label_flip_by_hand(attack: LabelFlip, y: list[Any], expected: list[Any]):
    given_y = torch.tensor(y)
    flipped = attack.poison(torch.zeros(len(y), 1), given_y)[1]
    assert flipped.tolist() == expected
    assert (flipped.dtype, flipped.shape) == (given_y.dtype, given_y.shape)
    assert torch.equal(given_y, torch.tensor(y))


def test_shifted_targets_carry_no_gradient():
    assert not LabelFlip(offset=5).poison(torch.zeros(2, 1), torch.ones(2, requires_grad=True))[1].requires_grad


def test_a_negative_offset_on_unsigned_labels():
    flipped = LabelFlip(offset=-3).poison(torch.zeros(2, 1), torch.tensor([3, 255], dtype=torch.uint8))[1]
    assert flipped.tolist() == [0, 252]


def test_equal_mappings_are_equal_attacks():
    assert LabelFlip({3: 5, 1: 2}) == LabelFlip({1: 2, 3: 5}) == LabelFlip(((3, 5), (1, 2)))
    assert hash(LabelFlip({3: 5, 1: 2})) == hash(LabelFlip({1: 2, 3: 5}))
    assert LabelFlip({np.int64(3): np.int64(5)}) == LabelFlip({3: 5})  # type: ignore[dict-item]
    assert LabelFlip({3: 5}) != LabelFlip({3: 6})


def test_a_dictionary_changed_later_changes_no_attack():
    mapping = {3: 5}
    attack = LabelFlip(mapping)
    mapping[3] = 7
    assert attack == LabelFlip({3: 5})


# Feature noise


@pytest.mark.parametrize(("attack", "std"), [(FeatureNoise(), 31.6228), (FeatureNoise(std=1000.0), 1000.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_normal_with_this_deviation(attack: FeatureNoise, std: float, dtype: torch.dtype):
    x = torch.full((200, 50), 1e6, dtype=dtype)
    noise, _ = attack.poison(x, torch.zeros(200, dtype=torch.int64), generator=seeded(0))
    assert noise.mean().item() == pytest.approx(0, abs=0.05 * std)  # five standard errors
    assert noise.std().item() == pytest.approx(std, rel=0.04)
    assert (noise.abs() < std).double().mean().item() == pytest.approx(0.6827, abs=0.02)
    assert len(noise.unique()) > 9000


def test_noise_keeps_the_labels():
    x, y = examples()
    assert FeatureNoise().poison(x, y)[1] is y


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 9), st.floats(0, 100))
def test_noise_comes_from_the_generator_alone(shape: list[int], seed: int, std: float):
    x, y = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)
    first, again = (FeatureNoise(std).poison(old, y, generator=seeded(seed))[0] for old in (x, x + 1))
    assert torch.equal(first, again)
    assert torch.equal(first, std * torch.randn(shape, generator=seeded(seed)))


def test_noise_differs_with_the_seed_and_from_call_to_call():
    x, y = examples()
    generator = seeded(0)
    draws = [FeatureNoise().poison(x, y, generator=g)[0] for g in (generator, generator, seeded(1))]
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_noise_without_a_generator_follows_the_global_seed():
    x, y = examples()
    draws = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        draws.append(FeatureNoise().poison(x, y)[0])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_noise_is_drawn_where_the_generator_is_and_brought_to_the_examples():
    x, y = torch.zeros(3, 2, device="meta"), torch.zeros(3, dtype=torch.int64)
    assert FeatureNoise().poison(x, y, generator=seeded(0))[0].device.type == "meta"


# Backdoor: data


@pytest.mark.parametrize(
    ("trigger", "shape"),
    [(PixelPattern(), (5, 1, 28, 28)), (ONE_PIXEL, (5, 3, 4, 4)), (EveryNth(), (5, 561)), (EveryNth(2), (0, 3))],
)
@pytest.mark.parametrize("target", [0, 1])
def test_poison_appends_a_stamped_copy_of_everything(trigger: Trigger, shape: tuple[int, ...], target: int):
    x, y = torch.rand(shape) + 0.1, torch.arange(shape[0]) % 3
    poisoned_x, poisoned_y = Backdoor(trigger, target=target).poison(x, y)
    count = len(x)
    assert len(poisoned_x) == len(poisoned_y) == 2 * count
    assert torch.equal(poisoned_x[:count], x)
    assert torch.equal(poisoned_y[:count], y)
    assert torch.equal(poisoned_x[count:], trigger.stamp(x))
    assert poisoned_y[count:].tolist() == [target] * count


# Backdoor: messages

GRAPHS = {"ring": Topology.ring(6), "complete": Topology.complete(6)}
every_graph = pytest.mark.parametrize("topology", GRAPHS.values(), ids=GRAPHS.keys())


@every_graph
@pytest.mark.parametrize("malicious", [[2], [4, 1], range(6)], ids=["one", "two", "all"])
@pytest.mark.parametrize("scale", [None, 1.0, 2.5])
@pytest.mark.parametrize("space", ["model", "update"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forge_scales_every_malicious_clients_own(topology, malicious, scale, space, dtype):
    models, previous = torch.randn(6, 5, dtype=dtype), torch.randn(6, 5, dtype=dtype)
    before = models.clone(), previous.clone()
    lies = Backdoor(EveryNth(), scale=scale, space=space).forge(Knowledge(models, topology, malicious, previous))
    inbox = topology.deliver(models, lies, malicious)
    factor = 6 if scale is None else scale
    for receiver in range(6):
        for slot, sender in enumerate(topology.neighbors(receiver).tolist()):
            sent, origin = models[sender].double(), previous[sender].double()
            if sender in malicious:
                sent = factor * sent if space == "model" else origin + factor * (sent - origin)
            torch.testing.assert_close(inbox.bank[inbox.slots[receiver, slot]], sent.to(dtype), rtol=1e-5, atol=1e-5)
    assert torch.equal(models, before[0])
    assert torch.equal(previous, before[1])


@pytest.mark.parametrize("scale", [None, 3.0])
def test_scaling_is_exact(scale: float | None):
    models, previous = torch.randint(-9, 9, (5, 7)).float(), torch.randint(-9, 9, (5, 7)).float()
    known = Knowledge(models, Topology.ring(5), [3, 0], previous)
    factor = 5 if scale is None else scale
    chosen = [0, 3]
    in_models = Backdoor(EveryNth(), scale=scale).forge(known)
    in_updates = Backdoor(EveryNth(), scale=scale, space="update").forge(known)
    assert in_models is not None
    assert in_updates is not None
    assert torch.equal(in_models.rows, factor * models[chosen])
    assert torch.equal(in_updates.rows, previous[chosen] + factor * (models - previous)[chosen])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_there_is_one_row_per_liar_in_the_dtype_of_the_models(dtype: torch.dtype):
    malicious = torch.tensor([False, True, False, True])
    lies = Backdoor(EveryNth()).forge(Knowledge(torch.ones(4, 3, dtype=dtype), Topology.complete(4), malicious))
    assert lies is not None
    assert (lies.rows.shape, lies.rows.dtype) == ((2, 3), dtype)
    assert lies.senders.tolist() == [1, 3]
    assert lies.receivers.tolist() == [-1, -1]


@every_graph
@pytest.mark.parametrize("space", ["model", "update"])
def test_nobody_malicious_nobody_lies(topology: Topology, space: Any):
    assert Backdoor(EveryNth(), space=space).forge(Knowledge(torch.ones(6, 2), topology, [])) is None


def test_what_is_too_large_becomes_infinite():
    models = torch.full((4, 2), 1e38) * torch.tensor([1.0, -1.0])
    lies = Backdoor(EveryNth()).forge(Knowledge(models, Topology.ring(4), [0]))
    assert lies is not None
    assert lies.rows.tolist() == [[math.inf, -math.inf]]


@pytest.mark.parametrize("space", ["model", "update"])
def test_lies_carry_no_gradient(space: Any):
    models = torch.ones(3, 2, requires_grad=True)
    lies = Backdoor(EveryNth(), space=space).forge(Knowledge(models, Topology.ring(3), [0], models))
    assert lies is not None
    assert not lies.rows.requires_grad


# Errors

X, Y = torch.zeros(3, 2), torch.tensor([0, 1, 2])


def forge_without_previous() -> object:
    return Backdoor(EveryNth(), space="update").forge(Knowledge(torch.zeros(3, 2), Topology.ring(3), [0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LabelFlip(), "mapping or offset must be given, one of the two, found neither"),
        (lambda: LabelFlip({3: 5}, 1.0), "mapping or offset must be given, one of the two, found both"),
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
        (lambda: LabelFlip(((3, 5), (3, 7))), "mapping must name every label once, found 3 more than once"),
        (
            lambda: LabelFlip({3: 5}).poison(X, Y.float()),
            "y must be a tensor of integer labels, found float32 (3,)",
        ),
        (lambda: LabelFlip({0: 1}).poison(X, Y > 0), "y must be a tensor of integer labels, found bool (3,)"),
        (lambda: LabelFlip({0: 1}).poison(X, [0, 1, 2]), "y must be a tensor of integer labels, found list"),
        (lambda: LabelFlip(offset=1).poison(X, Y > 0), "y must be a tensor of integer labels, found bool (3,)"),
        (lambda: LabelFlip(offset=1).poison(X, [0, 1, 2]), "y must be a tensor of integer labels, found list"),
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
        (lambda: FeatureNoise().poison([1.0], Y), "x must be a tensor of floating-point features, found list"),
        (lambda: Backdoor("trigger"), "trigger must be a Trigger, found str"),
        (lambda: Backdoor(EveryNth(), target=0.5), "target must be an integer label, found 0.5"),
        (lambda: Backdoor(EveryNth(), scale=0), "scale must be a finite number > 0 or None, found 0"),
        (lambda: Backdoor(EveryNth(), scale=math.nan), "scale must be a finite number > 0 or None, found nan"),
        (lambda: Backdoor(EveryNth(), scale=math.inf), "scale must be a finite number > 0 or None, found inf"),
        (lambda: Backdoor(EveryNth(), space="both"), "space must be one of 'model', 'update', found 'both'"),
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
def test_errors_say_what_was_expected_and_found(call: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
