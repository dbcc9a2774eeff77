"""Comparisons of laws."""

from __future__ import annotations

import pytest
import torch

from equipoise.testing._asserts import require_same_weights, shares_storage


def test_weights_on_one_side_only_differ() -> None:
    with pytest.raises(AssertionError, match="weights: None, expected tensor"):
        require_same_weights(None, torch.ones(1))


def test_nothing_shares_no_memory() -> None:
    assert not shares_storage(torch.zeros(0), torch.zeros(0))
