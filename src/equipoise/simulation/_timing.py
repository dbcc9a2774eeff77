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
        self._nested = [0.0]  # seconds in inner phases, for each phase that is running

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block as that of a phase."""
        start = self._now()
        self._nested.append(0.0)
        # No try: a round that fails discards its stopwatch.
        yield
        elapsed = self._now() - start
        own = elapsed - self._nested.pop()
        self._nested[-1] += elapsed
        self.seconds[name] = self.seconds.get(name, 0.0) + own

    def _now(self) -> float:
        # Python does not wait for a GPU: without this, work would count for a later phase.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
