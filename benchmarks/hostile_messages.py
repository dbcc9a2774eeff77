"""Hostile messages: seeded mutations of valid ones, blind and aware of the structure."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

import equipoise as eq

D = 5  # values that the receiver expects
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8)
SENDERS = ("a", "site-a", 'quote " and \\', "é", "名前", "\U0001f600", "x" * 255, '"' * 255)
COUNTS = (0, 1, 7, 10, 2**31, 2**32, 2**53)

NUMBERS = (
    *("", "0", "1", "-0", "-1", "00", "01", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "1_0", "٣"),
    *(
        "9007199254740992",
        "9007199254740993",
        "9" * 16,
        "9" * 17,
        "9" * 400,
        "18446744073709551615",
    ),
    *("null", "true", "NaN", "Infinity", "[]", "{}", '"1"', "5", "4", "6", "20", "40", "10"),
)
TEXTS = (
    *("", "\x00", "\n", "\x7f", "\u202e", "\u2028", "\\u0041", "\\ud800", "\\/", "\\n", "\\", '"'),
    *("a" * 256, "é" * 128, "equipoise", "Equipoise", "pickle", "\ufeffa", "\U000e0001", "a b"),
)
SCALES = (
    *("nan", "inf", "-inf", "0x0.0p+0", "-0x1.0000000000000p+0", "0x1.0p+0", "1.0", "0x1p+99999"),
    *("0x1.0000000000000p+0", "0x1.0000000000000p-1022", "0x1.0000000000000p-1023", "0x1p-1074"),
    *("0x0.0000000000001p-1022", "0x1.fffffffffffffp+1023", "0x1.0000000000000p+1017", "0X1P+0"),
    *("0x1.0000000000000p+00", "0x1.0000000000000p+1024", "0x1.0000000000000p+9999", ""),
)
TYPES = ("F64", "F32", "F16", "BF16", "I8", "I64", "U8", "BOOL", "F8_E4M3", "f32", "C64", "O", "")
LENGTHS = (
    *(0, 1, 7, 8, 16, 159, 160, 161, 168, 1008, 1015, 1016, 1017, 1024, 2**16, 2**31, 2**32),
    *(2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1),
)
FIELDS: dict[str, tuple[str, Sequence[str]]] = {
    "format": (r'(?<="format":")[^"]*', TEXTS),
    "version": (r'(?<="version":")[^"]*', NUMBERS),
    "round": (r'(?<="round":")[^"]*', NUMBERS),
    "sender": (r'(?<="sender":")[^"]*', TEXTS),
    "exchange": (r'(?<="exchange":")[^"]*', NUMBERS),
    "scale": (r'(?<="scale":")[^"]*', SCALES),
    "dtype": (r'(?<="dtype":")[^"]*', TYPES),
    "shape": (r'(?<="shape":\[)[^\]]*', (*NUMBERS, "5,1", "1,5", "5,", ",5", "0,5")),
    "begin": (r'(?<="data_offsets":\[)[^,]*', NUMBERS),
    "end": (r'(?<="data_offsets":\[0,)[^\]]*', NUMBERS),
}
PIECES = (
    *(b" ", b"\t", b"\n", b"\x00", b"\xff", b"\xed\xa0\x80", b"{", b"}", b"[", b"]", b",", b":"),
    *(b'"round":"1",', b'"x":"y",', b'"model":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},'),
    *(b'"__metadata__":{},', b"[" * 900, b'{"a":' * 150, b"\\u0061", b'"', b"//", b"\xef\xbb\xbf"),
)


def valid(rng: random.Random) -> bytes:
    """One of the messages below."""
    return rng.choice(_pool())


@cache
def _pool() -> list[bytes]:
    rng = random.Random(0)
    return [_packed(rng) for _ in range(2000)]


def _packed(rng: random.Random) -> bytes:
    """A message that `pack` writes, usually of the size that the receiver expects."""
    d = D if rng.random() < 0.9 else rng.randint(1, 9)
    return eq.pack(
        torch.tensor([rng.gauss(0, 1) for _ in range(d)]),
        round=rng.choice(COUNTS),
        sender=rng.choice(SENDERS),
        exchange=rng.choice(COUNTS),
        dtype=rng.choice(DTYPES),
    )


def split(payload: bytes) -> tuple[bytes, bytes]:
    """The header without its length, and the values, as far as the length is plausible."""
    length = int.from_bytes(payload[:8], "little")
    end = 8 + (length if length <= len(payload) else len(payload) // 2)
    return payload[8:end], payload[end:]


def join(header: bytes, body: bytes, *, padded: bool = True) -> bytes:
    if padded:
        header = header.rstrip(b" ")
        header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + body


def flip_bits(payload: bytes, rng: random.Random) -> bytes:
    changed = bytearray(payload or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def splice(payload: bytes, rng: random.Random) -> bytes:
    other = valid(rng)
    return payload[: rng.randint(0, len(payload))] + other[rng.randint(0, len(other)) :]


def swap_body(payload: bytes, rng: random.Random) -> bytes:
    return join(split(payload)[0], split(valid(rng))[1], padded=False)


def set_length(payload: bytes, rng: random.Random) -> bytes:
    near = int.from_bytes(payload[:8], "little") + rng.randint(-9, 9)
    length = rng.choice((*LENGTHS, near)) % 2**64
    return length.to_bytes(8, "little") + payload[8:]


def truncate(payload: bytes, rng: random.Random) -> bytes:
    return payload[: rng.randint(0, len(payload))]


def extend(payload: bytes, rng: random.Random) -> bytes:
    return payload + rng.choice((b"\0", b" ", payload, rng.randbytes(rng.randint(1, 64))))


def scatter(payload: bytes, rng: random.Random) -> bytes:
    """Random bytes, behind a valid length or not."""
    noise = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 64, 160, 1016, 1500)))
    return noise if rng.random() < 0.5 else join(noise, b"", padded=False)


def set_field(payload: bytes, rng: random.Random) -> bytes:
    """Replace a field of the header; its length follows, and sometimes the size of the values."""
    header, body = split(payload)
    pattern, choices = FIELDS[rng.choice(tuple(FIELDS))]
    value = rng.choice(choices).encode("utf-8", "surrogatepass")
    header = re.sub(pattern.encode(), lambda _: value, header, count=1)
    if rng.random() < 0.3:
        body = bytes(rng.choice((0, 5, 10, 20, 40)))
    return join(header, body)


def set_consistent_fields(payload: bytes, rng: random.Random) -> bytes:
    """Another shape or type, with offsets and values of the size that they claim."""
    header, _ = split(payload)
    code = rng.choice(("F64", "F32", "F16", "BF16", "I8"))
    d = rng.choice((0, 1, D, D, D, D + 1))
    size = d * {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1}[code]
    model = f'"model":{{"dtype":"{code}","shape":[{d}],"data_offsets":[0,{size}]}}}}'
    return join(header.partition(b'"model"')[0] + model.encode(), rng.randbytes(size))


def insert(payload: bytes, rng: random.Random) -> bytes:
    header, body = split(payload)
    at = rng.randint(0, len(header))
    return join(header[:at] + rng.choice(PIECES) + header[at:], body, padded=rng.random() < 0.8)


def remove(payload: bytes, rng: random.Random) -> bytes:
    header, body = split(payload)
    at = rng.randint(0, len(header))
    return join(header[:at] + header[at + rng.randint(1, 9) :], body)


def edit_json(payload: bytes, rng: random.Random) -> bytes:
    """The header in another order, spacing or escaping, or with more or fewer entries."""
    header, body = split(payload)
    try:
        found = json.loads(header)
        metadata = list(found["__metadata__"].items())
        model = found["model"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return flip_bits(payload, rng)
    change = rng.randrange(6)
    if change == 0:
        rng.shuffle(metadata)
    elif change == 1 and metadata:
        del metadata[rng.randrange(len(metadata))]
    elif change == 2:
        metadata.append((rng.choice(TEXTS), rng.choice(TEXTS)))
    entries: list[tuple[str, Any]] = [("__metadata__", dict(metadata)), ("model", model)]
    if change == 3:
        entries.reverse()
    elif change == 4:
        entries.append((rng.choice(TEXTS), {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}))
    text = json.dumps(
        dict(entries),
        ensure_ascii=rng.random() < 0.5,
        indent=rng.choice((None, None, 1)),
        separators=rng.choice(((",", ":"), (",", ":"), (", ", ": "))),
    )
    return join(text.encode("utf-8", "surrogatepass"), body)


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flip_bits, splice, swap_body, set_length, truncate, extend, scatter),
    *(set_field, set_field, set_field, set_consistent_fields, insert, remove, edit_json, edit_json),
)


def hostile_payloads(seed: int) -> Iterator[bytes]:
    """Endless payloads: valid messages after one to three mutations; one in 50 has none."""
    rng = random.Random(seed)
    while True:
        payload = valid(rng)
        if rng.random() >= 0.02:
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                payload = rng.choice(MUTATIONS)(payload, rng)
        yield payload
