"""Ctrl-C, kill -9 and a full disk lose at most the rounds since the last checkpoint."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from tests.sweeps import small
from tests.sweeps.small import lines

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
import equipoise as eq
from tests.sweeps.small import slow

if __name__ == "__main__":
    folder, log, workers = sys.argv[1:]
    options = {"folder": folder, "workers": int(workers), "save_every": 5, "progress": False}
    eq.sweep(slow, seed=[0, 1], log=[log], **options)
"""
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


def start(folder: Path, log: Path, workers: int) -> subprocess.Popen[str]:
    # The tests may run with SIGINT ignored, which a child process inherits.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(log), str(workers)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds,
        start_new_session=True,  # a terminal sends Ctrl-C to all processes of the group
    )


def end(process: subprocess.Popen[str]) -> None:
    """Kill a sweep and its workers, which may have ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_for_round(log: Path, t: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not any(line.endswith(f" {t}") for line in lines(log)):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


@posix
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_signals_lose_rounds_since_checkpoint(
    sign: signal.Signals, workers: int, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    log = tmp_path / "log"
    process = start(folder, log, workers)
    try:
        wait_for_round(log, 12, process)
        if sign == signal.SIGINT:
            os.killpg(process.pid, sign)
        else:
            process.kill()  # the workers find out by themselves
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == -sign or "KeyboardInterrupt" in err
    # The workers of a killed sweep end after their round.
    time.sleep(0.5)
    before = lines(log)
    time.sleep(0.3)
    assert lines(log) == before
    cell = next(path for path in (folder / "cells").iterdir() if (path / "checkpoint").exists())
    assert not (cell / "history.json").exists()
    # A short rest of the run: the cell is known by its choice, and the log is part of it.
    resumed = start(folder, log, workers)
    try:
        wait_for_round(log, 25, resumed)
    finally:
        end(resumed)
    rounds = [line for line in lines(log) if line.startswith("0 ")]
    again = len(rounds) - len(set(rounds))
    assert again <= 5 + 1  # save_every, and the round that was interrupted


@posix
def test_worker_that_begins_without_its_driver(tmp_path: Path) -> None:
    """The driver is killed when the first worker begins its cell; the other begins later."""
    log = tmp_path / "log"
    process = start(tmp_path / "results", log, 2)
    try:
        wait_for_round(log, 0, process)
        process.kill()
        process.communicate(timeout=60)  # until no worker holds the pipe
    finally:
        end(process)
    assert not any(line.endswith(" 399") for line in lines(log))


class FullDiskError(OSError):
    """No space left on the device."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "no space left")


def test_full_disk_ends_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "results"
    log = tmp_path / "log"
    run = partial(
        eq.sweep,
        small.counted,
        seed=[0, 1, 2],
        log=[str(log)],
        folder=folder,
        progress=False,
    )

    def full(*_: Any) -> None:
        raise FullDiskError

    with monkeypatch.context() as patch:
        patch.setattr(eq.History, "to_json", full)
        with pytest.raises(OSError, match="no space left"):
            run()
    assert lines(log) == ["0"]  # the others are not attempted
    (cell,) = (folder / "cells").iterdir()
    assert (cell / "checkpoint").exists()
    results = run()
    assert not results.failures
    assert [cell.history for cell in results] == [small.make(seed=i).run() for i in range(3)]
    assert not list(folder.rglob("checkpoint"))
    assert not list(folder.rglob("*.part"))


def test_full_disk_while_saving_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partial(eq.sweep, small.make, seed=[0], folder=tmp_path, save_every=2, progress=False)
    fsync = os.fsync
    calls = []

    def full_later(file: int) -> None:
        calls.append(file)
        if len(calls) > 3:  # the index, round 0 and round 2 are saved
            raise FullDiskError
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_later)
        with pytest.raises(OSError, match="could not be saved"):
            run()
    simulator = small.make(seed=0)
    simulator.load(next(tmp_path.rglob("checkpoint")))
    assert simulator.t == 2
    assert [cell.history for cell in run()] == [small.make(seed=0).run()]


def test_other_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = partial(eq.sweep, small.make, seed=[0], folder=tmp_path, progress=False)
    run()
    monkeypatch.setattr("equipoise.sweeps._sweep.__version__", "9.9")
    expected = r"of equipoise 9\.9, format 1, found equipoise 0\.1\.0, format 1 in .*: choose"
    with pytest.raises(ValueError, match=expected):
        run()
    with pytest.raises(ValueError, match=expected):
        eq.sweeps.read(tmp_path)
    monkeypatch.undo()
    assert len(run()) == 1


def test_other_folders_are_refused(tmp_path: Path) -> None:
    run = partial(eq.sweep, small.make, seed=[0], folder=tmp_path, progress=False)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"a new or empty folder, .*found other files in"):
        run()
    with pytest.raises(ValueError, match=r"folder must hold a sweep, found no sweep\.json"):
        eq.sweeps.read(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep\.json must list the cells of a sweep"):
        run()


@pytest.mark.parametrize("name", ["history.json", "cell.json"])
def test_damaged_cell_is_named(name: str, tmp_path: Path) -> None:
    eq.sweep(small.make, seed=[0], folder=tmp_path, progress=False)
    damaged = next(tmp_path.rglob(name))
    damaged.write_text("{")
    with pytest.raises(ValueError, match=f"{damaged}"):
        eq.sweeps.read(tmp_path)
    assert eq.sweep(small.make, seed=[0], folder=tmp_path, progress=False, recompute=True)


@posix
def test_two_sweeps_share_the_work(tmp_path: Path) -> None:
    """A cell that another sweep is running comes last, and no cell runs twice."""
    folder = tmp_path / "results"
    log = tmp_path / "log"
    process = start(folder, log, 1)
    try:
        wait_for_round(log, 3, process)  # of the first cell
        other = start(folder, log, 1)
        try:
            deadline = time.monotonic() + 120
            while "1 3" not in lines(log):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            end(other)
    finally:
        end(process)
    found = lines(log)
    assert len(found) == len(set(found))
    assert not any(line.endswith(" 399") for line in found)  # both ran at the same time
