"""Rounds on which rules are compared with their references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graphs import (
    GRAPHS,
)
from tests.references import Answer, array

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


DTYPES = [torch.float32, torch.float64]


every_graph = pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)


both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def assert_answer(
    model: Tensor, weights: Tensor | None, answer: Answer, label: str, rtol: float = 1e-5
) -> None:
    assert (weights is None) == (answer.weights is None), (
        f"{label}: weights {weights}, expected {answer.weights}"
    )
    if weights is not None:
        found = array(weights)
        # Smaller weights, as of huge messages that are clipped, vanish in float32.
        least = 1e-37 if weights.dtype == torch.float32 else 0
        np.testing.assert_array_equal(
            found > least, answer.weights > least, err_msg=f"{label}: accepted"
        )
        np.testing.assert_allclose(
            found, answer.weights, rtol=rtol, atol=1e-30, err_msg=f"{label}: weights"
        )
    error = np.abs(array(model) - answer.model)
    allowed = rtol / 1e-5 * TOLERANCE[model.dtype] * np.maximum(
        np.abs(answer.model), answer.magnitude
    ) + smallest(model.dtype)
    worst = int(np.argmax(error - allowed))
    assert (error <= allowed).all(), (
        f"{label}, coordinate {worst}: {array(model)[worst]}, expected "
        f"{answer.model[worst]} within {allowed[worst]}"
    )


def smallest(dtype: torch.dtype) -> float:
    """The spacing of subnormal numbers, which no relative tolerance covers."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
