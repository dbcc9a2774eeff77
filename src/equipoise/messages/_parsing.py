"""Messages as they come off the wire, in any number and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.validation import check_count, describe

Array = np.ndarray[Any, np.dtype[Any]]

LARGEST = 2**63 - 1  # id of a client
UNREADABLE = "malformed: cannot be read"


def as_list(messages: Iterable[object]) -> list[object]:
    """The messages; a peer cannot choose what they are in, so that a mistake there is the caller's."""
    if isinstance(messages, Mapping):
        hint = "messages.values(), with senders=messages.keys(), are one each"
        raise ValueError(f"messages must be one for each sender, found {type(messages).__name__}; {hint}")
    if isinstance(messages, str | bytes | bytearray) or getattr(messages, "ndim", 2) < 2:
        raise ValueError(f"messages must be a list of messages, found {describe(messages)}; [message] is one")
    return list(messages)


def as_ids(senders: Iterable[int] | Tensor | None, count: int) -> list[int]:
    """Who sent each message."""
    if senders is None:
        return list(range(count))
    ids = senders.tolist() if isinstance(senders, Tensor) and senders.dim() == 1 else list(senders)
    for sender in ids:
        check_count("senders", sender, 0, LARGEST)
    if len(ids) != count:
        raise ValueError(f"senders must name one client per message, expected {count}, found {len(ids)}")
    return ids


def read(message: object, d: int, dtype: torch.dtype) -> Tensor | Array | str:
    """The ``d`` values of a message, or the reason why it has none.

    Copies nothing, so that a message costs no memory before it is accepted. The values are a strided
    floating-point tensor, a floating-point array, or an array of single bytes that hold ``dtype``.
    Reasons are short and never contain values of the message: peers must not be able to fill logs.
    """
    try:
        if issubclass(type(message), Tensor):  # isinstance would believe message.__class__
            return _read_tensor(message, d)  # type: ignore[arg-type]
        if issubclass(type(message), np.ndarray):
            return _read_array(np.asarray(message), d)
        try:
            buffer = memoryview(message)  # type: ignore[arg-type]
        except TypeError:
            return f"malformed: {type(message).__name__!a:.40}, expected a tensor, an array or bytes"
        return _read_buffer(np.asarray(buffer), d, dtype)
    except Exception:  # for example a released buffer, an odd format or a class that raises
        return UNREADABLE


def is_copied(values: Tensor | Array, row: Tensor, dtype: torch.dtype) -> bool:
    """Copy what ``read`` returned to a row of a bank; False if that fails."""
    try:
        tensor = _as_tensor(values, dtype) if isinstance(values, np.ndarray) else values.detach()
        row.view(tensor.shape).copy_(tensor)
    except Exception:  # for example a dtype that PyTorch cannot convert
        return False
    return True


def _read_tensor(message: Tensor, d: int) -> Tensor | str:
    tensor = message
    if type(message) is not Tensor:
        # What a subclass overrides must not run, or it could claim any size and write to the row.
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
    reach = sum((s - 1) * stride for s, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    if d and end > tensor.untyped_storage().nbytes():  # freed by resize_: a read would crash
        return "malformed: a tensor without storage"
    return tensor


def _read_array(array: Array, d: int) -> Array | str:
    if array.dtype.kind != "f":
        return f"malformed: an array of {array.dtype.name:.40}, expected floating-point values"
    if array.size != d:
        return f"wrong size: {array.size} values, expected {d}"
    return array


def _read_buffer(array: Array, d: int, dtype: torch.dtype) -> Array | str:
    """A buffer of single bytes holds values of ``dtype``; any other states what it holds."""
    if array.dtype.itemsize != 1 or array.dtype.kind not in "iuS":
        return _read_array(array, d)
    if array.size != d * dtype.itemsize:
        return f"wrong size: {array.size} bytes, expected {d * dtype.itemsize}"
    return array


def _as_tensor(values: Array, dtype: torch.dtype) -> Tensor:
    """An array of any byte order and layout as a vector, copied only if PyTorch cannot share it."""
    if values.dtype.kind != "f":
        fresh = np.array(values, order="C").reshape(-1)  # bytes may be read-only or not aligned
        return torch.from_numpy(fresh.view(np.uint8)).view(dtype)
    # PyTorch has no floats of more than 8 bytes.
    native = values.dtype.newbyteorder("=") if values.dtype.itemsize <= 8 else np.dtype(np.float64)
    with np.errstate(all="ignore"):  # what overflows becomes infinite, and absent
        values = np.require(values, native, ("C", "W", "A"))
    # One value is contiguous whatever its stride says, but PyTorch refuses strides below 0.
    return torch.from_numpy(np.ndarray(values.size, native, buffer=values))
