"""Parse untrusted messages: tensors, arrays and bytes from a network, valid or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.validation import check_count, describe

NumpyArray = np.ndarray[Any, np.dtype[Any]]

LARGEST_ID = 2**63 - 1  # ids are stored as int64
UNREADABLE = "malformed: cannot be read"


def as_messages(messages: Iterable[object]) -> list[object]:
    """The messages as a list.

    A sender controls a message, but not the container of all messages. So a wrong container is a
    mistake of the caller, and an error.
    """
    if isinstance(messages, Mapping):
        hint = "pass messages.values() and senders=messages.keys()"
        found = type(messages).__name__
        raise ValueError(f"messages must be a list with one per sender, found {found}; {hint}")
    if isinstance(messages, str | bytes | bytearray) or getattr(messages, "ndim", 2) < 2:
        found = describe(messages)
        raise ValueError(
            f"messages must be a list of messages, found {found}; pass [message] for one"
        )
    return list(messages)


def as_ids(senders: Iterable[int] | Tensor | None, count: int) -> list[int]:
    """The id of each message's sender; by default 0, 1, ..."""
    if senders is None:
        return list(range(count))
    # Python integers do not wrap around, so that an id beyond int64 is an error.
    ids = senders.tolist() if isinstance(senders, Tensor) and senders.dim() == 1 else list(senders)
    for sender in ids:
        check_count("senders", sender, 0, LARGEST_ID)
    if len(ids) != count:
        raise ValueError(
            f"senders must name one client per message, expected {count}, found {len(ids)}"
        )
    return ids


def parse_message(message: object, d: int, dtype: torch.dtype) -> Tensor | NumpyArray | str:
    """The ``d`` values of a message, or the reason for rejecting it.

    The values are a strided floating-point tensor, a floating-point array, or an array of single
    bytes that hold ``dtype``. They are not copied, so that a message costs no memory before it is
    accepted. Reasons are short and never contain values of the message: senders must not be able to
    fill logs.
    """
    try:
        if issubclass(type(message), Tensor):  # isinstance trusts message.__class__
            return _parse_tensor(message, d)  # type: ignore[arg-type]
        if issubclass(type(message), np.ndarray):
            return _parse_array(np.asarray(message), d)
        try:
            # A memoryview copies nothing.
            buffer = memoryview(message)  # type: ignore[arg-type]
        except TypeError:
            return (
                f"malformed: {type(message).__name__!a:.40}, expected a tensor, an array or bytes"
            )
        return _parse_buffer(np.asarray(buffer), d, dtype)
    except Exception:  # e.g. a released buffer, an unknown format, a class that raises
        return UNREADABLE


def copy_values(values: Tensor | NumpyArray, row: Tensor, dtype: torch.dtype) -> bool:
    """Copy values that `parse_message` returned to a row of a bank; return False if that fails."""
    try:
        tensor = _as_tensor(values, dtype) if isinstance(values, np.ndarray) else values.detach()
        row.view(tensor.shape).copy_(tensor)
    except Exception:  # e.g. a dtype that PyTorch cannot convert
        return False
    return True


def _parse_tensor(message: Tensor, d: int) -> Tensor | str:
    tensor = message
    if type(message) is not Tensor:
        # Overridden methods of a subclass must not run: they could report a wrong size, or write
        # to the row of another message.
        with torch._C.DisableTorchFunctionSubclass():
            tensor = Tensor.as_subclass(message, Tensor)
    if type(tensor) is not Tensor:  # it overrides __torch_dispatch__
        return "malformed: a tensor subclass, expected a plain tensor"
    if tensor.layout != torch.strided or tensor.is_nested:
        return "malformed: a sparse or nested tensor, expected a dense one"
    if tensor.is_meta:
        return "malformed: a tensor on the device meta, which holds no values"
    if not tensor.is_floating_point():
        return f"malformed: a tensor of {tensor.dtype}, expected floating-point values"
    if tensor.numel() != d:
        return f"wrong size: {tensor.numel()} values, expected {d}"
    if d and not _has_storage(tensor):
        return "malformed: a tensor without storage"
    return tensor


def _has_storage(x: Tensor) -> bool:
    """Whether the memory of a tensor reaches to its last element."""
    # Its storage may have been freed by resize_. Reading the tensor would then crash the process.
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    end = (x.storage_offset() + last + 1) * x.element_size()
    return end <= x.untyped_storage().nbytes()


def _parse_array(array: NumpyArray, d: int) -> NumpyArray | str:
    if array.dtype.kind != "f":
        return f"malformed: an array of {array.dtype.name:.40}, expected floating-point values"
    if array.size != d:
        return f"wrong size: {array.size} values, expected {d}"
    return array


def _parse_buffer(array: NumpyArray, d: int, dtype: torch.dtype) -> NumpyArray | str:
    """A buffer of single bytes holds values of ``dtype``; other buffers state their format."""
    # Integers, unsigned integers and byte strings of one byte are how buffers hold raw bytes.
    if array.dtype.itemsize != 1 or array.dtype.kind not in "iuS":
        return _parse_array(array, d)
    if array.size != d * dtype.itemsize:
        return f"wrong size: {array.size} bytes, expected {d * dtype.itemsize}"
    return array


def _as_tensor(values: NumpyArray, dtype: torch.dtype) -> Tensor:
    """An array of any byte order and layout as a vector; a copy only if PyTorch cannot share it."""
    if values.dtype.kind != "f":
        fresh = np.array(values, order="C").reshape(-1)  # bytes may be read-only or not aligned
        return torch.from_numpy(fresh.view(np.uint8)).view(dtype)
    # PyTorch has no floats of more than 8 bytes, so that numpy converts longdouble.
    native = values.dtype.newbyteorder("=") if values.dtype.itemsize <= 8 else np.dtype(np.float64)
    with np.errstate(all="ignore"):  # overflow gives infinity, and the message is absent
        values = np.require(values, native, ("C", "W", "A"))
    # An array of one value is contiguous with any stride, but PyTorch rejects negative strides.
    return torch.from_numpy(np.ndarray(values.size, native, buffer=values))
