"""A progress bar tells the truth wherever it is shown, and is never the end of a run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest

from equipoise._utils import progress
from equipoise._utils.progress import Progress

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")

FULL, EMPTY = "#" * 24, "." * 24


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def logged(clock: Clock, steps: int, seconds: float, **options: Any) -> list[str]:
    """The lines of a log while so many steps take so long each."""
    file = io.StringIO()
    with Progress(file=file, **{"total": steps, "label": "round"} | options) as bar:
        for t in range(steps - bar.done):
            clock.now += seconds
            bar.advance(f"error {t}")
    return file.getvalue().splitlines()


# In a log


def test_short_work_is_one_line(clock: Clock) -> None:
    assert logged(clock, 3, 0.5) == [f"round 3/3 [{FULL}] 0:01 error 2"]


def test_long_work_is_a_line_now_and_then(clock: Clock) -> None:
    assert logged(clock, 12, 2.0) == [
        f"round 3/12 [{'#' * 6}{'.' * 18}] 0:18 left error 2",
        f"round 6/12 [{'#' * 12}{'.' * 12}] 0:12 left error 5",
        f"round 9/12 [{'#' * 18}{'.' * 6}] 0:06 left error 8",
        f"round 12/12 [{FULL}] 0:24 error 11",
    ]


def test_a_day_is_some_hundred_lines_one_every_five_minutes(clock: Clock) -> None:
    lines = logged(clock, 24 * 60, 60.0)
    assert 24 * 60 / 5 <= len(lines) < 400
    assert lines[-1] == f"round 1440/1440 [{FULL}] 24:00:00 error 1439"


def test_time_that_is_left_in_a_run_that_was_resumed(clock: Clock) -> None:
    """Four steps were done before; the other six take ten seconds each."""
    assert logged(clock, 10, 10.0, done=4) == [
        *(
            f"round {t}/10 [{f'{chr(35) * (24 * t // 10)}':.<24}] 0:{10 * (10 - t)} left error "
            f"{t - 5}"
            for t in range(5, 10)
        ),
        f"round 10/10 [{FULL}] 1:00 error 5",
    ]


def test_nothing_to_do(clock: Clock) -> None:
    assert logged(clock, 5, 1.0, done=5) == [f"round 5/5 [{FULL}] 0:00"]
    assert logged(clock, 0, 1.0) == [f"round 0/0 [{EMPTY}] 0:00"]


def test_an_error_leaves_the_line_where_it_was(clock: Clock) -> None:
    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(4, "round", file=file) as bar:  # noqa: PT012
        clock.now += 3
        bar.advance("fine")
        raise KeyboardInterrupt
    assert file.getvalue() == f"round 1/4 [{'#' * 6}{'.' * 18}] 0:09 left fine\n"


def test_skipped_steps_take_no_time(clock: Clock) -> None:
    file = io.StringIO()
    with Progress(100, "round", file=file) as bar:
        bar.skip(90)
        clock.now += 10.0
        bar.advance()
    assert file.getvalue().splitlines()[0] == f"round 91/100 [{'#' * 21}{'.' * 3}] 1:30 left"


def test_the_last_note_stays(clock: Clock) -> None:
    file = io.StringIO()
    with Progress(2, "round", file=file) as bar:
        bar.advance("fine")
        bar.advance()
    assert file.getvalue().endswith("fine\n")


def test_notes_are_asked_for_when_they_are_shown(clock: Clock) -> None:
    def note() -> str:
        asked.append(clock.now)
        return f"asked {len(asked)}"

    asked: list[float] = []
    file = io.StringIO()
    with Progress(100, "round", file=file) as bar:
        for _ in range(100):
            clock.now += 0.09
            bar.advance(note)
    assert len(asked) == 2
    assert [line.split()[-1] for line in file.getvalue().splitlines()] == ["1", "2"]


# On a terminal


class Terminal:
    """A pseudo-terminal, and what was written to it."""

    def __init__(self, columns: int) -> None:
        import fcntl
        import struct
        import termios

        self.reader, writer = os.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.file = open(writer, "w", encoding="utf-8")  # noqa: SIM115

    def text(self) -> str:
        """All up to the end of the line, which comes in pieces."""
        data = b""
        while not data.endswith(b"\n"):
            data += os.read(self.reader, 1 << 16)
        return data.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.file.close()
        os.close(self.reader)


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Any:
    if not hasattr(os, "openpty"):
        pytest.skip("there are no pseudo-terminals")
    terminal = Terminal(getattr(request, "param", 80))
    yield terminal
    terminal.close()


def test_a_terminal_shows_one_line(clock: Clock, terminal: Terminal) -> None:
    with Progress(3, "round", file=terminal.file) as bar:
        for note in ("a long note", "short", "shorter"):
            clock.now += 1
            bar.advance(note)
    drawings = terminal.text().split("\r")
    assert drawings == [
        "",
        f"round 0/3 [{EMPTY}] 0:00",
        f"round 1/3 [{'#' * 8}{'.' * 16}] 0:02 left a long note",
        f"round 2/3 [{'#' * 16}{'.' * 8}] 0:01 left short      ",
        f"round 3/3 [{FULL}] 0:03 shorter   ",
        f"round 3/3 [{FULL}] 0:03 shorter\n",
    ]


def test_a_terminal_is_not_drawn_again_for_every_step(clock: Clock, terminal: Terminal) -> None:
    with Progress(1000, "round", file=terminal.file) as bar:
        for _ in range(1000):
            clock.now += 0.001
            bar.advance()
    assert 8 <= terminal.text().count("\r") <= 12


@pytest.mark.parametrize(("terminal", "width"), [(40, 39), (0, 79)], indirect=["terminal"])
def test_a_line_fits_a_terminal(clock: Clock, terminal: Terminal, width: int) -> None:
    """A longer line could not be drawn again. A terminal of unknown width has 80 columns."""
    with Progress(3, "round", file=terminal.file) as bar:
        clock.now += 1
        bar.advance("x" * 100)
    first, *others = terminal.text().strip().split("\r")
    assert first == f"round 0/3 [{EMPTY}] 0:00"[:width]
    assert [len(line) for line in others] == [width] * 2


# Where it cannot be shown


class Raw:
    """What some programs put in place of standard error."""

    def write(self, text: str) -> None:
        raise RuntimeError("nobody listens")


def closed() -> TextIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("make", [lambda: None, closed, Raw], ids=["None", "closed", "odd"])
def test_standard_error_that_is_none(
    make: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", make())
    with Progress(2, "round") as bar:
        for _ in range(2):
            clock.now += 60
            bar.advance("fine")
    assert bar.done == 2


def test_a_pipe_that_breaks(clock: Clock) -> None:
    reader, writer = os.pipe()
    file = open(writer, "w", encoding="utf-8")  # noqa: SIM115
    with Progress(3, "round", file=file) as bar:
        clock.now += 60
        bar.advance("fine")
        os.close(reader)
        for _ in range(2):
            clock.now += 60
            bar.advance("still fine")
    assert bar.done == 3
    with pytest.raises(BrokenPipeError):
        file.close()


def test_what_an_encoding_does_not_have_is_replaced() -> None:
    data = io.BytesIO()
    with Progress(
        1, "round", file=io.TextIOWrapper(data, encoding="ascii", write_through=True)
    ) as bar:
        bar.advance("größter error 0.5 \udc80")
        bar.advance("größter error 0.25 \udc80")
    assert data.getvalue().decode().splitlines()[-1].endswith("gr??ter error 0.25 ?")


def test_an_encoding_that_does_not_exist() -> None:
    class Odd(io.StringIO):
        encoding = "klingon"

    with Progress(1, "round", file=Odd()) as bar:
        bar.advance("fine")
    assert bar.done == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>/dev/null"])
def test_a_program_without_standard_error(redirection: str) -> None:
    code = f"""
import runpy
Progress = runpy.run_path({str(Path(progress.__file__))!r})["Progress"]
with Progress(3, "round") as bar:
    for _ in range(3):
        bar.advance("fine")
print("done", bar.done)
"""
    command = f'exec "$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.stdout == "done 3\n"
