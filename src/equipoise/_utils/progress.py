"""A line that shows how far a long run is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 24  # of the bar
COLUMNS = 80  # of a terminal that does not say how many it has
REDRAWN = 0.1  # seconds between two drawings on a terminal
LOGGED = 5.0  # seconds between two lines of a log; later on, a tenth of the time that has passed,
RARELY = 300.0  # but no longer than this: a log that stands still looks as if the run did


class Progress:
    """A progress bar on standard error: on a terminal one line, drawn again; in a log or a notebook, some lines.

    Without a standard error, and after it is closed, nothing is shown. The time that is left is estimated from the
    steps since the start; those ``done`` before it, in a run that is resumed, and those that are skipped do not count.

    >>> import sys
    >>> from equipoise._utils.progress import Progress
    >>> with Progress(3, "round", file=sys.stdout) as bar:
    ...     for t in range(3):
    ...         bar.advance(f"worst error {1 / (t + 1):.2f}")
    round 3/3 [########################] 0:00 worst error 0.33
    """

    def __init__(self, total: int, label: str, *, done: int = 0, file: TextIO | None = None) -> None:
        self.total, self.label, self.done = total, label, done
        self._file: TextIO | None = sys.stderr if file is None else file  # sys.stderr is None under pythonw
        self._columns = _columns_of_terminal(self._file)
        self._start, self.skipped = time.monotonic(), done
        self._drawn, self._line = self._start, ""
        self._note: str | Callable[[], str] = ""

    def __enter__(self) -> Progress:
        if self._columns is not None:
            self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self._draw(end="\n")

    def advance(self, note: str | Callable[[], str] = "", steps: int = 1) -> None:
        """Note that some steps are done, and what there is to say: a text, or a function that returns one if asked."""
        self.done, self._note = self.done + steps, note or self._note
        now = time.monotonic()
        pause = min(max(LOGGED, 0.1 * (now - self._start)), RARELY) if self._columns is None else REDRAWN
        if now - self._drawn >= pause:
            self._draw(end="\n" if self._columns is None else "")

    def skip(self, steps: int) -> None:
        """Note that some steps need not be done: they were done before, or there is no use in them."""
        self.done, self.skipped = self.done + steps, self.skipped + steps

    def _draw(self, end: str = "") -> None:
        self._drawn, before = time.monotonic(), self._line
        filled = WIDTH * self.done // max(1, self.total)
        note = self._note if isinstance(self._note, str) else self._note()
        line = f"{self.label} {self.done}/{self.total} [{'#' * filled}{'.' * (WIDTH - filled)}] {self._clock()} {note}"
        self._line = line.rstrip()[: self._columns]
        if self._columns is not None:
            self._write("\r" + self._line.ljust(len(before)) + end)
        elif self._line != before:
            self._write(self._line + end)

    def _clock(self) -> str:
        """Time that it took, or that is left."""
        elapsed, fresh = self._drawn - self._start, self.done - self.skipped
        if self.done >= self.total or fresh <= 0:
            return _minutes(elapsed)
        return f"{_minutes(elapsed / fresh * (self.total - self.done))} left"

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            encoding = getattr(self._file, "encoding", None) or "utf-8"
            self._file.write(text.encode(encoding, "replace").decode(encoding))
            self._file.flush()
        except Exception:  # closed, a broken pipe, or whatever somebody put in its place: no reason to end a run
            self._file = None


class Silence:
    """A progress bar that shows nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, note: object) -> None:
        """Show nothing."""


def _columns_of_terminal(file: TextIO | None) -> int | None:
    """How long a line may be, or None where lines are not drawn again."""
    try:
        if file is None or not file.isatty():
            return None
        return (os.get_terminal_size(file.fileno()).columns or COLUMNS) - 1  # some terminals wrap a full line
    except Exception:
        return None


def _minutes(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
