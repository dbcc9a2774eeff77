"""The arguments of a Dataset, how it is divided, and how test examples are held out."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data import Dataset
from equipoise.data.dataset import as_share, hold_out


def dataset(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "x": torch.arange(8.0).view(4, 2),
        "y": torch.tensor([0, 1, 2, 1]),
        "test_x": torch.zeros(2, 2),
        "test_y": torch.tensor([2, 0]),
        "classes": 3,
    }
    return Dataset(**(fields | changes))


def test_split():
    clients = dataset().split(
        [torch.tensor([3, 0]), torch.tensor([1]), torch.tensor([], dtype=torch.int64)]
    )
    assert [x.tolist() for x, _ in clients] == [[[6, 7], [0, 1]], [[2, 3]], []]
    assert [y.tolist() for _, y in clients] == [[1, 0], [1], []]


def test_split_takes_iterators():
    clients = dataset().split(torch.tensor([i]) for i in (3, 0))
    assert [y.tolist() for _, y in clients] == [[1], [0]]


def test_split_copies():
    data = dataset()
    data.split([torch.arange(4)])[0][0].zero_()
    assert data.x.sum() == 28


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (torch.tensor([0, 4]), r"parts\[1\] must hold indices from 0 to 3, found 4"),
        (torch.tensor([0, -1]), r"parts\[1\] must hold indices from 0 to 3, found -1"),
        (
            torch.tensor([0.0]),
            r"parts\[1\] must be int64 indices of shape \(examples,\), found float32 \(1,\)",
        ),
        (torch.tensor([True] * 4), r"parts\[1\] must be int64 .* found bool \(4,\)"),
        (torch.tensor([[0]]), r"parts\[1\] must be int64 .* found int64 \(1, 1\)"),
        ([0], r"parts\[1\] must be int64 .* found list"),
    ],
)
def test_bad_parts(part: Tensor, message: str):
    with pytest.raises(ValueError, match=message):
        dataset().split([torch.tensor([0]), part])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": torch.zeros(4, 2).double()},
            r"x must be float32 of shape \(N, \*features\) with N > 0, found float64",
        ),
        ({"x": torch.zeros(4)}, r"x must be float32 .* found float32 \(4,\)"),
        (
            {"x": torch.zeros(0, 2), "y": torch.zeros(0).long()},
            r"x must be .* found float32 \(0, 2\)",
        ),
        ({"x": [[0.0, 1.0]]}, "x must be float32 .* found list"),
        ({"test_x": torch.zeros(2, 2).int()}, r"test_x must be float32 .* found int32 \(2, 2\)"),
        (
            {"test_x": torch.zeros(2, 3)},
            r"test_x must be shaped like x, float32 \(4, 2\), found float32 \(2, 3\)",
        ),
        (
            {"y": torch.tensor([0, 1, 2])},
            r"y must be int64 \(4,\) for 3 classes, found int64 \(3,\)",
        ),
        ({"y": torch.zeros(4)}, r"y must be int64 \(4,\) for 3 classes, found float32 \(4,\)"),
        ({"y": torch.tensor([0, 1, 2, 3])}, "y must hold labels from 0 to 2, found 3"),
        ({"y": torch.tensor([0, 1, -2, 2])}, "y must hold labels from 0 to 2, found -2"),
        ({"test_y": torch.tensor([3, 0])}, "test_y must hold labels from 0 to 2, found 3"),
        (
            {"classes": None},
            r"y must be float32 \(4,\) for a regression, classes = None, found int64 \(4,\)",
        ),
        ({"classes": 0}, "classes must be an integer at least 1, found 0"),
        ({"owners": torch.zeros(3).long()}, r"owners must be int64 \(4,\), found int64 \(3,\)"),
        ({"owners": torch.zeros(4)}, r"owners must be int64 \(4,\), found float32 \(4,\)"),
        (
            {"owners": torch.tensor([0, 0, 2, 2])},
            "owners must number the clients from 0 without gaps, found no .* of 1",
        ),
        ({"owners": torch.tensor([0, 0, -1, 1])}, "owners must hold clients from 0 to 3, found -1"),
    ],
)
def test_bad_fields(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        dataset(**changes)


def test_regression_targets():
    data = dataset(y=torch.rand(4), test_y=torch.rand(2), classes=None)
    assert data.classes is None
    assert data.owners is None


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 5))
def test_hold_out_sizes(groups: list[int], tenths: int, seed: int):
    counts = torch.tensor(groups).bincount()
    expected = [size * tenths // 10 for size in counts.tolist()]
    if not sum(expected):
        with pytest.raises(
            ValueError,
            match="test_share must be larger, found no test example in groups of at most",
        ):
            hold_out(
                torch.tensor(groups),
                lambda size: size * tenths // 10,
                torch.Generator().manual_seed(seed),
            )
        return
    generator = torch.Generator().manual_seed(seed)
    train, test = hold_out(torch.tensor(groups), lambda size: size * tenths // 10, generator)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(groups)))
    assert train.tolist() == sorted(train.tolist())
    assert test.tolist() == sorted(test.tolist())
    assert torch.tensor(groups)[test].bincount(minlength=len(counts)).tolist() == expected


def test_hold_out_is_uniform():
    groups, times = torch.tensor([0, 1, 0, 1, 0, 0]), 2000
    generator = torch.Generator().manual_seed(0)
    chosen = torch.cat(
        [hold_out(groups, lambda size: size // 2, generator)[1] for _ in range(times)]
    )
    assert (chosen.bincount(minlength=6) / times - 0.5).abs().max() < 0.05


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.1, Fraction(1, 10)), (0.25, Fraction(1, 4)), (1e-5, Fraction(1, 10**5))],
)
def test_exact_shares(value: float, expected: Fraction):
    assert as_share("test_share", value) == as_share("test_share", np.float64(value)) == expected


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan"), "0.5", None])
def test_bad_shares(value: float):
    with pytest.raises(
        ValueError, match=f"test_share must be a number between 0 and 1, found {value!r}"
    ):
        as_share("test_share", value)
