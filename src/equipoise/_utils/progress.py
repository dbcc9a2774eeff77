"""The progress bar of long runs, a thin layer over tqdm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from equipoise._utils.optional import import_optional


def progress_bar(total: int, unit: str, *, done: int = 0) -> Any:
    """Return a tqdm bar on standard error. Steps ``done`` earlier do not count for its speed.

    >>> from equipoise._utils.progress import advance, progress_bar
    >>> with progress_bar(3, "round") as bar:
    ...     for t in range(3):
    ...         advance(bar, lambda: f"worst error {1 / (t + 1):.2f}")
    >>> bar.n, bar.postfix
    (3, 'worst error 0.33')
    """
    # There is no standard error under pythonw, and a daemon may have closed it.
    shown = sys.stderr is not None and not sys.stderr.closed
    return import_optional("tqdm", "progress").tqdm(
        total=total,
        initial=done,
        unit=unit,
        # A log gets a line every few seconds, a terminal is redrawn often enough to look alive.
        mininterval=0.1 if shown and sys.stderr.isatty() else 5.0,
        # Rounds differ in cost (evaluation, checkpoints): the mean of all predicts the rest best.
        smoothing=0.0,
        dynamic_ncols=True,
        disable=not shown,
    )


def advance(bar: Any, note: Callable[[], str], steps: int = 1) -> None:
    """Count steps as done. The note is computed only when the bar is drawn, and at the end."""
    if bar.update(steps) or bar.n >= bar.total:
        bar.set_postfix_str(note())


def skip(bar: Any, steps: int) -> None:
    """Count steps that took no time: done in an earlier run, or not needed."""
    bar.initial += steps
    bar.n += steps
