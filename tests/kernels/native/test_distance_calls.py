"""Norms, distances and scalar products in C against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.kernels import native
from tests.instruction_sets import instructions  # noqa: F401
from tests.native_cases import DTYPES, dtypes, matrix, places, seeded, shapes


@given(
    shape=shapes,
    place=places,
    dtype=dtypes,
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_pairs(
    shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype, share: float, seed: int
) -> None:
    """Few pairs are measured one by one, many in tiles."""
    (rows, d) = shape
    (offset, gap) = place
    a = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed)
    b = matrix(rows + 1, d, dtype, seed=seed + 1)
    both = torch.cat([a, b]).double()
    left, right = torch.triu_indices(len(both), len(both))
    some = torch.rand(len(left), generator=seeded(seed)) < share
    left = left[some]
    right = right[some]
    scale = both[left].square().sum(1) + both[right].square().sum(1) + 1e-30
    tolerance = min(DTYPES[dtype], 2e-6)
    for differ, truth in (
        (True, (both[left] - both[right]).square()),
        (False, both[left] * both[right]),
    ):
        measured, squares = native.measure([a, b], left, right, differ=differ)
        assert ((measured - truth.sum(1)).abs() <= tolerance * scale).all()
        torch.testing.assert_close(squares, both.square().sum(1), rtol=2e-6, atol=0)


@given(shape=shapes, place=places, dtype=dtypes)
@settings(max_examples=40, deadline=None)
def test_norms(shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype) -> None:
    x = matrix(*shape, dtype, offset=place[0], gap=place[1])
    torch.testing.assert_close(
        native.squared_norms(x), x.double().square().sum(1), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-6])
@pytest.mark.parametrize("pairs", [15, 4], ids=["tiles", "pairs"])
def test_near_consensus(spread: float, pairs: int) -> None:
    middle = torch.randn(1, 50_000, generator=seeded(0))
    a = middle + spread * matrix(6, 50_000, torch.float32)
    left, right = torch.triu_indices(6, 6, offset=1)[:, :pairs]
    exact = (a.double()[left] - a.double()[right]).square().sum(1)
    torch.testing.assert_close(
        native.measure([a], left, right, differ=True)[0], exact, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1.0, 3e3])
@pytest.mark.parametrize("d", [4096, 100_000])
def test_worst_rounding(value: float, d: int) -> None:
    """Equal numbers: all rounding errors have the same sign."""
    a = torch.tensor([[0.0], [value]]).expand(2, d).contiguous()
    exact = d * a[1, :1].double().square()
    measured, squares = native.measure([a], torch.tensor([0]), torch.tensor([1]), differ=True)
    torch.testing.assert_close(measured, exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(squares[1:], exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(native.squared_norms(a)[1:], exact, rtol=1e-6, atol=0)


def test_pairs_are_independent() -> None:
    a = matrix(9, 2500, torch.float32)
    left, right = torch.triu_indices(9, 9, offset=1)[:, :20]
    together = native.measure([a], left, right, differ=True)[0]
    alone = [
        native.measure([a], left[p : p + 1], right[p : p + 1], differ=True)[0]
        for p in range(len(left))
    ]
    assert torch.equal(together, torch.cat(alone))
