"""FeatureNoise: distribution, generator and device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.attacks.feature_noise import FeatureNoise
from tests.attacks.test_data_attacks import examples, seeded


@pytest.mark.parametrize(
    ("attack", "std"), [(FeatureNoise(), 31.6228), (FeatureNoise(std=1000.0), 1000.0)]
)
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
    first, again = (
        FeatureNoise(std).poison(old, y, generator=seeded(seed))[0] for old in (x, x + 1)
    )
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
