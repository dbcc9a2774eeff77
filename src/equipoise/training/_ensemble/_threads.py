"""Independent pieces of work in Python threads.

Threads help because torch does its arithmetic without holding Python's lock. Models of single
clients are small: torch's own threads would meet after every operation, and these meetings take
long on a machine with other load. Here one thread processes a piece from beginning to end, so its
result does not depend on the number of threads either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache

import torch


def run_each(work: Callable[[int], object], count: int, *, threads: bool = True) -> None:
    """Call ``work(0)`` to ``work(count - 1)``, in as many threads as torch may use.

    The first error is raised here, and no new call begins after it. Without ``threads``, calls
    follow each other in this thread, and torch uses its own threads inside of them.

    >>> from equipoise.training._ensemble._threads import run_each
    >>> squares = torch.zeros(4)
    >>> run_each(lambda i: squares[i].fill_(i * i), 4)
    >>> squares
    tensor([0., 1., 4., 9.])
    """
    todo = iter(range(count))
    available = torch.get_num_threads()
    if not threads or available == 1 or not _setting_is_per_thread():
        _call_remaining(work, todo)
        return
    try:
        _run_in_threads(work, todo, min(available, count))
    finally:
        # A thread that is new to torch starts with the number that any thread set last.
        torch.set_num_threads(available)


def _run_in_threads(work: Callable[[int], object], todo: Iterator[int], workers: int) -> None:
    if workers < 2:
        _use_one_thread()
        _call_remaining(work, todo)
        return
    with ThreadPoolExecutor(workers, initializer=_use_one_thread) as pool:
        running = [pool.submit(_call_remaining, work, todo) for _ in range(workers)]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            deque(todo, maxlen=0)  # exhausted: after an error, or Ctrl-C, no new call begins
    for finished in running:
        finished.result()


def _call_remaining(work: Callable[[int], object], todo: Iterator[int]) -> None:
    # All threads share the iterator: a thread that is free takes the next piece.
    for index in todo:
        work(index)


def _use_one_thread() -> None:
    # The first call in a thread copies the last setting of any thread. It must come first, or it
    # would overwrite the setting below.
    torch.get_num_threads()
    torch.set_num_threads(1)


@cache
def _setting_is_per_thread() -> bool:
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()
