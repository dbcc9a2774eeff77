"""The CSV files of results."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.paper import workers
from benchmarks.paper.results import DamagedError, Store
from benchmarks.paper.setting import Setting
from tests.benchmarks.paper.helpers import (
    ROOT,
    SHORT,
    finished,
)


def test_runs_are_kept_by_seed(store: Store) -> None:
    for seed, error in ((2, 0.5), (0, 0.25), (2, 0.125)):
        store.add(SHORT, finished(SHORT, error, seed=seed))
    assert [(run["seed"], run["max_MSE"]) for run in store.runs(SHORT)] == [
        (0, [0.25]),
        (2, [0.125]),
    ]
    assert store.runs(SHORT.changed(rule="Krum")) == []


WRITER = """
import sys
from benchmarks.paper.results import Store
from benchmarks.paper.setting import Setting

folder, first, step, count = sys.argv[1], *map(int, sys.argv[2:])
store = Store(folder)
setting = Setting(data="synthetic", rule="Balance", attack="Gaussian", rounds=20)
run = {"trained": 20, "seconds": 1.0, "evaluated": [19], "max_MSE": [1.0]}
print("ready", flush=True)
sys.stdin.readline()
for seed in range(first, count, step):
    store.add(setting, {"seed": seed, **run})
"""


@pytest.mark.exhaustive
def test_concurrent_adds_lose_nothing(store: Store) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store.folder), str(first), "4", "60"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(4)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:  # all of them start at the same time
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate(timeout=120)
            assert writer.returncode == 0
    finally:
        for writer in writers:
            writer.kill()
    assert [run["seed"] for run in store.runs(SHORT)] == list(range(60))


def test_all_values_return(store: Store) -> None:
    """Also values that are not finite, and fields that are missing."""
    setting = Setting(attack="Backdoor", own=True, partition="iid")
    run = finished(setting, 0.1, 1e-9, seed=7, consensus=None, bytes=5598400.0, stopped="early")
    run |= {"max_ASR": [None, 0.25], "clients_TER": [0.1], "commit": "a+", "norm": 1 / 3}
    store.add(setting, run)
    assert Store(store.folder).runs(setting) == [run]
    assert store.settings() == [setting]


def test_rows_have_their_command(store: Store) -> None:
    store.add(SHORT, finished(SHORT, 0.5, seed=3))
    assert store.path(SHORT).read_text().endswith(f",{SHORT} --seed 3\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",Gaussian,", ",Gauss,", "line 3, must be a result, found: attack must be one of"),
        ("absent,1,", "absent,x,", "line 3, must be a result, found: invalid literal for int()"),
        ("absent,1,", "absent,0,", "line 3, must be another run, found a second one of"),
        (",False,", ",maybe,", "line 3, must be a result, found: True or False"),
        (",0.25,", ",,", "line 3, must have a value for max_MSE, found none"),
        (",0.25,", ",0.25 0.5,", "line 3, must have 1 values for max_MSE, as evaluated has"),
        ("same,0.0", "same", "line 3, must have 36 fields, found 35"),
        ("synthetic,Balance", "mnist,Balance", "line 3, must be a result of synthetic, found one"),
    ],
)
def test_damaged_line_is_named(old: str, new: str, message: str, store: Store) -> None:
    """And the file stays as it is: other runs in it may be valuable."""
    store.add(SHORT, finished(SHORT, 0.5))
    store.add(SHORT, finished(SHORT, 0.25, seed=1))
    path = store.path(SHORT)
    head, first, second = path.read_text().splitlines()
    assert old in second
    damaged = "\n".join([head, first, second.replace(old, new, 1)])
    path.write_text(damaged)
    for call in (store.runs, lambda one: store.add(one, finished(one, 0.1, seed=2))):
        with pytest.raises(DamagedError, match=re.escape(f"{path}, {message}")):
            call(SHORT)
    with pytest.raises(DamagedError):
        workers.missing(store, [SHORT], [0])
    assert path.read_text() == damaged


@pytest.mark.parametrize("content", [b"", b"{", b"seed\n1\n", b"\0\0", b"\xff"])
def test_other_files_are_refused(content: bytes, store: Store) -> None:
    store.folder.mkdir()
    store.path(SHORT).write_bytes(content)
    with pytest.raises(DamagedError, match=r"synthetic\.csv must h"):
        store.runs(SHORT)


@pytest.mark.parametrize(
    "change",
    [{"max_MSE": []}, {"max_MSE": None}, {"evaluated": [], "max_MSE": []}, {"max_TER": [1.0]}],
)
def test_incomplete_runs_are_refused(change: dict[str, Any], store: Store) -> None:
    with pytest.raises(DamagedError, match="the run must have"):
        store.add(SHORT, finished(SHORT, 1.0) | change)
    assert not store.path(SHORT).exists()
