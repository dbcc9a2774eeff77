"""A step of gradient descent in C against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.kernels import native
from equipoise.training._fused import _convolution
from equipoise.training._fused._gradient_step import serves, step_product
from tests.instruction_sets import instructions  # noqa: F401

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-13}
LR = 0.1
MOMENTUM = 0.9


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@given(
    clients=st.integers(1, 3),
    rows=st.sampled_from([1, 3, 4, 8, 9, 17]),
    depth=st.integers(0, 5),
    columns=st.sampled_from([1, 7, 8, 16, 17, 48, 50, 113]),
    dtype=st.sampled_from(list(DTYPES)),
    momentum=st.booleans(),
)
@settings(max_examples=60)
def test_step_equals_torch(
    clients: int, rows: int, depth: int, columns: int, dtype: torch.dtype, momentum: bool
) -> None:
    left = randn(clients, rows, depth, seed=0, dtype=dtype)
    right = randn(clients, depth, columns, seed=1, dtype=dtype)
    # Rows of stacked models, which hold other parameters as well.
    models = randn(clients, rows * columns + 3, seed=2, dtype=dtype)
    velocities = randn(clients, rows * columns, seed=3, dtype=dtype)
    weights = models[:, 2:-1].view(clients, rows, columns)
    velocity = velocities.view(clients, rows, columns)
    others = models[:, [0, 1, -1]].clone()
    change = torch.bmm(left.double(), right.double())
    if momentum:
        change += MOMENTUM * velocity.double()
    expected = weights.double() - LR * change
    stacked = [weights, velocity] if momentum else [weights]
    new = [torch.full_like(models, torch.nan)[:, 2:-1].view_as(weights) for _ in stacked]
    assert serves(left, right, *stacked, *new)
    step_product(left, right, stacked, new, lr=LR, momentum=MOMENTUM)
    step_product(left, right, stacked, stacked, lr=LR, momentum=MOMENTUM)
    for mine, written in zip(stacked, new, strict=True):
        assert torch.equal(mine, written)
    scale = 1 + float(expected.abs().max()) + float(change.abs().max())
    tolerance = {"rtol": 0, "atol": DTYPES[dtype] * scale}
    torch.testing.assert_close(weights.double(), expected, **tolerance)
    if momentum:
        torch.testing.assert_close(velocity.double(), change, **tolerance)
    assert torch.equal(models[:, [0, 1, -1]], others)


def test_clients_do_not_mix() -> None:
    left = randn(3, 5, 2, seed=0)
    right = randn(3, 2, 20, seed=1)
    weights = randn(3, 5, 20, seed=2)
    alone = weights[1:2].clone()
    left[0, 0, 0] = torch.nan
    step_product(left, right, [weights], [weights], lr=LR, momentum=0.0)
    step_product(left[1:2], right[1:2], [alone], [alone], lr=LR, momentum=0.0)
    assert torch.equal(weights[1:2], alone)
    assert weights[0].isnan().any()


def test_scattered_weights() -> None:
    """Rows that are not in one piece of memory are left to torch."""
    left = randn(2, 3, 2, seed=0)
    right = randn(2, 2, 4, seed=1)
    assert not serves(left, right, randn(3, 4, 2, seed=2).movedim(-1, 0))


def test_other_types() -> None:
    halves = torch.zeros(1, 2, 2, dtype=torch.float16)
    assert not serves(halves, halves, halves)


@pytest.mark.parametrize("place", range(4))
def test_impossible_sizes(place: int) -> None:
    """C refuses them before it reads a tensor."""
    sizes = [1] * 10
    sizes[place] = -1
    call = native.function("gradient_step", torch.ones(1), _convolution.CONVOLUTION_LIBRARY)
    shape = (ctypes.c_int64 * 10)(*sizes)
    factors = (ctypes.c_double * 2)(LR, 0.0)
    assert call(shape, factors, *[None] * 6) == -2
