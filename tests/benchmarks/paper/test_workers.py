"""Many runs in several processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import cli, run, workers
from benchmarks.paper.results import Store
from benchmarks.paper.run import simulator
from equipoise._utils.progress import progress_bar
from tests.benchmarks.paper.helpers import (
    ROOT,
    SHORT,
    Capture,
    finished,
    interrupt_after_seven_rounds,
)


def test_existing_runs_are_skipped(store: Store) -> None:
    store.add(SHORT, finished(SHORT, 0.5, seed=1))
    other = SHORT.changed(rule="Krum")
    jobs = workers.missing(store, [SHORT, other, SHORT], [0, 1])
    assert jobs == [(SHORT, 0), (other, 0), (other, 1)]


def test_missing_runs_in_processes(store: Store) -> None:
    settings = [SHORT.changed(rule=rule) for rule in ("FedAvg", "Median", "Balance")]
    assert workers.run_all(workers.missing(store, settings, [0, 1]), ".", store, 2) == []
    assert workers.missing(store, settings, [0, 1]) == []
    alone, _ = run.run(settings[0], 1, ".")
    assert store.runs(settings[0])[1]["max_MSE"] == alone["max_MSE"]
    assert not list(store.folder.rglob("*.unfinished"))


def test_progress_skips_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = store.checkpoint(SHORT, 0)
    checkpoint.parent.mkdir(parents=True)
    interrupt_after_seven_rounds(checkpoint)
    bars: list[Any] = []

    def remembered(total: int, unit: str) -> Any:
        bars.append(progress_bar(total, unit))
        return bars[0]

    monkeypatch.setattr(workers, "progress_bar", remembered)
    assert workers.run_all([workers.Job(SHORT, 0)], ".", store, 1) == []
    assert (bars[0].initial, bars[0].n, bars[0].total) == (7, SHORT.rounds, SHORT.rounds)


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
    checkpoint = Store(tmp_path).checkpoint(SHORT.changed(rounds=100000), 0)
    deadline = time.monotonic() + 120
    try:
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Interrupted; the same command resumes." in err
    assert "Traceback" not in err
    resumed = simulator(SHORT.changed(rounds=100000), 0, ".")
    resumed.load(checkpoint)
    assert resumed.t > 0
