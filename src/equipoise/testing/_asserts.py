"""How laws compare: equal up to rounding, and an error that says what was found."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels import may_share_memory

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def require(holds: bool | Tensor, message: str, *found: object) -> None:
    """Raise an AssertionError unless it holds, also where ``python -O`` leaves assertions out.

    The message is formatted only if it is needed: printing tensors takes longer than comparing them.
    """
    if not holds:
        raise AssertionError(message.format(*found))


def require_same_model(actual: Tensor, expected: Tensor, who: str = "models", unit: float = 0.0) -> None:
    """Equal up to rounding, relative to the largest coordinate, or to ``unit`` if that is larger."""
    require(actual.shape == expected.shape, "{}: shape {}, expected {}", who, actual.shape, expected.shape)
    require(actual.dtype == expected.dtype, "{}: {}, expected {}", who, actual.dtype, expected.dtype)
    largest = expected.double().abs().amax(-1, keepdim=True).clamp_min(unit)
    error = (actual.double() - expected.double()).abs()
    close = (error <= TOLERANCE[expected.dtype] * largest).all()
    require(close, "{}: {}, expected {}", who, actual, expected)


def require_same_weights(actual: Tensor | None, expected: Tensor | None, who: str = "weights") -> None:
    """The same messages accepted, with the same weights up to rounding; NaN equals NaN, None equals None."""
    if actual is None or expected is None:
        require(actual is expected, "{}: {}, expected {}", who, actual, expected)
        return
    actual, expected = actual.double(), expected.double()
    require(torch.equal(actual != 0, expected != 0), "{}: {}, expected {}", who, actual, expected)
    close = torch.isclose(actual, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    require(close.all(), "{}: {}, expected {}", who, actual, expected)


def size_of(models: Tensor) -> float:
    """The size of a parameter, against which rounding is measured where terms cancel."""
    return float(models.double().abs().max()) if models.numel() else 0.0


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, where NaN equals NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def shares_storage(result: Tensor, *inputs: Tensor) -> bool:
    """Whether writing to the result may write to an input."""
    return any(may_share_memory(result, x) for x in inputs)
