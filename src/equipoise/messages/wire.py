"""Models as bytes: what clients send each other over a network, and how to read it safely.

A message is a safetensors file with one tensor, ``model``, and the round, the sender and the
exchange as metadata. The safetensors package is not needed to write or read it: this module checks
every size before it allocates memory, and accepts only the bytes that `pack` writes.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Buffer

from equipoise._utils.validation import check_count, check_number, describe, is_floating

HEADER_LIMIT = 1024
"""Bytes that are always enough for `read_header` to decide."""

LENGTH_BYTES = 8  # a safetensors file begins with the length of its JSON, as a 64-bit integer
ALIGNMENT = 8  # the JSON is padded with spaces, so that the values start at a multiple of 8 bytes
LARGEST_COUNT = 2**53  # JSON readers that store numbers as float64 hold integers up to here exactly
LONGEST_SENDER = 255  # bytes in UTF-8; if all of them are escaped, the header still fits the limit

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}

STEPS = 127  # int8 values are from -127 to 127, symmetric around zero
# A subnormal scale has few significant bits, so that quotients by it could exceed the steps.
SMALLEST_SCALE = sys.float_info.min
# One bit less than the quotient: 127 times the scale must not round up to infinity.
LARGEST_SCALE = sys.float_info.max / STEPS * (1 - sys.float_info.epsilon)

VALUES_PER_CHUNK = 2**16  # values that are converted at a time; they stay in the cache of a core

# The header is one template, so a regular expression reads it: no nested JSON, no long numbers.
COUNT = rb"(0|[1-9][0-9]{0,15})"
HEADER = re.compile(
    rb'\{"__metadata__":\{"format":"equipoise","version":"' + COUNT + rb'",'
    rb'"round":"' + COUNT + rb'","sender":"((?:[^"\\]|\\["\\])+)","exchange":"' + COUNT + rb'"'
    rb'(?:,"scale":"(0x1\.[0-9a-f]{13}p[+-][0-9]{1,4})")?\},'
    rb'"model":\{"dtype":"(F64|F32|F16|BF16|I8)","shape":\[' + COUNT + rb"\],"
    rb'"data_offsets":\[0,[1-9][0-9]{0,16}\]\}\} {0,7}'
)


@dataclass(frozen=True)
class Header:
    """The description of a message, at its start; checked when it is made.

    ``d`` is the number of values and ``dtype`` their type in the message: float64, float32,
    float16, bfloat16 or int8. Values of int8 are multiples of ``scale``, which is None otherwise.

    >>> from equipoise.messages import Header
    >>> header = Header(round=3, sender="site-a", exchange=0, dtype=torch.float32, d=1000)
    >>> header.size, header.body_size
    (4176, 4000)
    """

    round: int
    sender: str
    exchange: int
    dtype: torch.dtype
    d: int
    scale: float | None = None

    def __post_init__(self) -> None:
        check_count("round", self.round, 0, LARGEST_COUNT)
        check_count("exchange", self.exchange, 0, LARGEST_COUNT)
        check_count("d", self.d, 1, LARGEST_COUNT)
        _check_sender(self.sender)
        _check_dtype(self.dtype)
        if (self.dtype == torch.int8) != (self.scale is not None):
            raise ValueError(f"scale must be given for int8 only, found {self.scale!r}")
        if self.scale is not None:
            check_number("scale", self.scale, positive=True)
            if not SMALLEST_SCALE <= self.scale <= LARGEST_SCALE:
                expected = f"from {SMALLEST_SCALE} to {LARGEST_SCALE}"
                raise ValueError(f"scale must be {expected}, found {self.scale!r}")

    @property
    def body_size(self) -> int:
        """Bytes of the values."""
        return self.d * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Bytes of the whole message: the values are its last `body_size` bytes."""
        return len(self.to_bytes()) + self.body_size

    def to_bytes(self) -> bytes:
        """The first bytes of the message, up to its values."""
        # In a JSON string of printable text, only these two characters need an escape.
        sender = self.sender.replace("\\", "\\\\").replace('"', '\\"')
        scale = "" if self.scale is None else f',"scale":"{float(self.scale).hex()}"'
        json = (
            '{"__metadata__":{"format":"equipoise","version":"1",'
            f'"round":"{self.round}","sender":"{sender}","exchange":"{self.exchange}"{scale}}},'
            f'"model":{{"dtype":"{CODES[self.dtype]}","shape":[{self.d}],'
            f'"data_offsets":[0,{self.body_size}]}}}}'
        ).encode()
        json += b" " * (-len(json) % ALIGNMENT)
        return len(json).to_bytes(LENGTH_BYTES, "little") + json


def pack(
    vector: Tensor,
    *,
    round: int,
    sender: str,
    exchange: int = 0,
    dtype: torch.dtype | None = None,
) -> bytes:
    """A vector ``(d,)`` as the bytes of a message, for `unpack`.

    ``sender`` is a name of 1 to 255 bytes of printable text. ``dtype`` is the type of the values in
    the message, by default that of the vector. torch.float16 and torch.bfloat16 round them;
    torch.int8 sends multiples of one scale, ``max(abs(vector)) / 127``, and takes finite vectors
    only. Finite values that would become infinite are an error.

    The message is a safetensors file, with the vector as its tensor ``model``.

    >>> message = eq.pack(torch.tensor([1.0, -2.0]), round=3, sender="site-a")
    >>> len(message)
    176
    >>> eq.unpack(message, like=torch.zeros(2))
    tensor([ 1., -2.])
    """
    parts = pack_parts(vector, round=round, sender=sender, exchange=exchange, dtype=dtype)
    return b"".join(parts)


def pack_parts(
    vector: Tensor, *, round: int, sender: str, exchange: int, dtype: torch.dtype | None
) -> tuple[bytes, memoryview]:
    """The header and the values of a message, for `pack`; the values may be those of ``vector``."""
    if not is_floating(vector) or vector.dim() != 1 or vector.is_meta:
        device = " on the device meta" if isinstance(vector, Tensor) and vector.is_meta else ""
        found = f"{describe(vector)}{device}"
        raise ValueError(f"vector must be a floating-point tensor of shape (d,), found {found}")
    dtype = vector.dtype if dtype is None else dtype
    _check_dtype(dtype)
    values = vector.detach().cpu().resolve_neg()
    scale = _scale_of(values) if dtype == torch.int8 and len(values) else None
    header = Header(round, sender, exchange, dtype, len(values), scale)
    values = _rounded(values, dtype) if scale is None else _quantized(values, scale)
    if values.stride(0) != 1:
        values = values.clone(memory_format=torch.contiguous_format)
    # Integers of the same size stand for the values, because numpy has no bfloat16.
    native = values.view(torch.uint8).numpy().view(f"=i{dtype.itemsize}")
    little = native.astype(f"<i{dtype.itemsize}", copy=False)
    return header.to_bytes(), little.view(np.uint8).data


def unpack(payload: Buffer, *, like: Tensor) -> Tensor | str:
    """The vector in a message, or the reason for rejecting it.

    The vector has the dtype and the device of ``like``, and as many values as ``like``. No message
    raises an exception or allocates more than this vector, and a reason contains no text of the
    message. Values may be NaN or infinite: an `Inbox` treats such messages as absent.

    `equipoise.messages.read_header` gives the round and the sender that the message names. Nothing
    proves that they are true: only an authenticated connection tells who sent a message.

    >>> message = eq.pack(torch.tensor([1.0, -2.0]), round=3, sender="site-a", dtype=torch.float16)
    >>> eq.unpack(message, like=torch.zeros(2))
    tensor([ 1., -2.])
    >>> eq.unpack(message, like=torch.zeros(3))
    'wrong size: 2 values, expected 3'
    >>> eq.unpack(message[:-1], like=torch.zeros(2))
    'wrong size: 171 bytes, expected 172'
    >>> eq.unpack(b"gossip", like=torch.zeros(2))
    'malformed: the header is incomplete'
    """
    if not is_floating(like) or like.is_meta or not like.numel():
        expected = "a floating-point tensor with values"
        raise ValueError(f"like must be {expected}, found {describe(like)}")
    view = _as_bytes("payload", payload)
    header = read_header(view[:HEADER_LIMIT], d=like.numel())
    if header is None:
        return "malformed: the header is incomplete"
    if isinstance(header, str):
        return header
    if len(view) != header.size:
        return f"wrong size: {len(view)} bytes, expected {header.size}"
    vector = torch.empty(header.d, dtype=like.dtype, device=like.device)
    decode_into(header, view[-header.body_size :], vector)
    return vector


def read_header(prefix: Buffer, *, d: int | None = None) -> Header | str | None:
    """The header of a message with ``d`` values, a reason for rejecting it, or None.

    ``prefix`` holds the first bytes of the message; it may hold all. Without ``d``, compare that of
    the header before you reserve memory. None means that more bytes are needed. With
    ``HEADER_LIMIT`` bytes or more, the answer is never None.

    >>> from equipoise.messages import read_header
    >>> message = eq.pack(torch.tensor([1.0, -2.0]), round=3, sender="site-a")
    >>> header = read_header(message, d=2)
    >>> header.round, header.sender, header.dtype
    (3, 'site-a', torch.float32)
    >>> print(read_header(message[:20], d=2))
    None
    """
    if d is not None:
        check_count("d", d, 1, LARGEST_COUNT)
    view = _as_bytes("prefix", prefix)
    if len(view) < LENGTH_BYTES:
        return None
    length = int.from_bytes(view[:LENGTH_BYTES], "little")
    if length > HEADER_LIMIT - LENGTH_BYTES or length % ALIGNMENT:
        return "malformed: the length of the header is not valid"
    if len(view) < LENGTH_BYTES + length:
        return None
    return _parse_header(bytes(view[: LENGTH_BYTES + length]), d)


def _parse_header(found: bytes, d: int | None) -> Header | str:
    fields = HEADER.fullmatch(found, LENGTH_BYTES)
    if fields is None:
        return "malformed: not the header of an equipoise message"
    version, round_, sender, exchange, scale, code, values = fields.groups()
    if version != b"1":
        return "malformed: another version of the format, expected 1"
    if d is not None and int(values) != d:
        return f"wrong size: {int(values)} values, expected {d}"
    try:
        header = Header(
            int(round_),
            # Each quote is escaped, so that the backslashes which remain are in pairs.
            sender.replace(rb"\"", b'"').replace(rb"\\", b"\\").decode(),
            int(exchange),
            DTYPES[code.decode()],
            int(values),
            None if scale is None else float.fromhex(scale.decode()),
        )
    except (ValueError, OverflowError):  # not UTF-8, too large, not printable, ...
        return "malformed: a field of the header is not valid"
    # One message has one header: another spelling of a number, a wrong offset or missing padding
    # would leave room for a hidden channel, or for two receivers that read different messages.
    if header.to_bytes() != found:
        return "malformed: the header is not canonical"
    return header


@torch.no_grad()
def decode_into(header: Header, body: Buffer, row: Tensor) -> None:
    """Write the values of a message into a vector ``(d,)`` of any floating dtype and device.

    ``body`` holds the last ``header.body_size`` bytes of the message. Values beyond the range of
    the dtype become infinite. Besides ``row``, this uses less than 2 MiB of memory.

    >>> from equipoise.messages import decode_into, read_header
    >>> message = eq.pack(torch.tensor([1.0, -2.0]), round=3, sender="site-a")
    >>> header = read_header(message, d=2)
    >>> bank = torch.zeros(5, 2)
    >>> decode_into(header, memoryview(message)[-header.body_size :], bank[4])
    >>> bank[4]
    tensor([ 1., -2.])
    """
    view = _as_bytes("body", body)
    if len(view) != header.body_size:
        raise ValueError(f"body must be of {header.body_size} bytes, found {len(view)}")
    if not is_floating(row) or row.shape != (header.d,):
        expected = f"a floating-point tensor of shape ({header.d},)"
        raise ValueError(f"row must be {expected}, found {describe(row)}")
    sent = np.frombuffer(view, f"<i{header.dtype.itemsize}")
    # PyTorch does not share read-only memory, so that chunks are copied here first.
    native = np.empty(min(header.d, VALUES_PER_CHUNK), f"=i{header.dtype.itemsize}")
    values = torch.from_numpy(native).view(header.dtype)
    for start in range(0, header.d, VALUES_PER_CHUNK):
        part = sent[start : start + VALUES_PER_CHUNK]
        np.copyto(native[: len(part)], part)
        decoded = values[: len(part)]
        # float64, so that neither the scale nor the product is rounded before the last step.
        decoded = decoded if header.scale is None else decoded.double() * header.scale
        row[start : start + VALUES_PER_CHUNK].copy_(decoded)


def _scale_of(values: Tensor) -> float:
    lowest, highest = values.aminmax()  # both are NaN if one value is
    largest = max(-lowest.item(), highest.item())
    if not math.isfinite(largest):
        raise ValueError("vector must be finite to be sent as int8, found NaN or infinity")
    return min(max(largest / STEPS, SMALLEST_SCALE), LARGEST_SCALE)


def _quantized(values: Tensor, scale: float) -> Tensor:
    quantized = torch.empty(len(values), dtype=torch.int8, device="cpu")
    parts = zip(values.split(VALUES_PER_CHUNK), quantized.split(VALUES_PER_CHUNK), strict=True)
    for part, target in parts:
        # No quotient is beyond 127 by more than its last bit.
        target.copy_((part.double() / scale).round_())
    return quantized


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == values.dtype:
        return values
    rounded = values.to(dtype)
    infinite = rounded.isinf()
    if infinite.any() and (infinite & values.isfinite()).any():
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"vector must be at most {torch.finfo(dtype).max:.6g} in absolute value to be sent as "
            f"{name}, found {values[infinite].abs().max().item():.6g}"
        )
    return rounded


def _check_sender(sender: object) -> None:
    # isprintable excludes control characters, line breaks and lone surrogates.
    if not isinstance(sender, str) or not sender.isprintable():
        raise ValueError(f"sender must be printable text, found {sender!r:.100}")
    length = len(sender.encode())
    if not 1 <= length <= LONGEST_SENDER:
        expected = f"1 to {LONGEST_SENDER} bytes of printable text"
        raise ValueError(f"sender must be {expected}, found {length} bytes")


def _check_dtype(dtype: object) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in CODES:
        expected = "float64, float32, float16, bfloat16 or int8"
        raise ValueError(f"dtype must be {expected}, found {str(dtype).removeprefix('torch.')}")


def _as_bytes(name: str, given: Buffer) -> memoryview:
    try:
        return memoryview(given).cast("B")
    except TypeError:
        found = describe(given)
        raise ValueError(f"{name} must be contiguous bytes, found {found}") from None
