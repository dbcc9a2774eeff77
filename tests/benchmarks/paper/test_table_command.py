"""The command table: many runs in several processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.paper import cli, commands, run
from benchmarks.paper.archive import Archive
from benchmarks.paper.run import simulator
from tests.benchmarks.paper.helpers import (
    ROOT,
    SHORT,
    Capture,
    finished,
)


def test_existing_runs_are_skipped(archive: Archive) -> None:
    archive.add([(SHORT, finished(SHORT, 0.5, seed=1))])
    other = SHORT.changed(rule="Krum")
    assert commands.missing(archive, [SHORT, other, SHORT], [0, 1]) == [
        {"setting": SHORT, "seed": 0},
        {"setting": other, "seed": 0},
        {"setting": other, "seed": 1},
    ]


def test_missing_cells_in_processes(tmp_path: Path, capsys: Capture) -> None:
    words = "table synthetic --rows FedAvg Median --columns Gaussian --rounds 20 --seeds 2"
    options = ["--processes", "2", "--results", str(tmp_path)]
    assert cli.main([*words.split(), *options]) == 0
    assert "synthetic: 2 cells, 0 of 4 runs exist." in capsys.readouterr().out
    setting = SHORT.changed(rule="FedAvg")
    alone, _ = run.run(setting, 1, ".")
    found = Archive(tmp_path).runs(setting)[1]
    times = {"seconds", "aggregate_seconds"}
    assert {name for name in alone if found[name] != alone[name]} <= times
    assert cli.main([*words.split(), *options]) == 0
    assert "4 of 4 runs exist." in capsys.readouterr().out


def test_failed_cell_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("broken")

    monkeypatch.setattr(commands, "simulator", broken)
    words = "table synthetic --rows Median --columns Gaussian --rounds 20 --processes 1"
    assert cli.main([*words.split(), "--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "--rule Median --attack Gaussian --rounds 20 --seed 0: ArithmeticError: broken" in error


def test_missing_data_fails_first(tmp_path: Path, capsys: Capture) -> None:
    code = cli.main(
        ["table", "mnist", "--root", str(tmp_path / "nowhere"), "--results", str(tmp_path)]
    )
    assert code == 2
    assert "table: expected train-images-idx3-ubyte.gz" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for another process")
def test_table_resumes_after_ctrl_c(tmp_path: Path) -> None:
    words = "-m benchmarks.paper table synthetic --rows Balance --columns Gaussian"
    options = ["--rounds", "100000", "--processes", "1", "--results", str(tmp_path)]
    command = [sys.executable, *words.split(), *options]
    pipe = subprocess.PIPE
    # The tests themselves may run with SIGINT ignored, which processes inherit.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stderr=pipe, stdout=pipe, text=True, cwd=ROOT, preexec_fn=heeds
    )
    deadline = time.monotonic() + 120
    try:
        while (
            not list(tmp_path.rglob("checkpoint"))
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Interrupted; the same command resumes." in err
    assert "Traceback" not in err
    resumed = simulator(SHORT.changed(rounds=100000), 0, ".")
    (checkpoint,) = tmp_path.rglob("checkpoint")
    resumed.load(checkpoint)
    assert resumed.t >= 0
