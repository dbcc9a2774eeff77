"""NNA and byzfl's MoNNA, which is the same rule with own as one of the vectors."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

import equipoise as eq
from benchmarks.peers import byzfl_aggregators

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed"
)


def monna(own: Tensor, received: Tensor, tolerated: int) -> Tensor:
    found = byzfl_aggregators()
    assert found is not None
    mean: Tensor = found.MoNNA(tolerated, 0)(torch.cat([own[None], received]))
    return mean


def random_models(count: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Own and other models around one of length 30; distances differ by some percent."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(1000, generator=generator)
    sizes = spread * torch.linspace(1, 2, count)[:, None]
    return common, common + sizes * torch.randn(count, 1000, generator=generator)


@pytest.mark.parametrize("seed", range(5))
def test_monna_agrees(seed: int) -> None:
    own, received = random_models(12, 0.5, seed)
    found = eq.NNA(tolerated=3)(own, received).model
    torch.testing.assert_close(found, monna(own, received, 3))


def test_nna_is_right_near_consensus() -> None:
    """Beyond 25 vectors, byzfl multiplies matrices, whose rounding exceeds small distances.

    MoNNA then averages other models than the nearest ones.
    """
    own, received = random_models(30, 1e-4, seed=0)
    exact = (received.double() - own.double()).norm(dim=1).argsort()[:20]
    out = eq.NNA(tolerated=10)(own, received)
    assert out.weights is not None
    assert sorted(exact.tolist()) == out.weights.nonzero().flatten().tolist()
