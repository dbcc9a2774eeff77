"""A progress bar for long runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 24  # characters of the bar
COLUMNS = 80  # of a terminal that does not report its width
REDRAW_SECONDS = 0.1  # between two drawings on a terminal
# Seconds between two lines of a log: at first LOG_SECONDS, later a tenth of the elapsed time, so
# that a run of a day does not fill the log, but at most LONGEST_PAUSE, so that it looks alive.
LOG_SECONDS = 5.0
LONGEST_PAUSE = 300.0


class Progress:
    """A progress bar on standard error.

    A terminal shows one line, which is redrawn; a log or a notebook gets a new line from time to
    time. Without a standard error, or after it is closed, nothing is shown. The remaining time is
    estimated from the steps since the start, without skipped steps and those ``done`` before a
    run was resumed.

    >>> import sys
    >>> from equipoise._utils.progress import Progress
    >>> with Progress(3, "round", file=sys.stdout) as bar:
    ...     for t in range(3):
    ...         bar.advance(f"worst error {1 / (t + 1):.2f}")
    round 3/3 [########################] 0:00 worst error 0.33
    """

    def __init__(
        self, total: int, label: str, *, done: int = 0, file: TextIO | None = None
    ) -> None:
        self.total = total
        self.label = label
        self.done = done
        self.skipped = done
        # sys.stderr is None under pythonw.
        self._file: TextIO | None = sys.stderr if file is None else file
        self._columns = _terminal_columns(self._file)
        self._start = time.monotonic()
        self._drawn = self._start
        self._line = ""
        self._note: str | Callable[[], str] = ""

    def __enter__(self) -> Progress:
        if self._columns is not None:
            self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self._draw(end="\n")

    def advance(self, note: str | Callable[[], str] = "", steps: int = 1) -> None:
        """Count some steps as done. ``note`` is a text, or a function that makes one if needed."""
        self.done += steps
        self._note = note or self._note
        now = time.monotonic()
        if self._columns is not None:
            if now - self._drawn >= REDRAW_SECONDS:
                self._draw()
            return
        pause = min(max(LOG_SECONDS, 0.1 * (now - self._start)), LONGEST_PAUSE)
        if now - self._drawn >= pause:
            self._draw(end="\n")

    def skip(self, steps: int) -> None:
        """Count steps as done that took no time: done in an earlier run, or not needed."""
        self.done += steps
        self.skipped += steps

    def _draw(self, end: str = "") -> None:
        self._drawn = time.monotonic()
        before = self._line
        filled = WIDTH * self.done // max(1, self.total)
        bar = "#" * filled + "." * (WIDTH - filled)
        note = self._note if isinstance(self._note, str) else self._note()
        line = f"{self.label} {self.done}/{self.total} [{bar}] {self._clock()} {note}"
        self._line = line.rstrip()[: self._columns]
        if self._columns is not None:
            self._write("\r" + self._line.ljust(len(before)) + end)
        elif self._line != before:
            self._write(self._line + end)

    def _clock(self) -> str:
        """The elapsed time, or an estimate of the remaining time."""
        elapsed = self._drawn - self._start
        timed = self.done - self.skipped
        if self.done >= self.total or timed <= 0:
            return _minutes(elapsed)
        return f"{_minutes(elapsed / timed * (self.total - self.done))} left"

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            encoding = getattr(self._file, "encoding", None) or "utf-8"
            self._file.write(text.encode(encoding, "replace").decode(encoding))
            self._file.flush()
        except Exception:  # a closed file or a broken pipe is no reason to end a run
            self._file = None


class Silence:
    """A progress bar that shows nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, note: object) -> None:
        """Show nothing."""


def _terminal_columns(file: TextIO | None) -> int | None:
    """The longest line of a terminal, or None for other files."""
    try:
        if file is None or not file.isatty():
            return None
        columns = os.get_terminal_size(file.fileno()).columns or COLUMNS
        return columns - 1  # some terminals wrap a full line
    except Exception:
        return None


def _minutes(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
