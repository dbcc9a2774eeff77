"""Comparisons of laws: equal up to rounding, with an error that shows both values."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import may_share_memory

# Relative to the largest coordinate. Half precision: 2 units in the last place, 2 * 2^-10 and
# 2 * 2^-7, since a rule rounds its result once. float32 and float64 leave room for sums in another
# order, about 100 and 5e6 units.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def require(holds: bool | Tensor, message: str, *found: object) -> None:
    """Raise an AssertionError unless the condition holds, also under ``python -O``.

    The message is formatted only if needed: printing tensors takes longer than comparing them.
    """
    if not holds:
        raise AssertionError(message.format(*found))


def require_same_model(
    actual: Tensor, expected: Tensor, name: str = "models", unit: float = 0.0
) -> None:
    """Require equality up to rounding, relative to the largest coordinate or ``unit``."""
    text = "{}: {}, expected {}"
    require(
        actual.shape == expected.shape,
        "{}: shape {}, expected {}",
        name,
        actual.shape,
        expected.shape,
    )
    require(actual.dtype == expected.dtype, text, name, actual.dtype, expected.dtype)
    largest = expected.double().abs().amax(-1, keepdim=True).clamp_min(unit)
    error = (actual.double() - expected.double()).abs()
    close = (error <= TOLERANCE[expected.dtype] * largest).all()
    require(close, text, name, actual, expected)


def require_same_weights(
    actual: Tensor | None, expected: Tensor | None, name: str = "weights"
) -> None:
    """Require the same accepted messages with equal weights; NaN equals NaN, None equals None."""
    text = "{}: {}, expected {}"
    if actual is None or expected is None:
        require(actual is expected, text, name, actual, expected)
        return
    actual = actual.double()
    expected = expected.double()
    # Rounding must not accept or reject a message, so zeros are compared exactly.
    require(torch.equal(actual != 0, expected != 0), text, name, actual, expected)
    # Weights are shares of 1: 1e-6 is eight units of float32.
    close = torch.isclose(actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    require(close.all(), text, name, actual, expected)


def size_of(models: Tensor) -> float:
    """Return the largest absolute parameter: the unit of rounding errors where terms cancel."""
    return float(models.double().abs().max()) if models.numel() else 0.0


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def shares_storage(result: Tensor, *inputs: Tensor) -> bool:
    """Return whether writing to the result may write to an input."""
    return any(may_share_memory(result, x) for x in inputs)
