"""C refuses calls beyond its limits, independently of the checks in Python."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels.native._calls import addresses, array
from equipoise.kernels.native._library import SUFFIXES, function, tile_rows
from tests.instruction_sets import instructions  # noqa: F401

OUT_OF_RANGE = -2
D = 70  # an incomplete strip

both_types = pytest.mark.parametrize("dtype", SUFFIXES, ids=str)


def integers(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def network(steps: Sequence[int], kept: Sequence[int]) -> tuple[Tensor, Tensor]:
    return integers(steps, torch.int32).reshape(-1, 3), integers(kept, torch.int32)


def call_middle(
    dtype: torch.dtype,
    counts: Sequence[int],
    trims: Sequence[int],
    steps: Sequence[int] = (),
    kept: Sequence[int] = (),
    row: int = 0,
) -> int:
    x = torch.ones(3, D, dtype=dtype)
    out = torch.empty(len(counts), D, dtype=dtype)
    rows = addresses([x])
    results = addresses([out])
    starts = integers([0, *counts]).cumsum(0)
    heard = torch.full((sum(counts),), row)
    trim_list = integers(trims)
    lists = (starts.data_ptr(), heard.data_ptr(), *array(trim_list))
    step_list, kept_list = network(steps, kept)
    selection = (*array(step_list), *array(kept_list))
    target = (results.data_ptr(), 0, D, False)
    return function("middle", x)(*array(rows), *lists, *selection, *target)


@both_types
def test_middle(dtype: torch.dtype) -> None:
    most = native.limits().max_values
    compiled = native.limits().max_compiled
    listed = compiled + 1
    kept = range(listed)
    assert call_middle(dtype, [3, 1], [1, 0]) == 1
    assert call_middle(dtype, [listed, 2], [0, 0], kept=kept) == 1
    assert call_middle(dtype, [most], [0], kept=range(most)) == 1
    assert call_middle(dtype, [most + 1], [0], kept=range(most + 1)) == OUT_OF_RANGE
    assert call_middle(dtype, [0], [0]) == OUT_OF_RANGE  # no values
    assert call_middle(dtype, [4], [2]) == OUT_OF_RANGE  # none left
    assert call_middle(dtype, [4], [-1]) == OUT_OF_RANGE
    assert call_middle(dtype, [3], [1], row=3) == OUT_OF_RANGE
    assert call_middle(dtype, [3], [1], row=-1) == OUT_OF_RANGE
    assert call_middle(dtype, [listed], [0]) == OUT_OF_RANGE  # no network
    assert call_middle(dtype, [listed, listed + 1], [0, 0], kept=kept) == OUT_OF_RANGE
    assert call_middle(dtype, [listed, listed + 2], [0, 1], kept=kept) == OUT_OF_RANGE
    assert call_middle(dtype, [listed], [0], [0, listed, 3], kept) == OUT_OF_RANGE
    assert call_middle(dtype, [listed], [0], [-1, 1, 3], kept) == OUT_OF_RANGE
    assert call_middle(dtype, [listed], [0], kept=[*range(compiled), listed]) == OUT_OF_RANGE


def call_nearest(
    dtype: torch.dtype,
    count: int,
    amount: int,
    *,
    receivers: int = 1,
    row: int = 0,
    steps: Sequence[int] = (),
    missing: int = 0,
) -> int:
    x = torch.ones(3, D, dtype=dtype)
    out = torch.empty(1, D, dtype=dtype)
    rows = addresses([x])
    results = addresses([out])
    heard = torch.full((max(1, count),), row)
    step_list, kept_list = network(steps, range(count - missing))
    values = (heard.data_ptr(), count, receivers, amount)
    selection = (*array(step_list), *array(kept_list))
    target = (results.data_ptr(), 0, D, False)
    return function("nearest", x)(*array(rows), *values, *selection, *target)


@both_types
def test_nearest(dtype: torch.dtype) -> None:
    most = native.limits().max_values
    assert call_nearest(dtype, 3, 2) == 1
    assert call_nearest(dtype, most, most) == 1
    assert call_nearest(dtype, most + 1, 1) == OUT_OF_RANGE
    assert call_nearest(dtype, 0, 0) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 0) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 4) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 2, receivers=-1) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 2, row=3) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 2, row=-1) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 2, steps=[0, 3, 3]) == OUT_OF_RANGE
    assert call_nearest(dtype, 3, 2, missing=1) == OUT_OF_RANGE


def call_middle_but_one(
    dtype: torch.dtype, count: int, left_out: int, trim: int, steps: Sequence[int] = ()
) -> int:
    x = torch.ones(count, D, dtype=dtype)
    out = torch.empty(1, D, dtype=dtype)
    rows = addresses([x])
    results = addresses([out])
    step_list, kept_list = network(steps, range(trim, count - trim))
    places = integers([left_out])
    selection = (*array(places), trim, *array(step_list), *array(kept_list))
    target = (results.data_ptr(), 0, D, False)
    return function("middle_but_one", x)(*array(rows), *selection, *target)


@both_types
def test_middle_but_one(dtype: torch.dtype) -> None:
    most = native.limits().max_values
    assert call_middle_but_one(dtype, 3, 2, 0) == 1
    assert call_middle_but_one(dtype, most, most - 1, 0) == 1
    assert call_middle_but_one(dtype, most + 1, 0, 0) == OUT_OF_RANGE
    assert call_middle_but_one(dtype, 1, 0, 0) == OUT_OF_RANGE  # none left
    assert call_middle_but_one(dtype, 3, 3, 0) == OUT_OF_RANGE
    assert call_middle_but_one(dtype, 3, -1, 0) == OUT_OF_RANGE
    assert call_middle_but_one(dtype, 3, 0, 1) == OUT_OF_RANGE  # one rank, which may be left out
    assert call_middle_but_one(dtype, 3, 0, 0, [0, 3, 3]) == OUT_OF_RANGE


def call_measure(
    dtype: torch.dtype,
    left: Sequence[int],
    right: Sequence[int],
    tiles: int = 0,
    pairs: int = -1,
    others: int = 0,
) -> int:
    x = torch.ones(5, D, dtype=dtype)
    rows = addresses([x])
    pairs = len(left) if pairs < 0 else pairs
    ends = (integers(left), integers(right))
    out = torch.zeros(max(pairs, 1), dtype=torch.float64)
    norms = torch.zeros(5, dtype=torch.float64)
    pointers = (ends[0].data_ptr(), ends[1].data_ptr())
    columns = (0, D, out.data_ptr(), norms.data_ptr())
    return function("measure", x)(*array(rows), tiles, others, *pointers, pairs, True, *columns)


@both_types
def test_measure(dtype: torch.dtype) -> None:
    tile = tile_rows() ** 2
    assert call_measure(dtype, [0, 4], [4, 0]) == 0
    assert call_measure(dtype, [0, 5], [1, 1]) == OUT_OF_RANGE
    assert call_measure(dtype, [0, 1], [1, -1]) == OUT_OF_RANGE
    assert call_measure(dtype, [], [], tiles=2, pairs=3 * tile) == 0  # five rows are two tiles
    assert call_measure(dtype, [], [], tiles=2, pairs=2 * tile) == OUT_OF_RANGE
    assert call_measure(dtype, [], [], tiles=3, pairs=3 * tile) == OUT_OF_RANGE
    assert call_measure(dtype, [], [], tiles=-1, pairs=0) == OUT_OF_RANGE
    assert call_measure(dtype, [], [], tiles=1, others=1, pairs=tile) == 0
    assert call_measure(dtype, [], [], tiles=2, others=1, pairs=tile) == OUT_OF_RANGE
    assert call_measure(dtype, [], [], tiles=1, others=-1, pairs=2 * tile) == OUT_OF_RANGE
    assert call_measure(dtype, [], [], tiles=1, others=3, pairs=0) == OUT_OF_RANGE


@both_types
@pytest.mark.parametrize("end", [-1, 5])
def test_exact_measure(dtype: torch.dtype, end: int) -> None:
    x = torch.ones(5, D, dtype=dtype)
    scales = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for left, right in (([0], [end]), ([end], [0])):
        with pytest.raises(ValueError, match="beyond their limits"):
            native.exact_measure([x], integers(left), integers(right), *scales, differ=True)


def call_sums(
    dtype: torch.dtype,
    starts: Sequence[int],
    edges: Sequence[int],
    inner: Sequence[int] = (),
    filled: int = 3,
    run: int = 0,
) -> int:
    """Lists with an inner row have no result of their own."""
    x = torch.ones(3, D, dtype=dtype)
    out = torch.empty(len(starts) - 1, D, dtype=dtype)
    rows = addresses([x])
    results = addresses([out])
    results[: len(inner)] = 0
    weights = torch.ones(len(edges), dtype=dtype)
    inner_rows = integers([*inner, *[0] * len(out)])
    runs = integers([run] * len(out))
    lists = (integers(starts), integers(edges), weights, runs, inner_rows)
    target = (len(out), results.data_ptr(), 0, D, False)
    pointers = (part.data_ptr() for part in lists)
    return function("sums", x)(*array(rows), filled, *pointers, *target)


@both_types
def test_sums(dtype: torch.dtype) -> None:
    assert call_sums(dtype, [0, 2, 3], [0, 2, 1]) == 1
    assert call_sums(dtype, [0, 2, 3], [0, 2, 1], run=1) == 1
    assert call_sums(dtype, [0, 2, 3], [0, 2, 1], run=-1) == OUT_OF_RANGE
    assert call_sums(dtype, [0, 2, 3], [0, 3, 1]) == OUT_OF_RANGE
    assert call_sums(dtype, [0, 2, 3], [0, -1, 1]) == OUT_OF_RANGE
    assert call_sums(dtype, [0, 2, 1], [0, 1, 2]) == OUT_OF_RANGE  # not ascending
    assert call_sums(dtype, [-1, 2, 3], [0, 1, 2]) == OUT_OF_RANGE
    assert call_sums(dtype, [0, 2, 3], [0, 2, 3], [3], filled=4) == 1
    assert call_sums(dtype, [0, 2, 3], [0, 2, 4], [3], filled=4) == OUT_OF_RANGE
    assert call_sums(dtype, [0, 2, 3], [0, 2, 3], [4], filled=4) == OUT_OF_RANGE
    assert call_sums(dtype, [0, 2, 3], [0, 2, 1], [2], filled=4) == OUT_OF_RANGE  # not inner
    assert call_sums(dtype, [0, 2, 3], [0, 1, 1], filled=2) == OUT_OF_RANGE


@both_types
def test_dense_sums(dtype: torch.dtype) -> None:
    x = torch.ones(3, D, dtype=dtype)
    rows = addresses([x])
    least = native.limits().min_dense_receivers
    for receivers in range(least + 1):
        weights = torch.ones(receivers, 3, dtype=dtype)
        out = torch.empty(receivers, D, dtype=dtype)
        results = addresses([out])
        extra = torch.zeros(receivers, dtype=torch.int64)
        sources = (*array(rows), weights.data_ptr(), extra.data_ptr(), weights.data_ptr())
        target = (receivers, results.data_ptr(), 0, D, False)
        code = function("dense_sums", x)(*sources, *target)
        assert code == (1 if receivers >= least else OUT_OF_RANGE)


def test_python_raises() -> None:
    count = native.limits().max_values + 1
    x = torch.ones(count, D)
    out = torch.empty(1, D)
    one = torch.tensor([0])
    rows = torch.arange(count)
    with pytest.raises(ValueError, match="beyond their limits"):
        native.trimmed_means([x], rows, torch.tensor([count]), one, out, one)
    with pytest.raises(ValueError, match="beyond their limits"):
        native.trimmed_means_but_one([x], rows, one, 0, out, one)
