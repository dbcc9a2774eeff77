"""A set of clients is a mask or ids of any kind; anything else is a clear error."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from equipoise._utils.validation import as_mask


@pytest.mark.parametrize(
    "clients",
    [
        [0, 2],
        {2, 0},
        pytest.param((i for i in (2, 0)), id="generator"),
        np.array([0, 2], dtype=np.int32),
        np.array([True, False, True]),
        [True, False, True],
        torch.tensor([2, 0], dtype=torch.int32),
        torch.tensor([True, False, True]),
    ],
    ids=str,
)
def test_as_mask_takes_masks_and_ids(clients):
    assert as_mask(clients, 3).tolist() == [True, False, True]


@pytest.mark.parametrize(
    "nobody", [None, [], set(), torch.tensor([]), torch.zeros(3, dtype=torch.bool)], ids=str
)
def test_as_mask_of_nobody(nobody):
    mask = as_mask(nobody, 3)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [False, False, False]


def test_as_mask_does_not_write_to_its_input():
    ids = torch.tensor([2, 0])
    as_mask(ids, 3)
    assert ids.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([3], "liars must be from 0 to 2, found 3"),
        ([-1, 0], "liars must be from 0 to 2, found -1 to 0"),
        ([1, 0, 1], "liars must name every client once, found client 1 more than once"),
        (
            torch.ones(4, dtype=torch.bool),
            "liars must be a bool mask of shape (3,) or client ids, found bool (4,)",
        ),
        (
            torch.ones(1, 3),
            "liars must be a bool mask of shape (3,) or client ids, found float32 (1, 3)",
        ),
        ([0.0, 1.0], "liars must be a bool mask of shape (3,) or client ids, found float64 (2,)"),
        (2, "liars must be a bool mask of shape (3,) or client ids, found 2"),
        ("ab", "liars must be a bool mask of shape (3,) or client ids, found 'ab'"),
        (
            [[0], [1, 2]],
            "liars must be a bool mask of shape (3,) or client ids, found [[0], [1, 2]]",
        ),
    ],
    ids=str,
)
def test_bad_clients_say_what_was_expected(clients, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        as_mask(clients, 3, name="liars")
