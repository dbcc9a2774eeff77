"""What the C library does with memory that has been freed; it matters with glibc only."""

from __future__ import annotations

import asyncio
import ctypes
import functools
from collections.abc import Callable

import numpy as np

PAUSE = 0.25  # seconds between two returns of memory, each of which takes about a millisecond


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
        self._is_planned = False

    def give_back_soon(self) -> None:
        """Return what can be returned, a moment from now; call it in an asyncio loop.

        A moment, because the memory of the message that was just refused is still in use.
        """
        if not self._is_planned and malloc_trim() is not None:
            self._is_planned = True
            asyncio.get_running_loop().call_later(PAUSE, self._give_back)

    def _give_back(self) -> None:
        self._is_planned = False
        trim = malloc_trim()
        assert trim is not None
        trim(0)


@functools.cache
def malloc_trim() -> Callable[[int], int] | None:
    """The function of glibc, or None; other C libraries have none of this name."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows needs the name of a library
        return None
    return found
