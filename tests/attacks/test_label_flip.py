"""LabelFlip against dictionaries and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.attacks.label_flip import LabelFlip


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_mapping_is_a_dictionary(mapping: dict[int, int], labels: list[int]):
    y = torch.tensor(labels, dtype=torch.int64)
    x = torch.zeros(len(labels), 2)
    same_x, flipped = LabelFlip(mapping).poison(x, y)
    assert same_x is x
    assert flipped is not y
    assert flipped.tolist() == [mapping.get(label, label) for label in labels]


@pytest.mark.parametrize(
    ("attack", "y", "expected"),
    [
        (LabelFlip({3: 5}), list(range(10)), [0, 1, 2, 5, 4, 5, 6, 7, 8, 9]),
        (LabelFlip({0: 1, 1: 0}), [0, 1, 1, 0], [1, 0, 0, 1]),
        (LabelFlip(offset=5), [0.5, -2.25], [5.5, 2.75]),
        (LabelFlip(offset=-0.5), [0.5], [0.0]),
        (LabelFlip(offset=5.0), [0, 4], [5, 9]),
        (LabelFlip({-1: 1, 1: -1}), [[1, -1], [2, 1]], [[-1, 1], [2, -1]]),
    ],
)
def test_by_hand(attack: LabelFlip, y: list[Any], expected: list[Any]):
    given_y = torch.tensor(y)
    flipped = attack.poison(torch.zeros(len(y), 1), given_y)[1]
    assert flipped.tolist() == expected
    assert (flipped.dtype, flipped.shape) == (given_y.dtype, given_y.shape)
    assert torch.equal(given_y, torch.tensor(y))


def test_no_gradients():
    assert (
        not LabelFlip(offset=5)
        .poison(torch.zeros(2, 1), torch.ones(2, requires_grad=True))[1]
        .requires_grad
    )


def test_negative_offset_unsigned():
    flipped = LabelFlip(offset=-3).poison(
        torch.zeros(2, 1), torch.tensor([3, 255], dtype=torch.uint8)
    )[1]
    assert flipped.tolist() == [0, 252]


def test_equal_mappings():
    assert LabelFlip({3: 5, 1: 2}) == LabelFlip({1: 2, 3: 5}) == LabelFlip(((3, 5), (1, 2)))
    assert hash(LabelFlip({3: 5, 1: 2})) == hash(LabelFlip({1: 2, 3: 5}))
    assert LabelFlip({np.int64(3): np.int64(5)}) == LabelFlip({3: 5})  # type: ignore[dict-item]
    assert LabelFlip({3: 5}) != LabelFlip({3: 6})


def test_mapping_is_copied():
    mapping = {3: 5}
    attack = LabelFlip(mapping)
    mapping[3] = 7
    assert attack == LabelFlip({3: 5})
