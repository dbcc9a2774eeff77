"""Synthetic regression data, and the real digits of scikit-learn."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch

from equipoise.data import Dataset, digits, synthetic_regression


def same(one: Dataset, other: Dataset) -> bool:
    pairs = (
        (one.x, other.x),
        (one.y, other.y),
        (one.test_x, other.test_x),
        (one.test_y, other.test_y),
    )
    return all(torch.equal(a, b) for a, b in pairs)


def weights_of(data: Dataset) -> torch.Tensor:
    return torch.linalg.lstsq(data.x.double(), data.y.double()[:, None]).solution[:, 0]


def test_synthetic_regression_is_that_of_the_paper():
    data = synthetic_regression()
    assert (data.x.shape, data.y.shape) == ((8000, 100), (8000,))
    assert (data.test_x.shape, data.test_y.shape) == ((2000, 100), (2000,))
    assert data.classes is None
    assert data.x.mean().abs() < 0.01
    assert abs(data.x.std() - 1) < 0.01
    weights = weights_of(data)
    assert 3.9 < weights.std() < 6.1  # 5, give or take three standard errors
    residuals = data.test_y.double() - data.test_x.double() @ weights
    assert 0.9 < residuals.square().mean() < 1.1


def test_noise_and_weights_scale():
    exact = synthetic_regression(n_train=50, n_test=20, features=4, noise=0)
    assert torch.allclose(
        exact.test_x.double() @ weights_of(exact), exact.test_y.double(), atol=1e-4
    )
    twice = synthetic_regression(n_train=50, n_test=20, features=4, noise=0, weight_std=10)
    assert torch.allclose(twice.y, 2 * exact.y, atol=1e-5)
    only_noise = synthetic_regression(n_train=4000, n_test=1, features=1, noise=3, weight_std=0)
    assert 2.8 < only_noise.y.std() < 3.2


def test_the_seed_decides_and_global_randomness_stays_as_it_is():
    before = torch.random.get_rng_state()
    small = {"n_train": 5, "n_test": 3, "features": 2}
    assert same(synthetic_regression(**small, seed=7), synthetic_regression(**small, seed=7))
    assert not same(synthetic_regression(**small, seed=7), synthetic_regression(**small, seed=8))
    assert same(digits(seed=3), digits(seed=3))
    assert not same(digits(seed=3), digits(seed=4))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 0}, "n_train must be an integer at least 1, found 0"),
        ({"n_test": 2.5}, "n_test must be an integer at least 1, found 2.5"),
        ({"features": 0}, "features must be an integer at least 1, found 0"),
        ({"noise": -1}, "noise must be a finite number >= 0, found -1"),
        ({"noise": "a"}, "noise must be a finite number >= 0, found 'a'"),
        ({"weight_std": None}, "weight_std must be a finite number >= 0, found None"),
        ({"weight_std": math.nan}, "weight_std must be a finite number >= 0, found nan"),
        ({"seed": -1}, "seed must be an integer >= 0, found -1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        synthetic_regression(**options)


def test_digits_are_the_1797_images_each_once():
    from sklearn.datasets import load_digits

    data, (images, labels) = digits(), load_digits(return_X_y=True)
    rows = sorted(
        [*row.flatten().mul(16).tolist(), y] for row, y in zip(data.x, data.y.tolist(), strict=True)
    )
    rows += [
        [*row.flatten().mul(16).tolist(), y]
        for row, y in zip(data.test_x, data.test_y.tolist(), strict=True)
    ]
    assert sorted(rows) == sorted(
        [*image, label] for image, label in zip(images.tolist(), labels.tolist(), strict=True)
    )
    assert data.x.shape[1:] == (1, 8, 8)
    assert (data.x.min(), data.x.max(), data.classes) == (0, 1, 10)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_digits_hold_out_a_share_of_every_class(share: float):
    data = digits(test_share=share)
    tested, trained = data.test_y.bincount(minlength=10), data.y.bincount(minlength=10)
    assert tested.tolist() == [
        int(share * 1000) * size // 1000 for size in (tested + trained).tolist()
    ]


def test_digits_can_be_learned():
    data = digits()
    x, targets = data.x.flatten(1), torch.nn.functional.one_hot(data.y).float() - 0.1
    weights = torch.linalg.solve(x.T @ x + torch.eye(64), x.T @ targets)
    assert ((data.test_x.flatten(1) @ weights).argmax(1) == data.test_y).float().mean() > 0.88


@pytest.mark.parametrize("share", [0, 1, 2.0])
def test_digits_need_training_and_test_examples(share: float):
    with pytest.raises(
        ValueError, match=f"test_share must be a number between 0 and 1, found {share}"
    ):
        digits(test_share=share)
    with pytest.raises(ValueError, match="test_share must be larger, found no test example"):
        digits(test_share=0.001)


def test_digits_say_which_packages_they_need(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        ImportError, match=r'sklearn is not installed: pip install "equipoise\[data\]"'
    ):
        digits()
