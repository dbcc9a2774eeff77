"""Memory is handed out again only when no tensor refers to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch

from equipoise._utils.recycled_memory import RecycledMemory

LIKE = torch.zeros(1)


def test_unused_memory_returns() -> None:
    memory = RecycledMemory()
    address = memory.take(LIKE, 3, 4).data_ptr()
    assert memory.take(LIKE, 3, 4).data_ptr() == address
    assert memory.take(LIKE.double(), 3, 2).data_ptr() == address


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x,
        lambda x: x[1:2, ::2],
        lambda x: x.T,
        lambda x: x.numpy(),
        lambda x: x.detach().view(-1),
        lambda x: torch.utils.dlpack.from_dlpack(x),
    ],
    ids=["tensor", "view", "transposed", "numpy", "detached", "dlpack"],
)
def test_referenced_memory_stays(keep) -> None:  # type: ignore[no-untyped-def]
    memory = RecycledMemory()
    first = memory.take(LIKE, 3, 4).fill_(7)
    kept = keep(first)
    del first
    memory.take(LIKE, 3, 4).fill_(1)
    assert (torch.as_tensor(kept) == 7).all()
    del kept
    assert len({memory.take(LIKE, 3, 4).data_ptr() for _ in range(5)}) == 1


def test_memory_of_other_sizes_is_freed() -> None:
    memory = RecycledMemory()
    used = memory.take(LIKE, 5)
    for size in (1, 2, 40):
        memory.take(LIKE, size)
    assert [array.nbytes for array in memory._arrays] == [used.nbytes, 160]


def test_larger_memory_serves() -> None:
    """The smallest array that is large enough is used, unless most of it would be wasted."""
    memory = RecycledMemory()
    large = memory.take(LIKE, 100)
    small = memory.take(LIKE, 40)
    address = small.data_ptr()
    del large, small
    assert memory.take(LIKE, 30).data_ptr() == address
    assert memory.take(LIKE, 9).data_ptr() != address


def test_threads_get_different_memory() -> None:
    memory = RecycledMemory()

    def work(i: int) -> bool:
        for _ in range(200):
            mine = memory.take(LIKE, 50).fill_(i)
            if not (mine == i).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_dtype_and_shape() -> None:
    taken = RecycledMemory().take(torch.zeros(1, dtype=torch.bfloat16), 2, 5)
    assert (taken.dtype, taken.shape, taken.is_contiguous()) == (torch.bfloat16, (2, 5), True)
    assert RecycledMemory().take(LIKE, 0, 5).shape == (0, 5)


def test_copies_share_nothing() -> None:
    memory = RecycledMemory()
    address = memory.take(LIKE, 3).data_ptr()
    assert deepcopy(memory).take(LIKE, 3).data_ptr() != address
