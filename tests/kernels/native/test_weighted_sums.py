"""Weighted sums in C against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.kernels import native
from equipoise.kernels._blocks import new_output
from tests.instruction_sets import instructions  # noqa: F401
from tests.native_cases import DTYPES, dtypes, matrix, places, seeded, shapes


@given(
    shape=shapes,
    place=places,
    dtype=dtypes,
    n=st.integers(0, 14),
    share=st.sampled_from([0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_weighted_sums(
    shape: tuple[int, int],
    place: tuple[int, int],
    dtype: torch.dtype,
    n: int,
    share: float,
    seed: int,
) -> None:
    """Few weights are added along edges, many as a matrix."""
    (rows, d) = shape
    (offset, gap) = place
    a = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed)
    b = matrix(2, d, dtype, seed=seed + 1)
    both = torch.cat([a, b]).double()
    weights = torch.randn(n, rows + 2, dtype=torch.float64, generator=seeded(seed))
    weights *= torch.rand(n, rows + 2, generator=seeded(seed + 1)) < share
    receivers, columns = weights.nonzero(as_tuple=True)
    out = new_output(a, n, d)
    assert native.weighted_row_sums([a, b], receivers, columns, weights[receivers, columns], out)
    scale = weights.abs() @ both.abs() + torch.finfo(dtype).tiny
    assert ((out.double() - weights @ both).abs() <= DTYPES[dtype] * scale).all()


@given(
    count=st.integers(1, 30),
    d=st.sampled_from([1, 5, 64, 70, 300]),
    dtype=dtypes,
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_sums_but_one(count: int, d: int, dtype: torch.dtype, seed: int) -> None:
    bank = matrix(count + 2, d, dtype, offset=3, seed=seed)
    rows = torch.randperm(count + 2, generator=seeded(seed))[:count]
    left_out = torch.randint(-1, count, (7,), generator=seeded(seed))
    receivers = torch.tensor([5, 0, 1, 2, 8, 4, 6])
    out = torch.full((9, d), torch.nan, dtype=dtype)
    assert native.sums_but_one([bank], rows, left_out, 0.25, out, receivers)
    heard = torch.arange(count) != left_out[:, None]
    truth = 0.25 * heard.double() @ bank.double()[rows]
    scale = 0.25 * heard.double() @ bank.double()[rows].abs() + torch.finfo(dtype).tiny
    assert ((out[receivers].double() - truth).abs() <= DTYPES[dtype] * scale).all()
    assert out[[3, 7]].isnan().all()  # not receivers


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [0, 63, 299])
def test_sums_report_nonfinite(bad: float, column: int) -> None:
    bank = matrix(4, 300, torch.float32)
    out = torch.empty(2, 300)
    edges = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), torch.ones(3, dtype=torch.float64)
    assert native.weighted_row_sums([bank], *edges, out)
    bank[2, column] = bad
    assert not native.weighted_row_sums([bank], *edges, out)
    assert not native.sums_but_one(
        [bank], torch.arange(4), torch.tensor([0, 1]), 1.0, out, torch.tensor([0, 1])
    )
    assert native.sums_but_one(
        [bank], torch.arange(4), torch.tensor([2, 2]), 1.0, out, torch.tensor([0, 1])
    )


def test_nan_stays_on_its_edges() -> None:
    bank = matrix(8, 300, torch.float32)
    out = torch.empty(8, 300)
    bank[5, 7] = torch.nan
    receivers, rows = (torch.ones(8, 8) - torch.eye(8).roll(5, 0)).bool().nonzero(as_tuple=True)
    heard = (rows != 5) | (receivers == 0)
    assert not native.weighted_row_sums(
        [bank], receivers[heard], rows[heard], torch.ones(int(heard.sum())).double(), out
    )
    assert out.isnan().nonzero().tolist() == [[0, 7]]
