"""Comparisons of laws."""

from __future__ import annotations

import pytest
import torch

from equipoise.testing._asserts import require_same_weights, shares_storage


def test_missing_weights() -> None:
    with pytest.raises(AssertionError, match="weights: None, expected tensor"):
        require_same_weights(None, torch.ones(1))


def test_empty_tensors_share_nothing() -> None:
    assert not shares_storage(torch.zeros(0), torch.zeros(0))
