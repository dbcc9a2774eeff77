"""Work in several threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from equipoise.training._ensemble._stacked import Stacked
from equipoise.training._ensemble._threads import run_each


@pytest.mark.usefixtures("two_threads")
def test_one_thread_per_piece():
    seen: list[tuple[int, int, int]] = []
    meeting = threading.Barrier(2, timeout=10)  # two pieces must be under way at the same time

    def work(i: int) -> None:
        if i < 2:
            meeting.wait()
        seen.append((i, threading.get_ident(), torch.get_num_threads()))

    run_each(work, 8)
    assert sorted(i for i, _, _ in seen) == list(range(8))
    assert {threads for _, _, threads in seen} == {1}
    assert len({thread for _, thread, _ in seen}) == 2
    assert torch.get_num_threads() == 2
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("count", "threads", "expected"), [(1, True, 1), (3, False, 2), (0, True, None)]
)
def test_single_piece_in_caller(count: int, threads: bool, expected: int | None):
    seen = []
    run_each(
        lambda i: seen.append((threading.get_ident(), torch.get_num_threads())),
        count,
        threads=threads,
    )
    assert seen == [(threading.get_ident(), expected)] * count
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_error_stops_the_rest():
    done = []

    def work(i: int) -> None:
        if i == 3:
            raise ZeroDivisionError("piece 3")
        done.append(i)
        threading.Event().wait(0.005)

    with pytest.raises(ZeroDivisionError, match="piece 3"):
        run_each(work, 500)
    assert len(done) < 100
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_failed_replica_is_dropped():
    architecture = Stacked(nn.Linear(2, 1))
    with pytest.raises(ZeroDivisionError), architecture.replica() as failed:
        raise ZeroDivisionError
    with architecture.replica() as first, architecture.replica() as second:
        assert first is not second
        assert failed not in (first, second)
    with architecture.replica() as again:
        assert again in (first, second)
