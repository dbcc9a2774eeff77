"""Independent pieces of work in Python threads: torch does its arithmetic without holding Python's lock.

Models of single clients are small. To split every operation on them between threads, as torch does by itself, takes a
meeting of all threads per operation, and those meetings take long on a machine that has other things to do. Here every
piece is done by one thread from beginning to end, so that its result does not depend on how many threads there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache

import torch


def run_each(work: Callable[[int], object], count: int, *, threads: bool = True) -> None:
    """Call ``work(0)`` to ``work(count - 1)``, each in one thread, in as many threads as torch may use.

    An error is raised here, and nothing new is begun after it. Without ``threads``, one call follows the other, and
    what torch does with its threads is left to torch.

    >>> from equipoise.training._ensemble._threads import run_each
    >>> squares = torch.zeros(4)
    >>> run_each(lambda i: squares[i].fill_(i * i), 4)
    >>> squares
    tensor([0., 1., 4., 9.])
    """
    todo, available = iter(range(count)), torch.get_num_threads()
    if not threads or available == 1 or not _setting_is_per_thread():
        _run(work, todo)
        return
    try:
        _run_in_threads(work, todo, min(available, count))
    finally:
        torch.set_num_threads(available)  # also because a thread that is new to torch gets what any other set last


def _run_in_threads(work: Callable[[int], object], todo: Iterator[int], workers: int) -> None:
    if workers < 2:
        _use_one_thread()
        _run(work, todo)
        return
    with ThreadPoolExecutor(workers, initializer=_use_one_thread) as pool:
        running = [pool.submit(_run, work, todo) for _ in range(workers)]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            deque(todo, maxlen=0)  # after an error, or Ctrl-C, nobody begins anything new
    for finished in running:
        finished.result()


def _run(work: Callable[[int], object], todo: Iterator[int]) -> None:
    for index in todo:
        work(index)


def _use_one_thread() -> None:
    torch.get_num_threads()  # begins a new thread with what was set last by any other, now and not later
    torch.set_num_threads(1)


@cache
def _setting_is_per_thread() -> bool:
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()
