"""The kernels in C and those in torch cannot be told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.kernels import native, networks
from equipoise.kernels.blocks import new_output

pytestmark = pytest.mark.skipif(native._open() is None, reason="equipoise was installed without a compiler")
DTYPES = {torch.float32: 2e-6, torch.float64: 1e-14}


@pytest.fixture(autouse=True, params=[0, 1, 2], ids=["baseline", "AVX2", "AVX-512"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every instruction set that this CPU has."""
    library = native._open()
    assert library is not None
    if library.eq_use_instructions(request.param) != request.param:
        pytest.skip("this CPU does not have them")
    monkeypatch.setattr(native, "LIBRARY", library)
    yield
    library.eq_use_instructions(2)


def matrix(rows: int, d: int, dtype: torch.dtype, *, offset: int = 0, gap: int = 0, seed: int = 0) -> Tensor:
    """Random rows that may start anywhere in memory and be any distance apart."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, offset + d + gap, generator=generator, dtype=torch.float64).to(dtype)
    return memory[:, offset : offset + d]


shapes = st.tuples(st.integers(1, 9), st.sampled_from([1, 3, 7, 8, 16, 33, 255, 256, 257, 1023, 1024, 1025, 3000]))
places = st.tuples(st.integers(0, 9), st.integers(0, 9))
dtypes = st.sampled_from(list(DTYPES))


@given(shape=shapes, place=places, dtype=dtypes, pairs=st.integers(0, 12), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_pairs(shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype, pairs: int, seed: int) -> None:
    (rows, d), (offset, gap) = shape, place
    a, b = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed), matrix(rows + 1, d, dtype, seed=seed + 1)
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(rows, (pairs,), generator=generator).sort().values
    right = torch.randint(rows + 1, (pairs,), generator=generator)
    x, y = a.double()[left], b.double()[right]
    scale = x.abs().square().sum(1) + y.square().sum(1) + 1e-30
    apart = native.squared_differences(a, left, b, right) - (x - y).square().sum(1)
    assert (apart.abs() <= DTYPES[dtype] * scale).all()
    assert ((native.products(a, left, b, right) - (x * y).sum(1)).abs() <= DTYPES[dtype] * scale).all()


@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-6])
def test_distances_near_consensus_hold_1e_6(spread: float) -> None:
    middle = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(0))
    a = middle + spread * matrix(6, 50_000, torch.float32)
    left, right = torch.triu_indices(6, 6, offset=1)
    exact = (a.double()[left] - a.double()[right]).square().sum(1)
    torch.testing.assert_close(native.squared_differences(a, left, a, right), exact, rtol=1e-6, atol=0)


def test_a_pair_is_measured_alike_in_any_company() -> None:
    a = matrix(7, 2500, torch.float32)
    left, right = torch.triu_indices(7, 7, offset=1)
    together = native.squared_differences(a, left, a, right)
    alone = torch.cat([native.squared_differences(a, left[p : p + 1], a, right[p : p + 1]) for p in range(len(left))])
    assert torch.equal(together, alone)


@given(shape=shapes, place=places, dtype=dtypes, n=st.integers(0, 6), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_weighted_sums(shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype, n: int, seed: int) -> None:
    (rows, d), (offset, gap) = shape, place
    bank = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed)
    weights = torch.randn(n, rows, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weights *= torch.rand(n, rows, generator=torch.Generator().manual_seed(seed + 1)) < 0.5
    receivers, columns = weights.nonzero(as_tuple=True)
    out = new_output(bank, n, d)
    native.weighted_sums(bank, n, receivers, columns, weights[receivers, columns], out)
    scale = weights.abs() @ bank.double().abs() + 1e-30
    assert ((out.double() - weights @ bank.double()).abs() <= DTYPES[dtype] * scale).all()


@given(count=st.integers(1, 40), d=st.sampled_from([1, 5, 8, 31, 256, 300]), dtype=dtypes, place=places, data=st.data())
@settings(max_examples=80, deadline=None)
def test_trimmed_means(count: int, d: int, dtype: torch.dtype, place: tuple[int, int], data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (count - 1) // 2))
    values = matrix(count + 2, d, dtype, offset=place[0], gap=place[1], seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows = torch.stack(
        [torch.randperm(count + 2, generator=torch.Generator().manual_seed(r))[:count] for r in range(3)]
    )
    out, receivers = torch.full((4, d), torch.nan, dtype=dtype), torch.tensor([3, 0, 1])
    native.trimmed_means(values, rows, trim, out, receivers)
    expected = values[rows].double().sort(1).values[:, trim : count - trim].mean(1)
    torch.testing.assert_close(out[receivers].double(), expected, rtol=1e-5, atol=1e-6)
    assert out[2].isnan().all()  # nobody asked for it


@given(count=st.integers(2, 30), d=st.sampled_from([1, 5, 8, 31, 32, 70]), dtype=dtypes, data=st.data())
@settings(max_examples=80, deadline=None)
def test_trimmed_means_without_one_of_all(count: int, d: int, dtype: torch.dtype, data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (count - 2) // 2))
    values = matrix(count + 1, d, dtype, offset=3, gap=2, seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows = torch.arange(1, count + 1)
    out = torch.full((count + 1, d), torch.nan, dtype=dtype)
    native.trimmed_means_but_one(values, rows, rows, trim, out, rows - 1)
    for r in rows.tolist():
        others = values[[i for i in rows.tolist() if i != r]].double().sort(0).values
        expected = others[trim : count - 1 - trim].mean(0)
        torch.testing.assert_close(out[r - 1].double(), expected, rtol=1e-5, atol=1e-6)
    assert out[count].isnan().all()


def test_huge_values_do_not_overflow() -> None:
    values = torch.full((4, 20), 3e38)
    out = torch.empty(1, 20)
    native.trimmed_means(values, torch.arange(4)[None], 1, out, torch.tensor([0]))
    assert (out == 3e38).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    def everything() -> list[Tensor]:
        sums, means = torch.empty(9, 40_001), torch.empty(9, 40_001)
        native.weighted_sums(bank, 9, receivers, rows, torch.full((len(rows),), 0.3).double(), sums)
        native.trimmed_means(bank, rows.view(9, 4), 1, means, torch.arange(9))
        return [native.squared_differences(bank, receivers, bank, rows), sums, means]

    bank, before = matrix(9, 40_001, torch.float32), torch.get_num_threads()
    receivers = torch.arange(9).repeat_interleave(4)
    rows = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i))[:4] for i in range(9)]).flatten()
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(alone, everything(), strict=True))
    finally:
        torch.set_num_threads(before)


def test_what_the_library_serves() -> None:
    x = torch.ones(2, 3)
    assert native.serves(x, x.double(), x[:, 1:])
    assert not any(map(native.serves, (x.half(), x.bfloat16(), x.T, x.to("meta"))))
    with native.disabled():
        assert not native.serves(x)
    assert native.serves(x)


def test_the_networks_in_c_are_those_in_python() -> None:
    header = Path(networks.__file__).parents[1] / "native" / "networks.h"
    assert header.read_text() == networks.c_header()
