"""The processes that share a simulation, and what they send each other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_process_group_store

from equipoise._utils.validation import describe

# Seconds of sleep between two looks at an operation: a tenth of the time waited so far, because
# most ranks finish at nearly the same time, but not less than the first and not more than the last.
FIRST_SLEEP = 2e-5
LONGEST_SLEEP = 2e-3
# Seconds between two looks at the store for the error of another rank.
LOOK_EVERY = 0.5
# A rank that fails says so before its connections close; the others wait so long for its words.
LAST_WORDS = 1.0


class LostRankError(RuntimeError):
    """Another process of the group failed, ended, or cannot be reached: the run cannot go on."""


class Ranks:
    """The ranks of a process group; every method is collective: all ranks call it in one order.

    A rank never waits for one that has failed. The ranks ask the store of the group for errors of
    others while they wait, and connections to a process that was killed break at once. The timeout
    of the group bounds the wait for a machine that is gone without a trace.

    Args:
        group: a process group of `torch.distributed`, with the device for its messages.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.bytes_sent = 0  # by this rank, of the messages of clients
        # torch 2.5, the oldest one, has no group.get_group_store(), and no group_src below.
        self._store = _get_process_group_store(group)
        names = [uuid4().hex]  # a store may outlive a run, and serve several at once
        dist.broadcast_object_list(names, src=dist.get_global_rank(group, 0), group=group)
        self._key = f"equipoise/{names[0]}/failed"

    # Failures

    def tell(self, error: BaseException) -> None:
        """Tell the other ranks that this one cannot go on."""
        if isinstance(error, LostRankError):
            return  # they know the cause, or find it as this rank did
        text = f"rank {self.rank}: {type(error).__name__}: {error}"
        # If the store is gone as well, the others find that by themselves.
        with suppress(RuntimeError):
            self._store.set(self._key, text)

    def wait(self, work: Any, doing: str) -> None:
        """Wait for an operation; raise `LostRankError` if another rank cannot join it."""
        start = looked = now = time.monotonic()
        while not work.is_completed():
            time.sleep(min(max((now - start) / 10, FIRST_SLEEP), LONGEST_SLEEP))
            now = time.monotonic()
            if now - looked > LOOK_EVERY:
                looked = now
                if (words := self._words()) is not None:
                    raise self._lost(doing, words)
        with self.naming_lost(doing):
            work.wait()

    @contextmanager
    def naming_lost(self, doing: str) -> Iterator[None]:
        """Raise `LostRankError` with the cause if an operation of torch fails in this block."""
        try:
            yield
        except RuntimeError as error:
            start = time.monotonic()
            while (words := self._words()) is None and time.monotonic() - start < LAST_WORDS:
                time.sleep(10 * LONGEST_SLEEP)
            ended = "a process has ended, or cannot be reached"
            raise self._lost(doing, words or f"{ended} ({str(error)[:200]})") from error

    def _words(self) -> str | None:
        """What a rank said before it failed, None if all seem well."""
        try:
            if not self._store.check([self._key]):
                return None
            return bytes(self._store.get(self._key)).decode()
        except RuntimeError as error:
            return f"the store of the group cannot be reached ({str(error)[:200]})"

    def _lost(self, doing: str, words: str) -> LostRankError:
        return LostRankError(
            f"rank {self.rank} of {self.size} cannot go on, while it {doing}: {words}. "
            "Start all processes again to go on from the last checkpoint"
        )

    # Operations

    def swap(
        self, sent: Tensor, counts_out: Sequence[int], into: Tensor, counts_in: Sequence[int]
    ) -> None:
        """Send rows of ``sent`` to each rank, in order; write those received to ``into``."""
        work = dist.all_to_all_single(
            into, sent, list(counts_in), list(counts_out), group=self.group, async_op=True
        )
        self.wait(work, "exchanged models")

    def gather(self, mine: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks, by rank, on each of them; rank q has ``counts[q]`` rows."""
        out = mine.new_empty(sum(counts), *mine.shape[1:])
        parts = out.split(list(counts))
        parts[self.rank].copy_(mine)
        works = [
            dist.broadcast(part, dist.get_global_rank(self.group, q), self.group, async_op=True)
            for q, part in enumerate(parts)
            if part.numel()
        ]
        for work in works:
            self.wait(work, "gathered values of all clients")
        return out

    def sum(self, numbers: Iterable[int], device: torch.device) -> list[int]:
        """The sums over all ranks."""
        totals = torch.tensor(list(numbers), dtype=torch.int64, device=device)
        self.wait(dist.all_reduce(totals, group=self.group, async_op=True), "added counts")
        return totals.tolist()

    def add(self, mine: Tensor) -> Tensor:
        """The sums of equally shaped tensors; exact where all ranks but one have zeros."""
        totals = mine.clone()
        self.wait(dist.all_reduce(totals, group=self.group, async_op=True), "added values")
        return totals

    def meet(self, device: torch.device) -> None:
        """Return after all ranks have come here."""
        self.sum([0], device)


def ranks_of(group: object) -> Ranks:
    """The ranks of a process group or of a device mesh with one dimension."""
    if hasattr(group, "get_group") and getattr(group, "ndim", None) == 1:
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        expected = "a process group such as torch.distributed.group.WORLD, or a DeviceMesh of one"
        hint = "; torch.distributed.init_process_group() comes first"
        raise ValueError(f"group must be {expected} dimension, found {describe(group)}{hint}")
    return Ranks(group)
