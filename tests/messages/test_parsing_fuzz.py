"""Random messages are read or absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from equipoise import Balance, Inbox
from tests.wire_messages import DTYPES, Disguised, Override, Raises, freed

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
)


models = st.sampled_from([2, 4, 8, 16, 32]).flatmap(
    lambda size: st.binary(min_size=size, max_size=size)
)


objects = models | st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


arrays = st.one_of(
    npst.arrays(
        npst.scalar_dtypes() | npst.nested_dtypes(), npst.array_shapes(min_dims=0, max_side=4)
    ),
    npst.arrays(npst.floating_dtypes(), st.sampled_from([1, 2, 4, (2, 2), (1, 1)])),
    npst.arrays(object, npst.array_shapes(max_side=4), elements=scalars),
)


@st.composite
def views(draw: st.DrawFn) -> Any:
    """Slices, reversals, transposes and broadcasts of arrays, and their buffers, also released."""
    found = draw(arrays)
    if found.ndim:
        found = found[draw(npst.basic_indices(found.shape))]
    found = np.asarray(found).T
    if draw(st.booleans()):
        found = np.broadcast_to(
            found, draw(st.sampled_from([(2,), (4, 1), (1, 0), (2**40,)])) + found.shape
        )
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
def test_read_or_absent(
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
