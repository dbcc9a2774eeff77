"""How far malicious messages move the rules over received models, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.testing import RuleRound, rounds

N = 11
SIZES = st.sampled_from([1e-3, 1.0, 50.0, 1e6, 1e20, 1e37])


def attacked(f: int, size: float, seed: int, same: bool) -> tuple[Tensor, Tensor]:
    """Benign messages around 0, and all messages with f lies of some size."""
    source = torch.Generator().manual_seed(seed)
    benign = torch.randn(N - f, 6, generator=source)
    lies = size * torch.randn(1 if same else f, 6, generator=source)
    return benign, torch.cat([lies.expand(f, 6), benign])


def radius(benign: Tensor, center: Tensor) -> float:
    return float((benign - center).norm(dim=1).max())


@settings(max_examples=60)
@given(st.integers(1, 4), SIZES, st.integers(0, 2**20), st.booleans())
def test_geometric_median_breakdown(f: int, size: float, seed: int, same: bool) -> None:
    """||AGG - c|| <= 2 (n - f) / (n - 2 f) max ||w_j - c|| over benign j, for every c."""
    benign, received = attacked(f, size, seed, same)
    center = benign.mean(0)
    moved = (eq.GeometricMedian()(torch.zeros(6), received).model - center).norm()
    assert moved <= 2 * (N - f) / (N - 2 * f) * radius(benign, center) * (1 + 1e-4)


@pytest.mark.parametrize(
    ("rule", "most", "factor"),
    [
        # An accepted lie is within the diameter of the subset, which benign models could form.
        (eq.MDA(), 4, 2.0),
        (eq.NNM(eq.Median()), 2, 8.0),
        (eq.NNM(eq.TrimmedMean()), 2, 8.0),
        (eq.MeaMed(), 4, 8.0),
        (eq.Bulyan(), 2, 8.0),
        (eq.CAF(), 2, 8.0),
        (eq.SMEA(), 4, 8.0),
        (eq.MultiKrum(), 3, 8.0),
    ],
    ids=lambda value: str(value)[:30],
)
@settings(max_examples=40)
@given(data=st.data(), size=SIZES, seed=st.integers(0, 2**20), same=st.booleans())
def test_stays_near_benign(
    rule: Any, most: int, factor: float, data: st.DataObject, size: float, seed: int, same: bool
) -> None:
    f = data.draw(st.integers(1, most))
    benign, received = attacked(f, size, seed, same)
    center = benign.mean(0)
    moved = (rule(torch.zeros(6), received, tolerated=f).model - center).norm()
    assert moved <= factor * radius(benign, center)


@pytest.mark.parametrize("steps", [1, 4])
@settings(max_examples=40)
@given(rounds())
def test_centered_clip_moves_by_radius(steps: int, case: RuleRound) -> None:
    """||AGG - own|| <= steps * tau."""
    out = eq.CenteredClip(tau=0.5, steps=steps)(case.own, case.inbox)
    moved = (out.model.double() - case.own.double()).norm(dim=1)
    assert (moved <= 0.5 * steps + 1e-5 * (1 + case.own.double().norm(dim=1))).all()
