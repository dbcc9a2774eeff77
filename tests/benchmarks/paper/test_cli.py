"""The command line."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import equipoise as eq
from benchmarks.paper import cli, registry
from benchmarks.paper.archive import Archive
from benchmarks.paper.setting import Setting
from benchmarks.paper.tables import TABLES
from benchmarks.paper.tasks import TASKS
from tests.benchmarks.paper.helpers import (
    Capture,
)


def test_run_prints_and_saves(tmp_path: Path, capsys: Capture) -> None:
    words = "run --data synthetic --rule Median --attack TrimAttack --rounds 20 --seed 4"
    assert cli.main([*words.split(), "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"python -m benchmarks.paper {words}\n" in out
    assert "20 clients, 4 malicious, 20 rounds" in out
    assert re.search(r"Max\.MSE, mean of the last 5 % of rounds: \d", out)
    setting = Setting(data="synthetic", rule="Median", attack="TrimAttack", rounds=20)
    assert [run["seed"] for run in Archive(tmp_path).runs(setting)] == [4]
    assert (tmp_path / "synthetic/Median.TrimAttack.rounds=20.4.csv").exists()


def test_summary_if_saving_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Archive, "add", full)
    assert (
        cli.main(["run", "--data", "synthetic", "--rounds", "20", "--results", str(tmp_path)]) == 2
    )
    out, err = capsys.readouterr()
    assert "Max.MSE, mean of the last 5 % of rounds" in out
    assert "run: no space left" in err


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"equipoise {eq.__version__}\n"


def test_last_quantiles(tmp_path: Path, capsys: Capture) -> None:
    words = "run --data synthetic --rule FedAvg --rounds 20 --test-last 10"
    assert cli.main([*words.split(), "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    found = re.search(
        r"in the last 10 rounds: minimum (.*), median (.*), 90 % (.*), maximum (.*)",
        out,
    )
    assert found is not None
    worst: dict[int, float] = {}
    with open(tmp_path / "synthetic/FedAvg.none.rounds=20.0.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "MSE":
                t = int(row["round"])
                worst[t] = max(worst.get(t, 0.0), float(row["value"]))
    assert worst.keys() == {9, *range(10, 20)}
    last = sorted(worst[t] for t in range(10, 20))
    assert [float(x) for x in found.groups()] == pytest.approx(
        [last[0], last[4], last[8], last[9]], abs=1e-4
    )


@pytest.mark.parametrize(
    "words", [["run", "--data", "mnist"], ["table", "lie-dissensus"]], ids=["run", "table"]
)
def test_missing_data_advice(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folders = ["--root", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    assert cli.main([*words, *folders]) == 2
    error = capsys.readouterr().err
    assert "Put it there, name another folder with --root, or give --download" in error
    assert "round" not in error

    def mnist(root: Path, *, download: bool) -> None:
        raise OSError(f"asked for {root}, download={download}")

    monkeypatch.setattr(eq.data, "mnist", mnist)
    assert cli.main([*words, *folders, "--download"]) == 2
    assert f"asked for {tmp_path / 'data'}, download=True" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message", "nearest"),
    [
        ("run --rule Krumm", "run: rule must be one of FedAvg, Krum, ", "Krum"),
        ("run --rule Trim-mean", "run: rule must be one of FedAvg, Krum, ", "TrimmedMean"),
        ("run --attack LF", "run: attack must be one of none, LabelFlip, ", "LabelFlip"),
        ("run --graph rings", "run: graph must be one of regular(10,5), ", "ring"),
        ("run --data nmist", "run: data must be one of synthetic, mnist, ", "mnist"),
        ("run --window firsthalf", "run: window must be one of all, ", "first-half"),
        ("report nmist", "report: NAME must be one of synthetic, mnist, ", "mnist"),
        ("table nmist", "table: NAME must be one of synthetic, mnist, ", "mnist"),
        ("table mnist --rows krum", "table: --rows must be one of FedAvg, Krum, ", "Krum"),
        ("table mnist --columns Gauss", "table: --columns must be one of none, ", "Gaussian"),
    ],
)
def test_nearest_name(
    words: str,
    message: str,
    nearest: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.endswith(f": did you mean {nearest}?\n")


def test_bad_numbers(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--rounds", "0"])
    assert "must be an integer >= 1, found 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "run", "table", "report", "compare", "theory"])
def test_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert f"python -m benchmarks.paper {command}" in capsys.readouterr().out


def test_list_names_everything(capsys: Capture) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (
        *registry.RULES,
        *registry.ATTACKS,
        *registry.GRAPHS,
        *registry.REGULAR,
        *TASKS,
        *TABLES,
    ):
        assert name in out
