"""Four processes that run simulations in groups of 1, 2, 3 and 4 of them."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SIZE = 4
TIMEOUT = 60.0  # seconds: a lost message must fail a test, not stop the run


class Pool(AbstractContextManager["Pool"]):
    """Imports torch once, in a server that the processes are forked from."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["equipoise", "tests.simulation.sharding.pool"])
        self._pipes = []
        self._processes = []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(folder / "store"), theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def call(self, work: Callable[..., Any], *args: Any, ranks: int) -> list[Any]:
        """The results of ``work(group, *args)`` of all ranks of a group of that many."""
        pipes = self._pipes[:ranks]
        for pipe in pipes:
            pipe.send((work, args, ranks))
        results = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(TIMEOUT):
                raise TimeoutError(f"rank {rank} of {ranks} did not answer")
            results.append(pipe.recv())
        failed = [error for _, error in results if error]
        assert not failed, failed[0]
        return [result for result, _ in results]

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            process.kill()


def _serve(rank: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, SIZE),
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=TIMEOUT),
    )
    groups = {size: dist.new_group(list(range(size))) for size in range(1, SIZE + 1)}
    while True:
        try:
            work, args, ranks = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((work(groups[ranks], *args), ""))
        except BaseException:
            pipe.send((None, traceback.format_exc()))
