"""Trimmed means in C against sorting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.kernels import _selection_networks, native
from tests.instruction_sets import instructions  # noqa: F401
from tests.native_cases import DTYPES, dtypes, matrix, places, seeded, weighted_sums


@given(counts=st.lists(st.integers(1, 32), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_different_trims(counts: list[int], seed: int) -> None:
    values = matrix(32, 100, torch.float32, seed=seed)
    out = torch.empty(len(counts), 100)
    heard = [
        torch.randperm(32, generator=seeded(seed + i))[:count] for i, count in enumerate(counts)
    ]
    trims = [(seed + i) % ((count + 1) // 2) for i, count in enumerate(counts)]
    sizes = torch.tensor(counts)
    clients = torch.arange(len(counts))
    assert native.trimmed_means(
        [values], torch.cat(heard), sizes, torch.tensor(trims), out, clients
    )
    for rows, trim, found in zip(heard, trims, out, strict=True):
        expected = values[rows].sort(0).values[trim : len(rows) - trim].mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [0, 63, 299])
@pytest.mark.parametrize("dtype", DTYPES)
def test_means_report_nonfinite(bad: float, column: int, dtype: torch.dtype) -> None:
    bank = matrix(4, 300, dtype)
    out = torch.empty(2, 300, dtype=dtype)
    both = torch.tensor([0, 1])
    bank[3, column] = bad
    threes = torch.tensor([3, 3])
    ones = torch.tensor([1, 1])
    assert native.trimmed_means([bank], torch.tensor([0, 1, 2, 0, 2, 1]), threes, ones, out, both)
    assert not native.trimmed_means(
        [bank], torch.tensor([0, 1, 2, 0, 2, 3]), threes, ones, out, both
    )
    assert native.trimmed_means_but_one([bank], torch.arange(3), both, 0, out, both)
    assert not native.trimmed_means_but_one([bank], torch.arange(4), both, 1, out, both)


@given(
    count=st.integers(1, 40),
    d=st.sampled_from([1, 5, 8, 31, 256, 300]),
    dtype=dtypes,
    place=places,
    data=st.data(),
)
@settings(max_examples=120, deadline=None)
def test_trimmed_means(
    count: int, d: int, dtype: torch.dtype, place: tuple[int, int], data: st.DataObject
) -> None:
    trim = data.draw(st.integers(0, (count - 1) // 2))
    values = matrix(count + 2, d, dtype, offset=place[0], gap=place[1], seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows = torch.stack([torch.randperm(count + 2, generator=seeded(r))[:count] for r in range(3)])
    out = torch.full((4, d), torch.nan, dtype=dtype)
    receivers = torch.tensor([3, 0, 1])
    counts = torch.full((3,), count)
    trims = torch.full((3,), trim)
    assert native.trimmed_means(
        [values[:1], values[1:]], rows.flatten(), counts, trims, out, receivers
    )
    expected = values[rows].double().sort(1).values[:, trim : count - trim].mean(1)
    tolerance = max(1e-5, DTYPES[dtype] * 2)
    torch.testing.assert_close(out[receivers].double(), expected, rtol=tolerance, atol=tolerance)
    assert out[2].isnan().all()  # not a receiver


@pytest.mark.parametrize("count", range(1, 40))
def test_integers_are_exact(count: int) -> None:
    """Compiled networks, sorted halves and listed networks; negative numbers, signed zeros."""
    values = torch.randint(-3, 4, (count, 200), generator=seeded(count)).float()
    values[values == 0] *= torch.tensor(-1.0)
    for trim in range((count + 1) // 2):
        out = torch.empty(1, 200)
        one = torch.tensor([0])
        everything = torch.arange(count)
        native.trimmed_means(
            [values], everything, torch.tensor([count]), torch.tensor([trim]), out, one
        )
        kept = values.sort(0).values[trim : count - trim]
        torch.testing.assert_close(out[0], kept.mean(0), rtol=1e-6, atol=1e-6)
        if len(kept) == 1:
            assert torch.equal(out[0], kept[0])


@given(
    count=st.integers(2, 30), d=st.sampled_from([1, 5, 8, 31, 32, 70]), dtype=dtypes, data=st.data()
)
@settings(max_examples=80, deadline=None)
def test_trimmed_means_but_one(count: int, d: int, dtype: torch.dtype, data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (count - 2) // 2))
    values = matrix(count + 1, d, dtype, offset=3, gap=2, seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows = torch.arange(1, count + 1)
    places = torch.arange(count)
    out = torch.full((count + 1, d), torch.nan, dtype=dtype)
    assert native.trimmed_means_but_one([values], rows, places, trim, out, places)
    tolerance = max(1e-5, DTYPES[dtype] * 2)
    for r in range(count):
        others = values[[i + 1 for i in range(count) if i != r]].double().sort(0).values
        expected = others[trim : count - 1 - trim].mean(0)
        torch.testing.assert_close(out[r].double(), expected, rtol=tolerance, atol=tolerance)
    assert out[count].isnan().all()


def nearest_to_median(values: Tensor, amount: int) -> Tensor:
    """The mean of the nearest values of each column (k, d); the lower of two equally far ones."""
    ordered = values.double().sort(0).values
    low = ordered[(len(values) - 1) // 2]
    high = ordered[len(values) // 2]
    # Twice the distances to their mean, which need not be a float64.
    apart = ((ordered - low) + (ordered - high)).abs()
    # A stable sort keeps the lower one first.
    nearest = apart.sort(dim=0, stable=True).indices[:amount]
    return ordered.gather(0, nearest).mean(0)


@given(
    count=st.integers(1, 40),
    d=st.sampled_from([1, 5, 8, 31, 256, 300]),
    dtype=dtypes,
    place=places,
    data=st.data(),
)
@settings(max_examples=120, deadline=None)
def test_means_around_median(
    count: int, d: int, dtype: torch.dtype, place: tuple[int, int], data: st.DataObject
) -> None:
    amount = data.draw(st.integers(1, count))
    values = matrix(count + 2, d, dtype, offset=place[0], gap=place[1], seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows = torch.stack([torch.randperm(count + 2, generator=seeded(r))[:count] for r in range(3)])
    out = torch.full((4, d), torch.nan, dtype=dtype)
    receivers = torch.tensor([3, 0, 1])
    assert native.means_around_median([values[:1], values[1:]], rows, amount, out, receivers)
    expected = torch.stack([nearest_to_median(values[some], amount) for some in rows])
    tolerance = max(1e-5, DTYPES[dtype] * 2)
    torch.testing.assert_close(out[receivers].double(), expected, rtol=tolerance, atol=tolerance)
    assert out[2].isnan().all()  # not a receiver


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf, 1e38, -1e38])
@pytest.mark.parametrize("column", [0, 63, 299])
def test_means_around_median_of_others(bad: float, column: int) -> None:
    """Values that sums of differences may exceed, or that are not finite, are left to torch."""
    bank = matrix(4, 300, torch.float32)
    out = torch.empty(1, 300)
    first = torch.tensor([0])
    bank[3, column] = bad
    assert native.means_around_median([bank], torch.tensor([[0, 1, 2]]), 2, out, first)
    assert not native.means_around_median([bank], torch.tensor([[0, 1, 3]]), 2, out, first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("huge", [1e38, torch.nan])
def test_huge_values_of_others_change_no_bit(huge: float, dtype: torch.dtype) -> None:
    models = matrix(12, 300, dtype)
    graph = eq.Topology.regular(12, 4, seed=0)
    rule = eq.MeaMed(tolerated=1)
    before = rule(models, graph.deliver(models)).model.clone()
    changed = models.clone()
    changed[0] = huge
    after = rule(changed, graph.deliver(changed, keep_nonfinite=True)).model
    away = [i for i in range(1, 12) if 0 not in graph.neighbors(i)]
    assert len(away) >= 5
    assert torch.equal(before[away], after[away])


def test_huge_values() -> None:
    values = torch.full((4, 20), 3e38)
    out = torch.empty(4, 20)
    one = torch.tensor([1])
    assert native.trimmed_means([values], torch.arange(4), 4 * one, one, out, 0 * one)
    assert (out[0] == 3e38).all()
    assert weighted_sums(values, (1 - torch.eye(4)) / 3, out)
    torch.testing.assert_close(out, values)


def test_generated_header() -> None:
    header = Path(_selection_networks.__file__).parent / "native/csrc/networks.h"
    assert header.read_text() == _selection_networks.c_header()
