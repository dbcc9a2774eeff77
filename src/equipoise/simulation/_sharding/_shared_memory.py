"""Rows that ranks on one machine leave for each other in memory, instead of sending them."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.simulation._sharding._ranks import Ranks

SWITCH = "EQUIPOISE_SHARED_MEMORY"  # 0 sends rows over the network on one machine, too
TOKEN = 16  # bytes that tell a rank's memory from that of a process on another machine


class SharedMemory:
    """A copy in memory takes a tenth of the time of a connection on one machine.

    Each rank writes the rows that it sends to memory of its own, which the others read after all
    have written. There are two memories per rank, which take turns: a rank writes to one of them
    again only after all ranks have met once more, and hence have read it. The memories have no
    names: nothing is left behind by a process that is killed.
    """

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._turn = 0
        self._sizes = [[0] * ranks.size, [0] * ranks.size]
        self._memories: list[list[Tensor]] = [[], []]

    @classmethod
    def of(cls, ranks: Ranks, device: torch.device) -> SharedMemory | None:
        """The shared memory of the ranks; None if they cannot reach each other's."""
        wanted = device.type == "cpu" and os.environ.get(SWITCH) != "0"
        # Every rank must come to the same answer, so none returns early.
        wanted = ranks.sum([wanted and hasattr(os, "memfd_create")], device) == [ranks.size]
        if not wanted or ranks.size == 1:
            return None
        found = cls(ranks, device)
        return found if found._are_reached() else None

    def swap(
        self, rows: Tensor, sent: Tensor, counts: Sequence[Sequence[int]], into: Tensor
    ) -> None:
        """Leave ``rows[sent]`` for the other ranks, and copy theirs to ``into``, by rank.

        Rank q leaves ``counts[q][r]`` rows for rank r, in the order of the ranks.
        """
        self._turn = 1 - self._turn
        size = rows.shape[1] * rows.element_size()
        needed = [max(1, sum(each)) * size for each in counts]
        # All ranks know all counts, so they agree on this.
        if any(x > y for x, y in zip(needed, self._sizes[self._turn], strict=True)):
            self._sizes[self._turn] = [
                max(x, y) for x, y in zip(needed, self._sizes[self._turn], strict=True)
            ]
            self._memories[self._turn] = self._allocate(self._sizes[self._turn])
        memories = self._memories[self._turn]
        rank = self._ranks.rank
        torch.index_select(rows, 0, sent, out=_rows_of(memories[rank], rows, 0, len(sent)))
        self._ranks.meet(self._device)
        start = 0
        for theirs, each in zip(memories, counts, strict=True):
            end = start + each[rank]
            into[start:end] = _rows_of(theirs, rows, sum(each[:rank]), each[rank])
            start = end

    def _allocate(self, sizes: Sequence[int]) -> list[Tensor]:
        """Memory of all ranks, of which each one has made its own."""
        mine = os.memfd_create("equipoise")
        os.ftruncate(mine, sizes[self._ranks.rank])
        try:
            place = torch.tensor([[os.getpid(), mine]], device=self._device)
            places = self._ranks.gather(place, [1] * self._ranks.size).tolist()
            found = [
                _mapped(f"/proc/{process}/fd/{file}", size)
                for (process, file), size in zip(places, sizes, strict=True)
            ]
            self._ranks.meet(self._device)  # all have opened it
        finally:
            os.close(mine)  # the mappings keep the memory
        return found

    def _are_reached(self) -> bool:
        """Whether each rank reads what the others have written."""
        token = torch.tensor(list(secrets.token_bytes(TOKEN)), dtype=torch.uint8)
        tokens = self._ranks.gather(token[None], [1] * self._ranks.size)
        mine = os.memfd_create("equipoise")
        os.write(mine, bytes(token.tolist()))
        try:
            place = torch.tensor([[os.getpid(), mine]])
            places = self._ranks.gather(place, [1] * self._ranks.size).tolist()
            try:
                found = [_mapped(f"/proc/{x}/fd/{y}", TOKEN) for x, y in places]
                reached = all(map(torch.equal, found, tokens))
            # Another machine, another namespace of processes, or another user.
            except (OSError, ValueError):
                reached = False
            return self._ranks.sum([reached], self._device) == [self._ranks.size]
        finally:
            os.close(mine)


def _mapped(path: str, size: int) -> Tensor:
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)


def _rows_of(memory: Tensor, like: Tensor, start: int, count: int) -> Tensor:
    d = like.shape[1]
    size = d * like.element_size()
    part = memory[start * size : (start + count) * size]
    return part.view(like.dtype).view(count, d)
