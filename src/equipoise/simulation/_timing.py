"""The time of each phase of a round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds per phase. A phase inside another one does not count for the outer one.

    >>> from equipoise.simulation._timing import Stopwatch
    >>> watch = Stopwatch(torch.device("cpu"))
    >>> with watch.phase("aggregate"):
    ...     with watch.phase("forge"):
    ...         pass
    >>> list(watch.seconds)
    ['forge', 'aggregate']
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block as that of a phase."""
        start = self._uncounted()
        # No try: a round that fails discards its stopwatch.
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + (self._uncounted() - start)

    def _uncounted(self) -> float:
        """The time, less what is counted so far: inner phases do not show between two calls."""
        # Python does not wait for a GPU: without this, work would count for a later phase.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - sum(self.seconds.values())
