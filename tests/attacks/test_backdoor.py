"""Backdoor: poisoned copies and scaled messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from equipoise import Topology
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.knowledge import Knowledge
from equipoise.attacks.triggers import ONE_PIXEL, EveryNth, PixelPattern, Trigger
from tests.examples import seeded


@pytest.mark.parametrize(
    ("trigger", "shape"),
    [
        (PixelPattern(), (5, 1, 28, 28)),
        (ONE_PIXEL, (5, 3, 4, 4)),
        (EveryNth(), (5, 561)),
        (EveryNth(2), (0, 3)),
    ],
)
@pytest.mark.parametrize("target", [0, 1])
def test_poison_appends_copies(trigger: Trigger, shape: tuple[int, ...], target: int):
    x = torch.rand(shape, generator=seeded(0)) + 0.1
    y = torch.arange(shape[0]) % 3
    poisoned_x, poisoned_y = Backdoor(trigger, target=target).poison(x, y)
    count = len(x)
    assert len(poisoned_x) == len(poisoned_y) == 2 * count
    assert torch.equal(poisoned_x[:count], x)
    assert torch.equal(poisoned_y[:count], y)
    assert torch.equal(poisoned_x[count:], trigger.stamp(x))
    assert poisoned_y[count:].tolist() == [target] * count


GRAPHS = {"ring": Topology.ring(6), "complete": Topology.complete(6)}


every_graph = pytest.mark.parametrize("topology", GRAPHS.values(), ids=GRAPHS.keys())


@every_graph
@pytest.mark.parametrize("malicious", [[2], [4, 1], range(6)], ids=["one", "two", "all"])
@pytest.mark.parametrize("scale", [None, 1.0, 2.5])
@pytest.mark.parametrize("space", ["model", "update"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forge_scales_own_models(topology, malicious, scale, space, dtype):
    models, previous = torch.randn(2, 6, 5, dtype=dtype, generator=seeded(0))
    before = (models.clone(), previous.clone())
    lies = Backdoor(EveryNth(), scale=scale, space=space).forge(
        Knowledge(models, topology, malicious, previous)
    )
    inbox = topology.deliver(models, lies, malicious)
    factor = 6 if scale is None else scale
    for receiver in range(6):
        for slot, sender in enumerate(topology.neighbors(receiver).tolist()):
            sent = models[sender].double()
            origin = previous[sender].double()
            if sender in malicious:
                step = factor * (sent - origin)
                sent = factor * sent if space == "model" else origin + step
                # Subtraction, product and sum round by eps / 2 each, of at most these values.
                largest = sent.abs() if space == "model" else step.abs() + origin.abs()
                allowed = 2 * torch.finfo(dtype).eps * largest
            else:
                allowed = torch.zeros_like(sent)
            found = inbox.bank[inbox.slots[receiver, slot]]
            assert found.dtype == dtype
            assert ((found.double() - sent).abs() <= allowed).all()
    assert torch.equal(models, before[0])
    assert torch.equal(previous, before[1])


@pytest.mark.parametrize("scale", [None, 3.0])
def test_scaling_is_exact(scale: float | None):
    models, previous = torch.randint(-9, 9, (2, 5, 7), generator=seeded(0)).float()
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
def test_one_row_per_sender(dtype: torch.dtype):
    malicious = torch.tensor([False, True, False, True])
    lies = Backdoor(EveryNth()).forge(
        Knowledge(torch.ones(4, 3, dtype=dtype), Topology.complete(4), malicious)
    )
    assert lies is not None
    assert (lies.rows.shape, lies.rows.dtype) == ((2, 3), dtype)
    assert lies.senders.tolist() == [1, 3]
    assert lies.receivers.tolist() == [-1, -1]


@every_graph
@pytest.mark.parametrize("space", ["model", "update"])
def test_nobody_malicious(topology: Topology, space: Any):
    assert (
        Backdoor(EveryNth(), space=space).forge(Knowledge(torch.ones(6, 2), topology, [])) is None
    )


def test_overflow_is_infinite():
    models = torch.full((4, 2), 1e38) * torch.tensor([1.0, -1.0])
    lies = Backdoor(EveryNth()).forge(Knowledge(models, Topology.ring(4), [0]))
    assert lies is not None
    assert lies.rows.tolist() == [[math.inf, -math.inf]]


@pytest.mark.parametrize("space", ["model", "update"])
def test_no_gradients(space: Any):
    models = torch.ones(3, 2, requires_grad=True)
    lies = Backdoor(EveryNth(), space=space).forge(Knowledge(models, Topology.ring(3), [0], models))
    assert lies is not None
    assert not lies.rows.requires_grad
