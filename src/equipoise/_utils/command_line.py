"""Types of command line options, for argparse."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path


def integer_from(minimum: int) -> Callable[[str], int]:
    """The type of integers of at least ``minimum``."""

    def integer(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1  # too small, so one error covers both mistakes
        if number < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer >= {minimum}, found {text}")
        return number

    return integer


def name_from(names: Iterable[str]) -> Callable[[str], str]:
    """Accept one of ``names``; reject any other text with the nearest name and the list."""
    known = {name.lower(): name for name in names}

    def name(text: str) -> str:
        if text not in known.values():
            # Compare in lower case, so that the wrong case counts as close.
            close = get_close_matches(text.lower(), known, n=1)
            hint = f"; did you mean {known[close[0]]}?" if close else ""
            expected = f"one of {', '.join(known.values())}"
            raise argparse.ArgumentTypeError(f"must be {expected}, found {text}{hint}")
        return text

    return name


def positive(text: str) -> float:
    """A finite number greater than 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0  # rejected below
    # NaN fails both comparisons.
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number > 0, found {text}")
    return number


def folder(text: str) -> Path:
    """A writable folder, which is created if it does not exist."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"{text}: {error.strerror}"
        raise argparse.ArgumentTypeError(f"must be a folder, found {found}") from error
    # mkdir accepts an existing folder that is read-only.
    if not os.access(text, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"must be a folder that can be written to, found {text}")
    return Path(text)
