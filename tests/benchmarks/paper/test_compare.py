"""Comparisons of two folders of results."""

from __future__ import annotations

import shlex
from pathlib import Path

from benchmarks.paper import cli
from benchmarks.paper.archive import Archive
from tests.benchmarks.paper.helpers import (
    SHORT,
    Capture,
    finished,
)


def test_missing_folders(archive: Archive, capsys: Capture) -> None:
    archive.folder.mkdir()
    missing = str(archive.folder / "nowhere")
    assert cli.main(["compare", str(archive.folder), missing]) == 2
    assert f"expected a folder of results, found none at {missing}" in capsys.readouterr().err


def test_differences_are_listed(archive: Archive, tmp_path: Path, capsys: Capture) -> None:
    """Only times and versions may differ; runs in only one folder do not count."""
    again = Archive(tmp_path / "again")
    other = SHORT.changed(rule="Krum")
    archive.add([(SHORT, finished(SHORT, 1.0, 1.25, commit="a", consensus=0.5))])
    archive.add([(SHORT, finished(SHORT, 1.0, seed=1))])
    archive.add([(other, finished(other, 1.0))])
    later = finished(SHORT, 1.0, 1.25, commit="b", consensus=0.5) | {"seconds": 7.0}
    again.add([(SHORT, later)])
    again.add([(SHORT, finished(SHORT, 1.0, seed=2))])
    folders = [str(archive.folder), str(again.folder)]
    assert cli.main(["compare", *folders]) == 0
    expected = "Runs in both folders: 1. Equal in every figure: 1. Different: 0.\n"
    assert capsys.readouterr().out == expected
    again.add([(SHORT, finished(SHORT, 1.0, 1.5, commit="b"))])
    assert cli.main(["compare", *folders]) == 1
    assert (
        f"| `{SHORT} --seed 0` | 1.1250 | 1.2500 | max_MSE, consensus |" in capsys.readouterr().out
    )


def test_runs_are_deterministic(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("first", "second")]
    for folder in folders:
        assert cli.main([*shlex.split(str(SHORT))[3:], "--results", folder]) == 0
    assert cli.main(["compare", *folders]) == 0


def test_nothing_in_common(archive: Archive, tmp_path: Path, capsys: Capture) -> None:
    archive.folder.mkdir()
    assert cli.main(["compare", str(archive.folder), str(tmp_path)]) == 2
    expected = (
        f"expected results of the same settings in {archive.folder} and {tmp_path}, found none"
    )
    assert expected in capsys.readouterr().err
    archive.path(SHORT).write_text("damaged")
    assert cli.main(["compare", str(archive.folder), str(tmp_path)]) == 2
    assert f"{archive.path(SHORT)} must have these columns" in capsys.readouterr().err
