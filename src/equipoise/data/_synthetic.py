"""Synthetic data for linear regression."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_count, check_number
from equipoise.data.dataset import Dataset


def synthetic_regression(
    *,
    n_train: int = 8000,
    n_test: int = 2000,
    features: int = 100,
    noise: float = 1.0,
    weight_std: float = 5.0,
    seed: int = 0,
) -> Dataset:
    """Linear data with Gaussian noise, as in the BALANCE paper (Fang et al., CCS 2024, appendix).

    ``y = <x, w> + noise * e``, where x and e are standard normal and the true weights w are normal
    with standard deviation ``weight_std``. The paper writes N(0, 25) for them; we read 25 as a
    variance. The mean squared error of the true weights is ``noise ** 2``, the smallest expected
    error of any model.

    Args:
        n_train: training examples.
        n_test: test examples.
        features: number of features.
        noise: standard deviation of the noise.
        weight_std: standard deviation of the true weights.
        seed: determines weights, inputs and noise.

    >>> data = eq.data.synthetic_regression(seed=1)
    >>> data.x.shape, data.y.shape, len(data.test_x)
    (torch.Size([8000, 100]), torch.Size([8000]), 2000)
    >>> fitted = torch.linalg.lstsq(data.x, data.y[:, None]).solution
    >>> round(float((data.test_x @ fitted - data.test_y[:, None]).square().mean()), 1)
    1.0
    """
    for name, count in (("n_train", n_train), ("n_test", n_test), ("features", features)):
        check_count(name, count, 1)
    for name, deviation in (("noise", noise), ("weight_std", weight_std)):
        check_number(name, deviation)
    generator = stream(seed, "synthetic_regression")

    def normal(*shape: int) -> Tensor:
        # Explicit dtype and device: the defaults of torch may have been changed.
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")

    # The order of these draws is part of the result.
    weights = weight_std * normal(features)
    x = normal(n_train + n_test, features)
    # Train and test examples share the weights, so the test error can reach noise ** 2.
    y = x @ weights + noise * normal(n_train + n_test)
    return Dataset(x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="synthetic")
