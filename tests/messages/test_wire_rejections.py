"""Messages that are rejected, and mistakes of the caller."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.messages import HEADER_LIMIT, Header, decode_into, read_header

OWN = torch.tensor([0.5, -1.0, 2.0])
MESSAGE = eq.pack(OWN, round=3, sender="site-a")
INT8 = eq.pack(OWN, round=3, sender="site-a", dtype=torch.int8)
LENGTH = "malformed: the length of the header is not valid"
OTHER = "malformed: not the header of an equipoise message"
FIELD = "malformed: a field of the header is not valid"
CANONICAL = "malformed: the header is not canonical"
INCOMPLETE = "malformed: the header is incomplete"
VERSION = "malformed: another version of the format, expected 1"


def with_header(json: bytes, body: bytes = MESSAGE[-12:]) -> bytes:
    json = json.rstrip(b" ")
    json += b" " * (-len(json) % 8)
    return len(json).to_bytes(8, "little") + json + body


def edited(old: str | bytes, new: str | bytes, message: bytes = MESSAGE) -> bytes:
    """A message whose header has one change, with the length that it then needs."""
    end = 8 + int.from_bytes(message[:8], "little")
    old = old.encode() if isinstance(old, str) else old
    new = new.encode() if isinstance(new, str) else new
    assert old in message[8:end]
    return with_header(message[8:end].replace(old, new, 1), message[end:])


def scaled(scale: str) -> bytes:
    return edited(re.search(rb'0x[^"]*', INT8)[0], scale, INT8)  # type: ignore[index]


HOSTILE = {
    "nothing": (b"", INCOMPLETE),
    "text": (b"gossip", INCOMPLETE),
    "length beyond the limit": (b"\xff" * 2000, LENGTH),
    "length of 2**63": ((2**63).to_bytes(8, "little") + MESSAGE[8:], LENGTH),
    "length of 1024": ((1024).to_bytes(8, "little") + bytes(1024), LENGTH),
    "length not aligned": ((161).to_bytes(8, "little") + MESSAGE[8:], LENGTH),
    "length of zero": (bytes(8), OTHER),
    "zeros": (bytes(2000), OTHER),
    "nested lists": (with_header(b"[" * 1016), OTHER),
    "nested objects": (with_header(b'{"a":' * 200), OTHER),
    "not UTF-8": (edited("site-a", b"\xff\xfe"), FIELD),
    "surrogate": (edited("site-a", b"\xed\xa0\x80"), FIELD),
    "escaped surrogate": (edited("site-a", "\\ud800"), OTHER),
    "needless escape": (edited("site-a", "site\\u002da"), OTHER),
    "NUL": (edited("site-a", "site\0a"), FIELD),
    "line break": (edited("site-a", "a\nmalformed"), FIELD),
    "bidirectional override": (edited("site-a", "\u202ea"), FIELD),
    "no name": (edited("site-a", ""), OTHER),
    "long name": (edited("site-a", "x" * 256), FIELD),
    "unfinished escape": (edited("site-a", "a\\"), OTHER),
    "other format": (edited("equipoise", "pickle"), OTHER),
    "other version": (edited('"version":"1"', '"version":"2"'), VERSION),
    "round beyond 2**53": (edited('"3"', f'"{2**53 + 1}"'), FIELD),
    "exchange beyond 2**53": (edited('"exchange":"0"', f'"exchange":"{2**53 + 1}"'), FIELD),
    "round of 500 digits": (edited('"3"', f'"{"9" * 500}"'), OTHER),
    "negative round": (edited('"3"', '"-3"'), OTHER),
    "round with a zero in front": (edited('"3"', '"03"'), OTHER),
    "round with an exponent": (edited('"3"', '"3e0"'), OTHER),
    "round in other digits": (edited('"3"', '"٣"'), OTHER),
    "round is a number": (edited('"3"', "3"), OTHER),
    "duplicate round": (edited('"round":"3"', '"round":"2","round":"3"'), OTHER),
    "missing round": (edited('"round":"3",', ""), OTHER),
    "more metadata": (edited('"exchange":"0"', '"exchange":"0","x":"y"'), OTHER),
    "space": (edited('"round":', '"round": '), OTHER),
    "byte order mark": (edited(b'{"__', b'\xef\xbb\xbf{"__'), OTHER),
    "second tensor": (
        edited("}}", '},"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
        OTHER,
    ),
    "other tensor": (edited('"model"', '"weight"'), OTHER),
    "other shape": (edited("[3]", "[3,1]"), OTHER),
    "no shape": (edited("[3]", "[]"), OTHER),
    "no values": (edited("[3]", "[0]"), "wrong size: 0 values, expected 3"),
    "more values": (edited("[3]", "[4]"), "wrong size: 4 values, expected 3"),
    "enormous": (
        edited("[3]", f"[{10**16 - 1}]"),
        "wrong size: 9999999999999999 values, expected 3",
    ),
    "gap before the values": (edited("[0,12]", "[4,16]"), OTHER),
    "other end of the values": (edited("[0,12]", "[0,16]"), CANONICAL),
    "needless padding": (
        (168).to_bytes(8, "little") + MESSAGE[8:-12] + b" " * 8 + MESSAGE[-12:],
        OTHER,
    ),
    "another type of that size": (edited("F32", "I32"), OTHER),
    "float64 without the values": (edited("F32", "F64"), CANONICAL),
    "half the values": (
        edited('F32","shape":[3],"data_offsets":[0,12]', 'F16","shape":[3],"data_offsets":[0,6]'),
        "wrong size: 180 bytes, expected 174",
    ),
    "scale of float32": (edited('"0"}', f'"0","scale":"{(1.0).hex()}"}}'), FIELD),
    "int8 without scale": (
        edited('F32","shape":[3],"data_offsets":[0,12]', 'I8","shape":[3],"data_offsets":[0,3]'),
        FIELD,
    ),
    "NaN as scale": (scaled("nan"), OTHER),
    "infinite scale": (scaled("inf"), OTHER),
    "zero scale": (scaled((0.0).hex()), OTHER),
    "negative scale": (scaled((-1.0).hex()), OTHER),
    "subnormal scale": (scaled((1e-310).hex()), OTHER),
    "scale below the normal numbers": (scaled("0x1.0000000000000p-1023"), FIELD),
    "scale that overflows": (scaled("0x1.0000000000000p+9999"), FIELD),
    "scale that overflows with 127": (scaled((1e307).hex()), FIELD),
    "scale of many digits": (scaled("0x1.0000000000000p+99999"), OTHER),
    "scale in another spelling": (scaled("0x1.0000000000000p+00"), CANONICAL),
    "decimal scale": (scaled("1.0"), OTHER),
    "one byte less": (MESSAGE[:-1], "wrong size: 179 bytes, expected 180"),
    "one byte more": (MESSAGE + b"\0", "wrong size: 181 bytes, expected 180"),
}


@pytest.mark.parametrize(("payload", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_reason_names_the_fault(payload: bytes, reason: str) -> None:
    assert eq.unpack(payload, like=OWN) == reason


@pytest.mark.parametrize("message", [MESSAGE, INT8], ids=["float32", "int8"])
def test_every_truncation_is_rejected(message: bytes) -> None:
    start = len(message) - Header.body_size.fget(read_header(message, d=3))  # type: ignore
    for length in range(len(message)):
        found = eq.unpack(message[:length], like=OWN)
        expected = f"wrong size: {length} bytes, expected {len(message)}"
        assert found == (INCOMPLETE if length < start else expected)


@pytest.mark.parametrize("message", [MESSAGE, INT8], ids=["float32", "int8"])
def test_every_header_has_one_spelling(message: bytes) -> None:
    """A change of any byte is rejected, or it is what `pack` writes for other fields."""
    start = len(message) - 12 if message is MESSAGE else len(message) - 3
    accepted = 0
    for place in range(start):
        for value in range(256):
            changed = message[:place] + bytes([value]) + message[place + 1 :]
            header = read_header(changed, d=3)
            if isinstance(header, Header):
                accepted += 1
                assert header.to_bytes() == changed[:start]
                assert header.dtype == read_header(message, d=3).dtype  # type: ignore[union-attr]
    assert accepted > 100  # digits of round and exchange, letters of sender


def test_rejection_allocates_no_model() -> None:
    like = torch.zeros(1).expand(10**15)
    lies = [
        edited("[3]", f"[{10**15}]"),
        edited("[3],", f"[{10**15}],").replace(b"[0,12]", b"[0,4" + b"0" * 15 + b"]"),
        Header(0, "a", 0, torch.float32, 10**15).to_bytes() + bytes(100),
    ]
    tracemalloc.start()
    for lie in lies:
        assert isinstance(eq.unpack(lie, like=like), str)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_answer_needs_no_more_than_the_limit() -> None:
    for byte in range(256):
        assert read_header(bytes([byte]) * HEADER_LIMIT, d=3) is not None
    for length in range(0, 2048):
        prefix = length.to_bytes(8, "little") + b" " * (HEADER_LIMIT - 8)
        assert isinstance(read_header(prefix, d=3), str)


PACKED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "list": ([1.0], {}, "vector must be a floating-point tensor of shape (d,), found list"),
    "integers": (
        torch.arange(3),
        {},
        "vector must be a floating-point tensor of shape (d,), found int64 (3,)",
    ),
    "matrix": (
        OWN[None],
        {},
        "vector must be a floating-point tensor of shape (d,), found float32 (1, 3)",
    ),
    "sparse": (
        OWN.to_sparse(),
        {},
        "vector must be a floating-point tensor of shape (d,), found float32 (3,) sparse_coo",
    ),
    "meta": (
        OWN.to("meta"),
        {},
        "vector must be a floating-point tensor of shape (d,), found float32 (3,) on the device "
        "meta",
    ),
    "empty": (OWN[:0], {}, "d must be an integer from 1 to 9007199254740992, found 0"),
    "empty int8": (
        OWN[:0],
        {"dtype": torch.int8},
        "d must be an integer from 1 to 9007199254740992, found 0",
    ),
    "negative round": (
        OWN,
        {"round": -1},
        "round must be an integer from 0 to 9007199254740992, found -1",
    ),
    "round of bool": (
        OWN,
        {"round": True},
        "round must be an integer from 0 to 9007199254740992, found True",
    ),
    "large exchange": (
        OWN,
        {"exchange": 2**53 + 1},
        "exchange must be an integer from 0 to 9007199254740992, found 9007199254740993",
    ),
    "no name": (
        OWN,
        {"sender": ""},
        "sender must be 1 to 255 bytes of printable text, found 0 bytes",
    ),
    "long name": (
        OWN,
        {"sender": "é" * 128},
        "sender must be 1 to 255 bytes of printable text, found 256 bytes",
    ),
    "line break": (OWN, {"sender": "a\n"}, "sender must be printable text, found 'a\\n'"),
    "surrogate": (OWN, {"sender": "\ud800"}, "sender must be printable text, found '\\ud800'"),
    "id": (OWN, {"sender": 3}, "sender must be printable text, found 3"),
    "integer type": (
        OWN,
        {"dtype": torch.int32},
        "dtype must be float64, float32, float16, bfloat16 or int8, found int32",
    ),
    "type by name": (
        OWN,
        {"dtype": "F32"},
        "dtype must be float64, float32, float16, bfloat16 or int8, found F32",
    ),
    "float8": (
        OWN.to(torch.float8_e4m3fn),
        {},
        "dtype must be float64, float32, float16, bfloat16 or int8, found float8_e4m3fn",
    ),
    "overflow of float16": (
        OWN * 1e5,
        {"dtype": torch.float16},
        "vector must be at most 65504 in absolute value to be sent as float16, found 200000",
    ),
    "overflow of float32": (
        OWN.double() * 1e300,
        {"dtype": torch.float32},
        "vector must be at most 3.40282e+38 in absolute value to be sent as float32, found 2e+300",
    ),
    "NaN as int8": (
        OWN * torch.nan,
        {"dtype": torch.int8},
        "vector must be finite to be sent as int8, found NaN or infinity",
    ),
    "infinity as int8": (
        OWN / 0,
        {"dtype": torch.int8},
        "vector must be finite to be sent as int8, found NaN or infinity",
    ),
}


@pytest.mark.parametrize(("vector", "options", "error"), PACKED.values(), ids=PACKED)
def test_pack_explains_mistakes(vector: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        eq.pack(vector, **({"round": 0, "sender": "a"} | options))


def test_unpack_explains_mistakes() -> None:
    with pytest.raises(ValueError, match="payload must be contiguous bytes, found str"):
        eq.unpack("gossip", like=OWN)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="payload must be contiguous bytes, found memoryview"):
        eq.unpack(memoryview(MESSAGE)[::2], like=OWN)
    for like in (OWN.long(), OWN[:0], OWN.to("meta"), [1.0]):
        with pytest.raises(ValueError, match="like must be a floating-point tensor with values"):
            eq.unpack(MESSAGE, like=like)  # type: ignore[arg-type]


def test_stream_functions_explain_mistakes() -> None:
    with pytest.raises(ValueError, match=r"d must be an integer from 1 to .*, found 0"):
        read_header(MESSAGE, d=0)
    header = Header(0, "a", 0, torch.float32, 3)
    with pytest.raises(ValueError, match="body must be of 12 bytes, found 11"):
        decode_into(header, bytes(11), OWN.clone())
    with pytest.raises(ValueError, match=r"row must be .* of shape \(3,\), found float32 \(4,\)"):
        decode_into(header, bytes(12), torch.zeros(4))
    with pytest.raises(ValueError, match=r"scale must be given for int8 only, found 1\.0"):
        Header(0, "a", 0, torch.float32, 3, 1.0)
    with pytest.raises(ValueError, match="scale must be a finite number > 0, found nan"):
        Header(0, "a", 0, torch.int8, 3, torch.nan)
    with pytest.raises(ValueError, match=r"scale must be from .* to .*, found 1e-310"):
        Header(0, "a", 0, torch.int8, 3, 1e-310)


def test_negative_128_is_a_value() -> None:
    found = eq.unpack(INT8[:-1] + b"\x80", like=OWN)
    assert isinstance(found, Tensor)
    assert found[2].item() == pytest.approx(-128 * 2 / 127)
