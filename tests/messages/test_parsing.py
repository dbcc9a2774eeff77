"""Arrays and bytes of any layout, byte order and dtype are read."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise import Inbox
from tests.wire_messages import DTYPES

VALUES = [1.0, -2.0, 0.5]


def raw(model: Tensor) -> bytes:
    return model.view(torch.uint8).numpy().tobytes()


def unaligned(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"x" + values.tobytes(), offset=1, dtype=values.dtype)


def read_only(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flags.writeable = False
    return values


def field_of_records(values: np.ndarray) -> np.ndarray:
    records = np.zeros(len(values), dtype=[("flag", "i1"), ("value", values.dtype)])
    records["value"] = values
    return records["value"]


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": lambda values: values,
    "reversed": lambda values: values[::-1].copy()[::-1],
    "strided": lambda values: np.repeat(values, 3)[::3],
    "column": lambda values: np.asfortranarray(np.stack([values, values]))[:1].T,
    "read-only": read_only,
    "unaligned": unaligned,
    "field of records": field_of_records,
    "masked": np.ma.asarray,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "longdouble"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d", [1, 3])
def test_array_layouts(d: int, layout: str, kind: str, dtype: torch.dtype) -> None:
    message = LAYOUTS[layout](np.array(VALUES[:d], dtype=kind))
    inbox = Inbox.collect([message], like=torch.zeros(d, dtype=dtype))
    assert inbox.reasons == {}
    assert inbox.bank.dtype == dtype
    assert inbox.bank.tolist() == [VALUES[:d]]


@pytest.mark.parametrize("values", [np.ones(1)[::-1], np.array(1.0), np.ones((1, 1))[::-1, ::-1]])
def test_single_value(values: np.ndarray) -> None:
    assert Inbox.collect([values], like=torch.zeros(1)).bank.tolist() == [[1.0]]


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "writable memoryview": lambda b: memoryview(bytearray(b)),
    "unaligned memoryview": lambda b: memoryview(b"x" + b)[1:],
    "reversed memoryview": lambda b: memoryview(b[::-1])[::-1],
    "chars": lambda b: memoryview(b).cast("c"),
    "signed": lambda b: memoryview(b).cast("b"),
    "two-dimensional": lambda b: memoryview(b).cast("B", (3, len(b) // 3)),
    "array of bytes": lambda b: array.array("B", b),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("own", DTYPES, ids=str)
@pytest.mark.parametrize("buffer", BUFFERS)
def test_bytes(buffer: str, own: torch.dtype, dtype: torch.dtype) -> None:
    message = BUFFERS[buffer](raw(torch.tensor(VALUES, dtype=dtype)))
    inbox = Inbox.collect([message], like=torch.zeros(3, dtype=own), dtype=dtype)
    assert inbox.bank.dtype == own
    assert inbox.bank.tolist() == [VALUES]
    same = Inbox.collect([raw(torch.tensor(VALUES, dtype=own))], like=torch.zeros(3, dtype=own))
    assert same.bank.tolist() == [VALUES]


@pytest.mark.parametrize("kind", ["<f2", ">f4", "<f8"])
def test_typed_buffers(kind: str) -> None:
    """A memoryview of big-endian floats says so itself."""
    message = memoryview(np.array(VALUES, dtype=kind))
    assert Inbox.collect([message], like=torch.zeros(3)).bank.tolist() == [VALUES]


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, "float32", np.float32, 4])
def test_dtype_must_be_floating(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype must be a floating-point torch\.dtype, found "):
        Inbox.collect([], like=torch.zeros(3), dtype=dtype)
