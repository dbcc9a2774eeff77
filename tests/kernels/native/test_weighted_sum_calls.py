"""Weighted sums in C against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.kernels import _weighted_sums_native, native
from equipoise.kernels._blocks import new_output
from equipoise.kernels.native._weighted_sum_calls import OWN_SENDER
from tests.instruction_sets import instructions  # noqa: F401
from tests.native_cases import DTYPES, dtypes, matrix, places, seeded, shapes, weighted_sums


@given(
    shape=shapes,
    place=places,
    dtype=dtypes,
    n=st.integers(0, 14),
    few=st.sampled_from([1, 20]),
    share=st.sampled_from([0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_weighted_sums(
    shape: tuple[int, int],
    place: tuple[int, int],
    dtype: torch.dtype,
    n: int,
    few: int,
    share: float,
    seed: int,
) -> None:
    """Few weights are added along edges, many as a matrix."""
    (rows, d) = shape
    (offset, gap) = place
    bank = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed)
    own = matrix(n, d, dtype, seed=seed + 1)
    weights = torch.randn(n, rows, dtype=torch.float64, generator=seeded(seed))
    weights *= torch.rand(n, rows, generator=seeded(seed + 1)) < share
    out = new_output(bank, n, d)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_weighted_sums_native, "BLOCKED_ROWS", few)
        assert weighted_sums(bank, weights, out, own)
    truth = weights @ bank.double() + 0.5 * own.double()
    scale = weights.abs() @ bank.double().abs() + own.double().abs() + torch.finfo(dtype).tiny
    assert ((out.double() - truth).abs() <= DTYPES[dtype] * scale).all()


@given(
    count=st.integers(1, 70),
    d=st.sampled_from([1, 5, 64, 70, 300]),
    dtype=dtypes,
    kinds=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_equal_weights(count: int, d: int, dtype: torch.dtype, kinds: int, seed: int) -> None:
    """Receivers with equal blocks of messages share their sums."""
    bank = matrix(count, d, dtype, offset=3, seed=seed)
    kind = torch.rand(kinds, count, generator=seeded(seed)) < 0.97
    heard = kind[torch.randint(kinds, (9,), generator=seeded(seed))]
    heard[torch.arange(9), torch.randint(count, (9,), generator=seeded(seed + 1))] = False
    weights = heard / torch.randint(1, 3, (9, 1), generator=seeded(seed)).double()
    out = torch.full((9, d), torch.nan, dtype=dtype)
    assert weighted_sums(bank, weights, out)
    scale = weights @ bank.double().abs() + torch.finfo(dtype).tiny
    assert ((out.double() - weights @ bank.double()).abs() <= DTYPES[dtype] * scale).all()
    # The same bits without sharing, and with room for the sums of one block only.
    alone = torch.empty_like(out)
    with pytest.MonkeyPatch.context() as patch:
        for most in (0, 1):
            patch.setattr(_weighted_sums_native, "SHARED_BLOCKS", most)
            assert weighted_sums(bank, weights, alone)
            assert torch.equal(alone, out)


@pytest.mark.parametrize("equal", [False, True])
def test_dense_and_sparse_bits(equal: bool) -> None:
    """A matrix, shared runs and lists give the same bits."""
    bank = matrix(30, 500, torch.float32)
    weights = torch.rand(12, 30, generator=seeded(0), dtype=torch.float64)
    out = torch.empty(12, 500)
    weighted_sums(bank, torch.ones(12, 30) if equal else weights, out)
    for receiver in (0, 7):
        alone = torch.zeros_like(weights)
        alone[receiver] = 1 if equal else weights[receiver]
        some = torch.empty_like(out)
        weighted_sums(bank, alone, some)
        assert torch.equal(some[receiver], out[receiver])


def test_edges() -> None:
    slots = torch.tensor([[4, 2, 4, 9], [1, 0, 3, 9]])
    weights = torch.tensor([[0.5, 1.0, 0.25, 0.0], [-2.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    own_weights = torch.tensor([0.0, 0.125], dtype=torch.float64)
    senders = torch.tensor([[6, 2, 4, -1], [1, 0, 3, -1]])
    edges = native.weighted_edges(slots, weights, senders, 5, own_weights, 5)
    assert edges.starts.tolist() == [0, 3, 6]
    assert edges.rows.tolist() == [2, 4, 4, 1, 3, 6]
    assert edges.weights.tolist() == [1.0, 0.25, 0.5, -2.0, 1.0, 0.125]
    assert edges.senders.tolist() == [2, 4, 6, 1, 3, OWN_SENDER]
    assert (edges.smallest, edges.largest) == (0.125, 2.0)
    for row in (-1, 5):
        slots[0, 0] = row
        with pytest.raises(ValueError, match="beyond their limits"):
            native.weighted_edges(slots, weights, senders, 5, own_weights, 5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [0, 63, 299])
def test_sums_report_nonfinite(bad: float, column: int) -> None:
    bank = matrix(30, 300, torch.float32)
    out = torch.empty(8, 300)
    weights = torch.ones(8, 30)
    weights[0, 2] = 0
    for kind in (weights, weights * torch.rand(8, 30), weights * (torch.arange(30) < 3)):
        bank[2] = 1.0
        assert weighted_sums(bank, kind, out)
        bank[2, column] = bad
        assert not weighted_sums(bank, kind, out)
        assert (~out.isfinite()).any(1).tolist() == [False] + [True] * 7
        kind[:, 2] = 0
        assert weighted_sums(bank, kind, out)
