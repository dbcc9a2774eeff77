"""Messages as bytes: what is packed is unpacked."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.messages import HEADER_LIMIT, Header, decode_into, read_header

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OWN = torch.tensor([0.5, -1.0, 2.0])

letters = st.characters().filter(str.isprintable)
senders = st.text(letters, min_size=1, max_size=63)  # a letter has up to 4 bytes
counts = st.integers(0, 2**53)


def header_of(message: bytes, d: int) -> Header:
    header = read_header(message, d=d)
    assert isinstance(header, Header)
    return header


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@given(st.sampled_from(FLOATS), st.integers(1, 40), st.integers(1, 3), senders, counts, counts)
@example(torch.float32, 1, 3, '"' * 255, 2**53, 2**53)
@example(torch.bfloat16, 2, 1, "\\", 0, 0)
def test_round_trip_keeps_all_bits(
    dtype: torch.dtype, d: int, stride: int, sender: str, round: int, exchange: int
) -> None:
    bits = torch.randint(0, 256, (d * stride * dtype.itemsize,), dtype=torch.uint8)
    vector = bits.view(dtype)[::stride]  # NaN and infinities among them
    message = eq.pack(vector, round=round, sender=sender, exchange=exchange)
    header = header_of(message, d)
    assert header == Header(round, sender, exchange, dtype, d)
    assert header.size == len(message)
    assert header.size - header.body_size <= HEADER_LIMIT
    found = eq.unpack(message, like=torch.empty(d, dtype=dtype))
    assert isinstance(found, Tensor)
    assert same_bits(found, vector.clone(memory_format=torch.contiguous_format))


@pytest.mark.parametrize("like", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_cast(dtype: torch.dtype, like: torch.dtype) -> None:
    vector = torch.randn(150_000, dtype=torch.float64)  # several chunks, the last one shorter
    message = eq.pack(vector, round=0, sender="a", dtype=dtype)
    found = eq.unpack(message, like=torch.empty(150_000, dtype=like))
    assert isinstance(found, Tensor)
    assert same_bits(found, vector.to(dtype).to(like))


@pytest.mark.parametrize("like", FLOATS)
@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 3e4])
def test_int8_is_within_half_a_step(magnitude: float, like: torch.dtype) -> None:
    vector = magnitude * torch.randn(150_000, dtype=torch.float64)
    vector *= magnitude / vector.abs().max()
    message = eq.pack(vector, round=0, sender="a", dtype=torch.int8)
    assert len(message) < 150_000 + HEADER_LIMIT
    found = eq.unpack(message, like=vector.to(like))
    assert isinstance(found, Tensor)
    step = vector.abs().max() / 127
    smallest = torch.finfo(like).smallest_normal * torch.finfo(like).eps
    rounding = torch.finfo(like).eps / 2 * vector.abs() * 1.1 + step * torch.finfo(like).eps
    assert ((found.double() - vector).abs() <= step / 2 * 1.0001 + rounding + smallest).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_int8_of_extreme_vectors_is_finite(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for largest in (0.0, -0.0, info.smallest_normal * info.eps, info.smallest_normal, info.max):
        vector = torch.tensor([largest, -largest, largest / 2], dtype=dtype)
        found = eq.unpack(eq.pack(vector, round=0, sender="a", dtype=torch.int8), like=vector)
        assert isinstance(found, Tensor)
        assert torch.allclose(found, vector, rtol=0.01, atol=info.smallest_normal)


def test_overflow_at_the_receiver_is_infinite() -> None:
    message = eq.pack(torch.tensor([1e300, 1.0], dtype=torch.float64), round=0, sender="a")
    found = eq.unpack(message, like=torch.zeros(2))
    assert isinstance(found, Tensor)
    assert found.tolist() == [torch.inf, 1.0]
    assert eq.Inbox.collect([found], like=torch.zeros(2)).present.tolist() == [[False]]


def test_infinite_values_stay_infinite() -> None:
    vector = torch.tensor([torch.inf, -torch.inf, torch.nan])
    found = eq.unpack(eq.pack(vector, round=0, sender="a", dtype=torch.float16), like=vector)
    assert isinstance(found, Tensor)
    assert torch.allclose(found, vector, equal_nan=True)


def test_any_view_of_a_vector_is_packed() -> None:
    views = [
        torch.nn.Parameter(OWN),
        torch.eye(3)[:, 1],
        torch.ones(1).expand(3),
        torch.randn(9)[::3],
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.randn(9)[4::5][:1],
    ]
    for view in views:
        found = eq.unpack(eq.pack(view, round=0, sender="a"), like=view)
        assert isinstance(found, Tensor)
        assert torch.equal(found, view)
        assert not found.requires_grad


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_are_unpacked(kind: type) -> None:
    message = kind(eq.pack(OWN, round=0, sender="a"))
    found = eq.unpack(message, like=OWN)
    assert isinstance(found, Tensor)
    assert torch.equal(found, OWN)


def test_unpacked_vector_is_a_copy() -> None:
    message = bytearray(eq.pack(OWN, round=0, sender="a"))
    found = eq.unpack(message, like=OWN)
    message[-12:] = bytes(12)
    assert isinstance(found, Tensor)
    assert torch.equal(found, OWN)


def test_values_are_decoded_into_a_row() -> None:
    message = eq.pack(OWN, round=0, sender="a")
    header = header_of(message, 3)
    bank = torch.zeros(3, 2, dtype=torch.float64).t()
    decode_into(header, memoryview(message)[-header.body_size :], bank[1])
    assert bank.tolist() == [[0.0, 0.0, 0.0], OWN.tolist()]


def test_header_is_read_from_a_stream() -> None:
    message = eq.pack(OWN, round=0, sender="a")
    start = len(message) - 12
    answers = [read_header(message[:length], d=3) for length in range(len(message) + 1)]
    assert answers == [None] * start + [header_of(message, 3)] * 13


def test_default_device_is_ignored() -> None:
    message = eq.pack(OWN, round=0, sender="a", dtype=torch.int8)
    with torch.device("meta"):
        assert eq.pack(OWN, round=0, sender="a", dtype=torch.int8) == message
        found = eq.unpack(message, like=OWN)
    assert isinstance(found, Tensor)
    assert found.device == OWN.device


def test_float_extremes_of_scale_are_allowed() -> None:
    for scale in (sys.float_info.min, 1.0, 1e306):
        header = Header(0, "a", 0, torch.int8, 3, scale)
        assert read_header(header.to_bytes(), d=3) == header
