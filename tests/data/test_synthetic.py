"""Synthetic data for linear regression."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from equipoise.data import Dataset, synthetic_regression


def weights_of(data: Dataset) -> torch.Tensor:
    return torch.linalg.lstsq(data.x.double(), data.y.double()[:, None]).solution[:, 0]


def test_synthetic_of_the_paper():
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
