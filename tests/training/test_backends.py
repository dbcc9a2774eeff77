"""The choice of a backend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise import LocalSGD
from equipoise.training._ensemble._stacked import Backend, channels_last
from equipoise.training._sgd_step import SGDStep
from tests.training.trainers import (
    BACKENDS,
    CASES,
    Case,
    OneByOne,
    every_case,
    examples,
    start,
)


@every_case
def test_auto_goes_by_structure(case: Case):
    trainer = LocalSGD(case.model(), cross_entropy, examples(case.shape, [4, 4]), lr=0.1)
    assert trainer.backend == case.auto


def test_value_dependent_loss():
    def loss(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        value = cross_entropy(outputs, targets, reduction=reduction)
        return value if value > 1 else 2 * value

    trainer = LocalSGD(nn.Linear(6, 3), loss, examples((6,), [4, 4]), lr=0.1)
    assert trainer.backend == "threads"


@pytest.mark.parametrize("error", [AttributeError, TypeError, ValueError])
def test_own_errors_are_raised(error: type[Exception], monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise error("ours")

    monkeypatch.setattr(SGDStep, "train_together", fail)
    with pytest.raises(error, match="ours"):
        LocalSGD(nn.Linear(6, 3), cross_entropy, examples((6,), [4, 4]), lr=0.1)


@pytest.mark.parametrize(
    ("case", "backends"),
    [
        ("logistic", set(BACKENDS)),
        ("convolutions", set(BACKENDS)),
        ("recurrent", {"loop", "threads"}),
    ],
)
def test_measure(case: str, backends: set[Backend]):
    model = CASES[case].model()
    trainer = LocalSGD(
        model, cross_entropy, examples(CASES[case].shape, [4, 4]), lr=0.1, momentum=0.9
    )
    models = start(model, 2)
    trainer(models, 0)
    state = trainer.state_dict()
    seconds = trainer.measure(models, repeats=1)
    assert seconds.keys() == backends
    assert all(value > 0 for value in seconds.values())
    assert torch.equal(trainer.state_dict()["velocity"], state["velocity"])
    assert trainer.backend == CASES[case].auto


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_images(channels: int):
    strides = []

    class Spy(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            strides.append(x.stride())
            return super().forward(x)

    model = nn.Sequential(Spy(channels, 2, 3), nn.Flatten(), nn.Linear(2 * 3 * 4, 3))
    clients = examples((channels, 5, 6), [7])
    models = start(model, 1)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=4)
    strides.clear()
    trained = trainer(models, 0)
    assert strides == [(30 * channels, 1, 6 * channels, channels)]
    strides.clear()
    torch.testing.assert_close(
        trained, OneByOne(model, cross_entropy, clients, 0.1, batch_size=4)(models, 0)
    )
    assert strides != [(30 * channels, 1, 6 * channels, channels)]


@pytest.mark.parametrize("shape", [(4, 1, 5, 6), (4, 3, 5, 6), (1, 1, 1, 1), (2, 3, 1, 1)])
def test_channels_last(shape: tuple[int, ...]):
    x = torch.randn(shape)
    moved = channels_last(x)
    b, c, h, w = shape
    assert torch.equal(moved, x)
    assert moved.stride() == (c * h * w, 1, w * c, c)
    assert moved.shape == (b, c, h, w)
