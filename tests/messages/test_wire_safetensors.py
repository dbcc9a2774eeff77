"""Messages are safetensors files, and hostile ones are judged by the safetensors library."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import equipoise as eq
from benchmarks import fuzz_wire

OWN = torch.tensor([0.5, -1.0, 2.0])
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8]
SENDERS = ["a", 'quotes " and \\', "名前", "\U0001f600", '"' * 255]


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_reads_messages(dtype: torch.dtype, sender: str) -> None:
    message = eq.pack(OWN, round=3, sender=sender, exchange=1, dtype=dtype)
    tensors = safetensors.torch.load(message)
    assert list(tensors) == ["model"]
    assert tensors["model"].dtype == dtype
    if dtype != torch.int8:
        assert torch.equal(tensors["model"], OWN.to(dtype))
    metadata = json.loads(fuzz_wire.split(message)[0])["__metadata__"]
    assert (metadata["round"], metadata["sender"], metadata["exchange"]) == ("3", sender, "1")


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_writes_the_same_bytes(dtype: torch.dtype, sender: str) -> None:
    """Up to the order of the metadata, which the library draws at random."""
    message = eq.pack(OWN, round=3, sender=sender, dtype=dtype)
    header, body = fuzz_wire.split(message)
    metadata = json.loads(header)["__metadata__"]
    written = safetensors.torch.save(safetensors.torch.load(message), metadata)
    entries = b",".join(
        f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False)}".encode()
        for key, value in metadata.items()
    )
    start = len(b'{"__metadata__":{')
    end = start + len(entries)
    found, found_body = fuzz_wire.split(written)
    assert header[start:end] == entries
    assert len(found) == len(header)
    assert (found[:start], found[end:]) == (header[:start], header[end:])
    assert found_body == body


def test_hostile_payloads_are_judged_correctly() -> None:
    outcomes = fuzz_wire.fuzz(20_000, seed=7)
    assert outcomes.keys() == {"accepted", "rejected"}
    assert outcomes["accepted"] > 1000
