"""How long the phases of a round take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds by phase; work on a GPU, which Python does not wait for, counts where it was begun.

    >>> from equipoise.simulation._timing import Stopwatch
    >>> watch = Stopwatch(torch.device("cpu"))
    >>> with watch.phase("train"):
    ...     pass
    >>> list(watch.seconds)
    ['train']
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block as that of a phase."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
