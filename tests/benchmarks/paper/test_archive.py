"""The CSV files of results."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.paper import commands
from benchmarks.paper.archive import Archive, DamagedError
from benchmarks.paper.setting import Setting
from tests.benchmarks.paper.helpers import (
    SHORT,
    finished,
)


def test_runs_are_kept_by_seed(archive: Archive) -> None:
    for seed, error in ((2, 0.5), (0, 0.25), (2, 0.125)):
        archive.add([(SHORT, finished(SHORT, error, seed=seed))])
    assert [(run["seed"], run["max_MSE"]) for run in archive.runs(SHORT)] == [
        (0, [0.25]),
        (2, [0.125]),
    ]
    assert archive.runs(SHORT.changed(rule="Krum")) == []


def test_adding_keeps_what_others_added(archive: Archive) -> None:
    other = Archive(archive.folder)
    assert other.runs(SHORT) == []
    archive.add([(SHORT, finished(SHORT, 0.5))])
    other.add([(SHORT, finished(SHORT, 0.25, seed=1))])
    assert [run["seed"] for run in Archive(archive.folder).runs(SHORT)] == [0, 1]


def test_all_values_return(archive: Archive) -> None:
    """Also values that are not finite, and fields that are missing."""
    setting = Setting(attack="Backdoor", own=True, partition="iid")
    run = finished(setting, 0.1, 1e-9, seed=7, consensus=None, bytes=5598400.0, stopped="early")
    run |= {"max_ASR": [None, 0.25], "clients_TER": [0.1], "commit": "a+", "norm": 1 / 3}
    archive.add([(setting, run)])
    assert Archive(archive.folder).runs(setting) == [run]
    assert archive.settings() == [setting]


def test_rows_have_their_command(archive: Archive) -> None:
    archive.add([(SHORT, finished(SHORT, 0.5, seed=3))])
    assert archive.path(SHORT).read_text().endswith(f",{SHORT} --seed 3\n")


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
def test_damaged_line_is_named(old: str, new: str, message: str, archive: Archive) -> None:
    """And the file stays as it is: other runs in it may be valuable."""
    archive.add([(SHORT, finished(SHORT, 0.5))])
    archive.add([(SHORT, finished(SHORT, 0.25, seed=1))])
    path = archive.path(SHORT)
    head, first, second = path.read_text().splitlines()
    assert old in second
    damaged = "\n".join([head, first, second.replace(old, new, 1)])
    path.write_text(damaged)
    for call in (
        Archive(archive.folder).runs,
        lambda one: archive.add([(one, finished(one, 0.1, seed=2))]),
    ):
        with pytest.raises(DamagedError, match=re.escape(f"{path}, {message}")):
            call(SHORT)
    with pytest.raises(DamagedError):
        commands.missing(Archive(archive.folder), [SHORT], [0])
    assert path.read_text() == damaged


@pytest.mark.parametrize("content", [b"", b"{", b"seed\n1\n", b"\0\0", b"\xff"])
def test_other_files_are_refused(content: bytes, archive: Archive) -> None:
    archive.folder.mkdir()
    archive.path(SHORT).write_bytes(content)
    with pytest.raises(DamagedError, match=r"synthetic\.csv must h"):
        archive.runs(SHORT)


@pytest.mark.parametrize(
    "change",
    [{"max_MSE": []}, {"max_MSE": None}, {"evaluated": [], "max_MSE": []}, {"max_TER": [1.0]}],
)
def test_incomplete_runs_are_refused(change: dict[str, Any], archive: Archive) -> None:
    with pytest.raises(DamagedError, match="the run must have"):
        archive.add([(SHORT, finished(SHORT, 1.0) | change)])
    assert not archive.path(SHORT).exists()
