"""How much freed memory the process keeps, and when it returns it; for glibc only."""

from __future__ import annotations

import asyncio
import ctypes
import functools
from collections.abc import Callable

import numpy as np

PAUSE = 0.25  # seconds between two returns of memory, each of which takes about a millisecond
LONGEST_PAUSE = 60.0


def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of freed memory instead of returning each chunk to the system.

    It adapts both of its thresholds to the largest block that was mapped and freed, up to 32 MiB
    (mallopt(3), M_MMAP_THRESHOLD). Otherwise, each chunk takes new pages, which the system clears.
    The block itself is never touched.
    """
    np.empty((32 << 20) - (16 << 10), dtype=np.uint8)


class FreedMemory:
    """Gives freed memory back to the system now and then.

    glibc keeps it in several arenas, whatever the thresholds are: after 10,000 hostile streams, a
    peer held 330 MiB, of which it used 60.
    """

    def __init__(self) -> None:
        self._pause = PAUSE
        self._planned: asyncio.TimerHandle | None = None

    def give_back_soon(self) -> None:
        """Return what can be returned, a moment from now and less and less often for a minute.

        The memory of the message that was just refused is still in use, and that of its connection
        may be for longer. Call this in an asyncio loop.
        """
        if malloc_trim() is None or (self._planned is not None and self._pause == PAUSE):
            return
        if self._planned is not None:
            self._planned.cancel()
        self._pause = PAUSE
        self._plan()

    def _plan(self) -> None:
        self._planned = asyncio.get_running_loop().call_later(self._pause, self._give_back)

    def _give_back(self) -> None:
        trim = malloc_trim()
        assert trim is not None
        trim(0)
        self._planned = None
        self._pause *= 2
        if self._pause <= LONGEST_PAUSE:
            self._plan()


@functools.cache
def malloc_trim() -> Callable[[int], int] | None:
    """The function of glibc, or None; other C libraries have none of this name."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows needs the name of a library
        return None
    return found
