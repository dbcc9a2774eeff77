"""Messages off the wire: what is read, what is absent and why, and what that costs."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from equipoise import Balance, Inbox

VALUES = [1.0, -2.0, 0.5]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


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
def test_any_layout_of_an_array_is_read(d: int, layout: str, kind: str, dtype: torch.dtype) -> None:
    message = LAYOUTS[layout](np.array(VALUES[:d], dtype=kind))
    inbox = Inbox.collect([message], like=torch.zeros(d, dtype=dtype))
    assert inbox.reasons == {}
    assert inbox.bank.dtype == dtype
    assert inbox.bank.tolist() == [VALUES[:d]]


@pytest.mark.parametrize("values", [np.ones(1)[::-1], np.array(1.0), np.ones((1, 1))[::-1, ::-1]])
def test_a_single_value_is_read(values: np.ndarray) -> None:
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
def test_bytes_hold_the_given_dtype(buffer: str, own: torch.dtype, dtype: torch.dtype) -> None:
    message = BUFFERS[buffer](raw(torch.tensor(VALUES, dtype=dtype)))
    inbox = Inbox.collect([message], like=torch.zeros(3, dtype=own), dtype=dtype)
    assert inbox.bank.dtype == own
    assert inbox.bank.tolist() == [VALUES]
    same = Inbox.collect([raw(torch.tensor(VALUES, dtype=own))], like=torch.zeros(3, dtype=own))
    assert same.bank.tolist() == [VALUES]


@pytest.mark.parametrize("kind", ["<f2", ">f4", "<f8"])
def test_typed_buffers_are_read_as_arrays(kind: str) -> None:
    """A memoryview of big-endian floats says so itself."""
    message = memoryview(np.array(VALUES, dtype=kind))
    assert Inbox.collect([message], like=torch.zeros(3)).bank.tolist() == [VALUES]


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, "float32", np.float32, 4])
def test_dtype_must_be_floating(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype must be a floating-point torch\.dtype, found "):
        Inbox.collect([], like=torch.zeros(3), dtype=dtype)


def released() -> memoryview:
    view = memoryview(bytes(8))
    view.release()
    return view


def freed(model: Tensor) -> Tensor:
    model.untyped_storage().resize_(0)
    return model


class Override(Tensor):
    """Claims to be anything."""

    @classmethod
    def __torch_function__(cls, *_: object) -> Any:
        raise RuntimeError

    def numel(self) -> int:
        return 2


class Dispatch(Tensor):
    """Has no values of its own."""

    @staticmethod
    def __new__(cls, size: int) -> Dispatch:
        return Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.float32)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Any:
        return Dispatch(2)


class Disguised:
    """Is a tensor, says isinstance."""

    __class__ = Tensor  # type: ignore[assignment]


class Raises:
    def __getattribute__(self, _: str) -> Any:
        raise ValueError("x" * 10_000)

    def __len__(self) -> int:
        raise OSError

    __array__ = __buffer__ = __repr__ = __str__ = __len__  # type: ignore[assignment]


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
def test_an_absent_message_has_a_reason(case: str) -> None:
    make, expected = REASONS[case]
    inbox = Inbox.collect([torch.ones(2), make()], like=torch.zeros(2))
    assert inbox.mask.tolist() == [[True, False]]
    assert inbox.reasons.keys() == {1}
    assert inbox.reasons[1].startswith(expected)
    assert len(inbox.reasons[1]) < 100
    assert inbox.reasons[1].isprintable()
    assert len(inbox.bank) == 1


def test_overrides_of_tensors_do_not_run() -> None:
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


def test_reasons_survive_a_choice_of_receivers() -> None:
    inbox = Inbox.collect([torch.ones(2), b"", torch.ones(2)], like=torch.zeros(2), senders=[5, 6, 5])
    assert inbox.of(0).reasons == {
        1: "wrong size: 0 bytes, expected 8",
        2: "duplicate: sender 5 was heard in slot 0",
    }
    assert Inbox.of_one(torch.ones(2, 2)).reasons == {}


def test_only_accepted_messages_have_rows() -> None:
    model = torch.ones(1000)
    messages = [b"x", model, None, 2 * model, model, freed(torch.ones(1000)), 3 * model]
    inbox = Inbox.collect(messages, like=model, senders=[1, 1, 2, 1, 1, 7, 3])
    assert inbox.mask.tolist() == [[False, True, False, False, False, False, True]]
    assert inbox.slots[inbox.mask].tolist() == [0, 1]
    assert inbox.bank[:, 0].tolist() == [1.0, 3.0]
    assert inbox.bank.untyped_storage().nbytes() == 2 * 1000 * 4


def test_a_failed_copy_leaves_its_sender_another_chance(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(
    ("case", "accepted"),
    [
        ('[b"x"] * 100, None', 0),
        ("[own] * 100, [3] * 100", 1),
        ("[own.double().numpy()[::-1]] * 100, [3] * 50 + [4] * 50", 2),
        ("[bytes(8_000_000)] * 100, [3] * 100", 1),
        ("[torch.zeros(1).expand(2_000_000)] * 100, [3] * 100", 1),
    ],
)
def test_rubbish_and_repeats_cost_no_memory(case: str, accepted: int) -> None:
    script = MEMORY.format(case=case, accepted=accepted)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    # Two rows, a copy of one message and the message itself are 56 MB at most; 100 rows are 800 MB.
    assert int(done.stdout) < 100


# Anything at all

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
models = st.sampled_from([2, 4, 8, 16, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
objects = models | st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
arrays = st.one_of(
    npst.arrays(npst.scalar_dtypes() | npst.nested_dtypes(), npst.array_shapes(min_dims=0, max_side=4)),
    npst.arrays(npst.floating_dtypes(), st.sampled_from([1, 2, 4, (2, 2), (1, 1)])),
    npst.arrays(object, npst.array_shapes(max_side=4), elements=scalars),
)


@st.composite
def views(draw: st.DrawFn) -> Any:
    """Slices, reversals, transposes and broadcasts of arrays, and buffers of them, released or not."""
    found = draw(arrays)
    if found.ndim:
        found = found[draw(npst.basic_indices(found.shape))]
    found = np.asarray(found).T
    if draw(st.booleans()):
        found = np.broadcast_to(found, draw(st.sampled_from([(2,), (4, 1), (1, 0), (2**40,)])) + found.shape)
    if not draw(st.booleans()):
        return found
    try:
        buffer = memoryview(found)
    except (ValueError, TypeError, BufferError):  # a dtype that has no buffer
        return found
    if draw(st.booleans()):
        buffer.release()
    return buffer


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    kinds = [*DTYPES, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64]
    found = torch.tensor(draw(st.lists(st.floats(), max_size=4))).to(draw(st.sampled_from(kinds)))
    change: Callable[[Tensor], Tensor] = draw(
        st.sampled_from(
            [
                lambda x: x,
                lambda x: x[:1].expand(4) if len(x) else x,
                lambda x: x[:1].expand(2**30, 2**30) if len(x) else x,
                lambda x: x[:1].reshape(()) if len(x) else x,
                lambda x: x.expand(4, len(x)).t(),
                lambda x: x.to("meta"),
                lambda x: freed(x.clone()),
                lambda x: x.as_subclass(Override),
                lambda x: x.requires_grad_() if x.is_floating_point() or x.is_complex() else x,
                lambda x: x.real if x.is_complex() else x,
                lambda x: x.conj().imag if x.is_complex() else x,
                lambda x: torch.ones(4).to_sparse(),
            ]
        )
    )
    return change(found)


@settings(max_examples=500, deadline=None)
@given(
    messages=st.lists(
        objects | arrays | views() | tensors() | st.builds(Raises) | st.builds(Disguised),
        max_size=6,
    ),
    d=st.sampled_from([1, 2, 4]),
    own=st.sampled_from(DTYPES),
    dtype=st.sampled_from([None, *DTYPES]),
    seed=st.integers(0, 5),
)
def test_whatever_arrives_is_read_or_absent(
    messages: list[object], d: int, own: torch.dtype, dtype: torch.dtype | None, seed: int
) -> None:
    like = torch.ones(d, dtype=own)
    senders = [i % (seed + 1) for i in range(len(messages))]
    inbox = Inbox.collect(messages, like=like, senders=senders, dtype=dtype)
    heard = inbox.senders[inbox.mask].tolist()
    assert len(set(heard)) == len(heard) == len(inbox.bank)
    assert {int(slot) for slot in (~inbox.mask[0]).nonzero()} == inbox.reasons.keys()
    assert all(len(reason) < 100 and reason.isprintable() for reason in inbox.reasons.values())
    assert inbox.bank.untyped_storage().nbytes() <= len(set(senders)) * d * own.itemsize
    assert type(inbox.bank) is Tensor
    assert not inbox.bank.requires_grad
    assert Balance()(like, inbox, t=0, total=1).model.isfinite().all()
