"""A line that shows how far a long run is."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

WIDTH = 24
SECONDS = 0.1  # between two drawings, on a terminal
QUIET_SECONDS = 30.0  # elsewhere, where every drawing is a line of a log


class Progress:
    """A progress bar on standard error: a line that is drawn again on a terminal, a line now and then in a log.

    >>> from equipoise.progress import Progress
    >>> with Progress(3, "round", file=sys.stdout) as bar:
    ...     for t in range(3):
    ...         bar.advance(f"worst error {1 / (t + 1):.2f}")
    round 3/3 [########################] 0:00 worst error 0.33
    """

    def __init__(self, total: int, label: str, *, done: int = 0, file: TextIO | None = None) -> None:
        self.total, self.label, self.done = total, label, done
        self.file = sys.stderr if file is None else file
        self._alive = self.file.isatty()
        self._start, self._first = time.monotonic(), done
        self._drawn, self._length, self._note = self._start, 0, ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._draw(end="\n")

    def advance(self, note: str = "", steps: int = 1) -> None:
        """Note that some steps are done, and what there is to say about the last one."""
        self.done, self._note = self.done + steps, note or self._note
        if time.monotonic() - self._drawn >= (SECONDS if self._alive else QUIET_SECONDS):
            self._draw(end="" if self._alive else "\n")

    def _draw(self, end: str) -> None:
        self._drawn = time.monotonic()
        filled = WIDTH * self.done // max(1, self.total)
        line = f"{self.label} {self.done}/{self.total} [{'#' * filled}{'.' * (WIDTH - filled)}] {self._clock()}"
        line = f"{line} {self._note}".rstrip()
        self.file.write(("\r" + line.ljust(self._length) if self._alive else line) + end)
        self.file.flush()
        self._length = len(line)

    def _clock(self) -> str:
        """Time that it took, or that is left."""
        elapsed, fresh = self._drawn - self._start, self.done - self._first
        if self.done >= self.total or not fresh:
            return _minutes(elapsed)
        return f"{_minutes(elapsed / fresh * (self.total - self.done))} left"


def _minutes(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
