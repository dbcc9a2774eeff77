"""Messages that are rejected: why, and at which cost."""

from __future__ import annotations

import array
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise import Inbox
from tests.wire_messages import Disguised, Override, Raises, freed


def released() -> memoryview:
    view = memoryview(bytes(8))
    view.release()
    return view


class Dispatch(Tensor):
    """Has no values of its own."""

    @staticmethod
    def __new__(cls, size: int) -> Dispatch:
        return Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.float32)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Any:
        return Dispatch(2)


REASONS: dict[str, tuple[Callable[[], object], str]] = {
    "short": (lambda: torch.ones(1), "wrong size: 1 values, expected 2"),
    "long array": (lambda: np.ones((2, 2)), "wrong size: 4 values, expected 2"),
    "expanded": (
        lambda: torch.ones(1).expand(2**40, 2**20),
        f"wrong size: {2**60} values, expected 2",
    ),
    "broadcast": (
        lambda: np.broadcast_to(np.float32(1), 2**60),
        f"wrong size: {2**60} values, expected 2",
    ),
    "short bytes": (lambda: b"1234567", "wrong size: 7 bytes, expected 8"),
    "no bytes": (lambda: b"", "wrong size: 0 bytes, expected 8"),
    "integers": (
        lambda: torch.ones(2, dtype=torch.int64),
        "malformed: a tensor of torch.int64, expected floating",
    ),
    "complex": (
        lambda: np.ones(2, dtype=complex),
        "malformed: an array of complex128, expected floating-point",
    ),
    "objects": (
        lambda: np.array([1.0, {}]),
        "malformed: an array of object, expected floating-point values",
    ),
    "records": (
        lambda: np.zeros(2, dtype=[("a" * 999, "f4")]),
        "malformed: an array of void32, expected floating",
    ),
    "typed memoryview": (
        lambda: memoryview(array.array("i", [1, 2])),
        "malformed: an array of int32, expected",
    ),
    "meta": (
        lambda: torch.ones(2, device="meta"),
        "malformed: a tensor on the device meta, which holds no values",
    ),
    "sparse": (
        lambda: torch.ones(2).to_sparse(),
        "malformed: a sparse or nested tensor, expected a dense one",
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "malformed: a tensor of ",
    ),
    "freed": (lambda: freed(torch.ones(2)), "malformed: a tensor without storage"),
    "released": (released, "malformed: cannot be read"),
    "dispatch": (lambda: Dispatch(2), "malformed: a tensor subclass, expected a plain tensor"),
    "none": (lambda: None, "malformed: 'NoneType', expected a tensor, an array or bytes"),
    "disguised": (Disguised, "malformed: 'Disguised', expected a tensor, an array or bytes"),
    "raises": (Raises, "malformed: 'Raises', expected a tensor, an array or bytes"),
    "named at length": (lambda: type("\n" * 999, (), {})(), r"malformed: '\n\n"),
}


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning", "ignore:.*quantiz:DeprecationWarning")
@pytest.mark.parametrize("case", REASONS)
def test_reasons(case: str) -> None:
    make, expected = REASONS[case]
    inbox = Inbox.collect([torch.ones(2), make()], like=torch.zeros(2))
    assert inbox.mask.tolist() == [[True, False]]
    assert inbox.reasons.keys() == {1}
    assert inbox.reasons[1].startswith(expected)
    assert len(inbox.reasons[1]) < 100
    assert inbox.reasons[1].isprintable()
    assert len(inbox.bank) == 1


def test_overrides_do_not_run() -> None:
    long = torch.ones(3).as_subclass(Override)  # claims two values
    inbox = Inbox.collect([torch.ones(2).as_subclass(Override), long], like=torch.zeros(2))
    assert type(inbox.bank) is Tensor
    assert inbox.bank.tolist() == [[1.0, 1.0]]
    assert inbox.reasons == {1: "wrong size: 3 values, expected 2"}


def test_interrupts_pass() -> None:
    class Interrupt(Dispatch):
        @classmethod
        def __torch_dispatch__(cls, *_: object) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Inbox.collect([Interrupt(2)], like=torch.zeros(2))


def test_reasons_of_receivers() -> None:
    inbox = Inbox.collect(
        [torch.ones(2), b"", torch.ones(2)], like=torch.zeros(2), senders=[5, 6, 5]
    )
    assert inbox.of(0).reasons == {
        1: "wrong size: 0 bytes, expected 8",
        2: "duplicate: sender 5 already filled slot 0",
    }
    assert Inbox.of_one(torch.ones(2, 2)).reasons == {}


def test_rows_of_accepted() -> None:
    model = torch.ones(1000)
    messages = [b"x", model, None, 2 * model, model, freed(torch.ones(1000)), 3 * model]
    inbox = Inbox.collect(messages, like=model, senders=[1, 1, 2, 1, 1, 7, 3])
    assert inbox.mask.tolist() == [[False, True, False, False, False, False, True]]
    assert inbox.slots[inbox.mask].tolist() == [0, 1]
    assert inbox.bank[:, 0].tolist() == [1.0, 3.0]
    assert inbox.bank.untyped_storage().nbytes() == 2 * 1000 * 4


def test_retry_after_failed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every dtype that NumPy takes for floating-point can be copied."""
    copied = iter([False, True])
    monkeypatch.setattr(
        "equipoise.messages.inbox.copy_values",
        lambda values, row, _: row.copy_(values) is row and next(copied),
    )
    inbox = Inbox.collect([torch.zeros(2), torch.ones(2)], like=torch.zeros(2), senders=[4, 4])
    assert inbox.bank.tolist() == [[1.0, 1.0]]
    assert inbox.reasons == {0: "malformed: cannot be read"}


MEMORY = """
import re, torch
from equipoise import Inbox

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024

own = torch.zeros(2_000_000)  # 8 MB
Inbox.collect([own], like=own)
before = peak()
messages, senders = {case}
assert Inbox.collect(messages, like=own, senders=senders).mask.sum() == {accepted}
print(peak() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc"
)
@pytest.mark.parametrize(
    ("case", "accepted"),
    [
        ('[b"x"] * 100, None', 0),
        ("[own] * 100, [3] * 100", 1),
        pytest.param(
            "[own.double().numpy()[::-1]] * 100, [3] * 50 + [4] * 50",
            2,
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("[bytes(8_000_000)] * 100, [3] * 100", 1, marks=pytest.mark.exhaustive),
        pytest.param(
            "[torch.zeros(1).expand(2_000_000)] * 100, [3] * 100", 1, marks=pytest.mark.exhaustive
        ),
    ],
)
def test_memory_of_rejected(case: str, accepted: int) -> None:
    script = MEMORY.format(case=case, accepted=accepted)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    # Two rows, a copy of one message and the message itself are 56 MB at most; 100 rows are 800 MB.
    assert int(done.stdout) < 100


@pytest.mark.parametrize("offset", [0, 2, 5])
@pytest.mark.parametrize(("missing", "accepted"), [(0, True), (1, False), (12, False)])
def test_storage_reaches_last_value(offset: int, missing: int, accepted: bool) -> None:
    message = torch.ones(16)[offset : offset + 6 : 2]
    message.untyped_storage().resize_(4 * (offset + 5) - missing)  # five values from the offset on
    inbox = Inbox.collect([message], like=torch.zeros(3))
    assert bool(inbox.mask.item()) is accepted
