"""Comparison with byzfl where it has the same rule, and where it differs from the definition."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from benchmarks import peers

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed"
)
F = 2


def theirs(name: str, *options: Any, **named: Any) -> Any:
    peers.byzfl_aggregators()
    module = "preaggregators" if name in ("NNM", "ARC", "Clipping") else "aggregators"
    found = importlib.import_module(f"byzfl.aggregators.{module}")
    return getattr(found, name)(*options, **named)


def messages(seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    received = torch.randn(11, 40, generator=source)
    received[:F] += 1.5
    return received


CASES: dict[str, tuple[Any, Any]] = {
    "MeaMed": (eq.MeaMed(F), lambda: theirs("Meamed", F)),
    "MDA": (eq.MDA(F), lambda: theirs("MDA", F)),
    # byzfl counts n - f - 1 nearest models, which is the score for one malicious model less.
    "MultiKrum": (eq.MultiKrum(11 - F, F - 1), lambda: theirs("MultiKrum", F)),
    # With enough steps, and less smoothing, both reach the minimum.
    "GeometricMedian": (eq.GeometricMedian(), lambda: theirs("GeometricMedian", 1e-9, 500)),
    "CenteredClip": (
        eq.CenteredClip(tau=3.0, steps=4),
        lambda: theirs("CenteredClipping", L=4, tau=3.0),
    ),
    "NNM": (eq.NNM(eq.MeaMed(F)), lambda: lambda x: theirs("Meamed", F)(theirs("NNM", F)(x))),
    # Own, which byzfl takes among the vectors, is 0 here.
    "NNA": (eq.NNA(F), lambda: lambda x: theirs("MoNNA", F)(torch.cat([torch.zeros(1, 40), x]))),
    # The next two clip around 0, which is own here.
    "StaticClip": (
        eq.StaticClip(eq.TrimmedMean(F), radius=6.0),
        lambda: lambda x: theirs("TrMean", F)(theirs("Clipping", 6.0)(x)),
    ),
    "ARC": (eq.ARC(eq.TrimmedMean(F)), lambda: lambda x: theirs("TrMean", F)(theirs("ARC", F)(x))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_byzfl_agrees(name: str, seed: int) -> None:
    ours, make = CASES[name]
    received = messages(seed)
    expected = make()(received.clone())
    found = ours(torch.zeros(40), received).model
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_byzfl_stops_early() -> None:
    """Three steps from 0 depend on where 0 is: the geometric median does not."""
    received = messages(0)
    shift = torch.full((40,), 100.0)
    own = torch.zeros(40)
    moved = eq.GeometricMedian()(own, received + shift).model - shift
    torch.testing.assert_close(
        moved, eq.GeometricMedian()(own, received).model, rtol=1e-3, atol=1e-3
    )
    median = theirs("GeometricMedian")
    assert (median(received + shift) - shift - median(received)).norm() > 0.01


@pytest.mark.parametrize("name", ["CAF", "SMEA"])
def test_byzfl_varies(name: str) -> None:
    """Its power iteration takes one step from a random vector; our eigenvalues are exact."""
    received = messages(0)
    aggregate = theirs(name, F)
    torch.manual_seed(0)
    assert not torch.equal(aggregate(received), aggregate(received))
    own = torch.zeros(40)
    rule = getattr(eq, name)(F)
    assert torch.equal(rule(own, received).model, rule(own, received).model)
