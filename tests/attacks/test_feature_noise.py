"""FeatureNoise: distribution, generator and device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.attacks.feature_noise import FeatureNoise
from tests.examples import examples, seeded


@pytest.mark.parametrize(
    ("attack", "std"), [(FeatureNoise(), 31.6228), (FeatureNoise(std=1000.0), 1000.0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distribution(attack: FeatureNoise, std: float, dtype: torch.dtype):
    x = torch.full((200, 50), 1e6, dtype=dtype)
    noise, _ = attack.poison(x, torch.zeros(200, dtype=torch.int64), generator=seeded(0))
    assert noise.mean().item() == pytest.approx(0, abs=0.05 * std)  # five standard errors
    assert noise.std().item() == pytest.approx(std, rel=0.04)
    assert (noise.abs() < std).double().mean().item() == pytest.approx(0.6827, abs=0.02)
    assert len(noise.unique()) > 9000


def test_labels_are_kept():
    x, y = examples()
    assert FeatureNoise().poison(x, y)[1] is y


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 9), st.floats(0, 100))
def test_noise_follows_generator(shape: list[int], seed: int, std: float):
    x, y = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)
    first, again = (
        FeatureNoise(std).poison(old, y, generator=seeded(seed))[0] for old in (x, x + 1)
    )
    assert torch.equal(first, again)
    assert torch.equal(first, std * torch.randn(shape, generator=seeded(seed)))


def test_noise_differs():
    x, y = examples()
    generator = seeded(0)
    draws = [FeatureNoise().poison(x, y, generator=g)[0] for g in (generator, generator, seeded(1))]
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_global_generator():
    x, y = examples()
    draws = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        draws.append(FeatureNoise().poison(x, y)[0])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_generator_device():
    x, y = torch.zeros(3, 2, device="meta"), torch.zeros(3, dtype=torch.int64)
    assert FeatureNoise().poison(x, y, generator=seeded(0))[0].device.type == "meta"
