"""Reports: verdicts, tables and pictures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from benchmarks.paper import cli, figures, report
from benchmarks.paper.archive import Archive
from benchmarks.paper.setting import Setting
from benchmarks.paper.tables import TABLES
from tests.benchmarks.paper.helpers import (
    ROOT,
    Capture,
    finished,
)


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        ((0.12,), (0.10,), "reproduced"),
        ((0.07,), (0.10,), "reproduced"),
        ((0.14,), (0.10,), "same conclusion"),
        ((0.30,), (0.10,), "differs"),
        ((0.10,), (0.30,), "differs"),
        ((0.35,), (0.60,), "same conclusion"),
        ((1.00,), (0.82,), "reproduced"),
        ((0.95,), (0.50,), "same conclusion"),
        ((0.95,), (0.10,), "differs"),
        ((0.10, 0.02), (0.11, 0.01), "reproduced"),
        ((0.10, 0.60), (0.10, 0.73), "same conclusion"),
        ((0.10, 0.02), (0.10, 0.73), "differs"),
        ((0.90, 0.00), (0.90, 1.00), "reproduced"),
        ((0.90, 0.00), (0.50, 0.90), "differs"),
    ],
)
def test_verdicts_on_error_rates(
    ours: tuple[float, ...], paper: tuple[float, ...], verdict: str
) -> None:
    assert report.judge(ours, paper, (0.10, 0.10)) == verdict


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        (1.08, 0.36, "same conclusion"),
        (math.inf, math.inf, "reproduced"),
        (4.0, 4.1, "reproduced"),
        (1.1, math.inf, "differs"),
        (1.1, 40, "differs"),
    ],
)
def test_verdicts_on_squared_errors(ours: float, paper: float, verdict: str) -> None:
    """An error below the noise floor cannot be reproduced, but the conclusion can."""
    assert report.judge((ours,), (paper,), (1.06, 0.36), squared=True) == verdict


def test_verdict_uses_own_baseline() -> None:
    """In the paper, Krum without attack is as bad as with one: the attack does no harm."""
    assert report.judge((900.0,), (1.18,), (1.0, 0.36), squared=True) == "same conclusion"
    assert report.judge((900.0,), (1.18,), (1.0, 0.36), (1.0, 1.11), squared=True) == "differs"


def test_report_of_a_table(archive: Archive, capsys: Capture, tmp_path: Path) -> None:
    table = TABLES["mnist"]
    for rule, attack, error in (("FedAvg", "none", 0.11), ("Balance", "TrimAttack", 0.30)):
        setting = table.setting(rule, attack)
        archive.add([(setting, finished(setting, error, error + 0.02))])
    folders = ["--results", str(archive.folder), "--output", str(tmp_path)]
    assert cli.main(["report", "mnist", *folders]) == 0
    out = capsys.readouterr().out
    assert "| FedAvg | FedAvg | 0.12 (0.10) = | (0.10) |" in out
    assert "**0.31** (0.11) !" in out
    assert "| paper_label |  | No | LF | Feature |" in out
    assert "| TrimmedMean | Trim-mean |" in out
    assert "1 reproduced, 1 differs, 70 missing. Seeds: 1." in out
    assert "| FedAvg | FedAvg | 0.13 |" in out.split("After the last round alone")[1]
    report = (tmp_path / "report.md").read_text()
    assert report == f"# All tables of the reproduction\n\n{out.rstrip()}\n"
    lines = (tmp_path / "table-mnist.csv").read_text().splitlines()
    assert len(lines) == 73
    command = "python -m benchmarks.paper run --data mnist --rule FedAvg --attack none"
    assert f'FedAvg,none,"FedAvg, No",0.12,,0.13,,1,0,0.1,,reproduced,{command}' in lines
    assert (tmp_path / "table-mnist.svg").read_text().count("<svg") == 1


def test_no_counts_without_figures(archive: Archive, capsys: Capture) -> None:
    setting = TABLES["gamma-har"].setting("Balance, TrimAttack", "0.1")
    archive.add([(setting, finished(setting, 0.12))])
    assert cli.main(["report", "gamma-har", "--results", str(archive.folder)]) == 0
    assert capsys.readouterr().out.startswith("## Impact of gamma on HAR")


def test_figure_has_line_per_rule(archive: Archive, tmp_path: Path) -> None:
    table = TABLES["alpha"]
    for i, (_, _, setting) in enumerate(table.cells()):
        archive.add([(setting, finished(setting, 0.1 + i / 100))])
    figure = figures.lines(table, report.cells(table, archive))
    assert [ax.get_title() for ax in figure.axes] == ["Gaussian", "TrimAttack"]
    assert [len(ax.lines) for ax in figure.axes] == [4, 4]
    figure.savefig(tmp_path / "alpha.png")
    (label,) = (text for text in figure.texts if text.get_text() == "alpha")
    assert not figure.legends[0].get_window_extent().overlaps(label.get_window_extent())


def test_verdicts_on_consensus(archive: Archive) -> None:
    """A consensus error of 1 is a disagreement, not a collapse."""
    table = TABLES["consensus"]
    for attack, error in (("none", 0.02), ("LabelFlip", 1.0), ("Gaussian", 500.0)):
        setting = table.setting("FedAvg", attack)
        archive.add([(setting, finished(setting, 0.1, consensus=error))])
    verdicts = {
        cell.column: cell.verdict for cell in report.cells(table, archive) if cell.row == "FedAvg"
    }
    assert [verdicts[attack] for attack in ("none", "LabelFlip", "Gaussian")] == [
        "reproduced",
        "differs",
        "reproduced",
    ]


def test_report_without_results(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["report", "--results", str(tmp_path)]) == 2
    error = f"expected results of a table in {tmp_path}, found none; python -m benchmarks.paper"
    assert error in capsys.readouterr().err


def test_report_of_other_settings(archive: Archive, capsys: Capture) -> None:
    setting = Setting(data="synthetic", rounds=20)
    archive.add([(setting, finished(setting, 2.0))])
    assert cli.main(["report", "--results", str(archive.folder)]) == 2
    assert f"found 1 of other settings, such as {setting};" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "verdict"), [(0.12, "reproduced"), (0.19, "same conclusion"), (0.21, "differs")]
)
def test_baseline_is_the_papers(error: float, verdict: str, archive: Archive) -> None:
    """FedAvg would otherwise be its own baseline, and could never differ."""
    setting = TABLES["mnist"].setting("FedAvg", "none")
    archive.add([(setting, finished(setting, error))])
    (cell,) = (cell for cell in report.cells(TABLES["mnist"], archive) if cell.ours)
    assert cell.verdict == verdict


def test_report_names_damaged_line(archive: Archive, capsys: Capture) -> None:
    setting = TABLES["synthetic"].setting("Krum", "LabelFlip")
    archive.add([(setting, finished(setting, 1.2))])
    damaged = archive.path(setting)
    damaged.write_text(damaged.read_text().replace("LabelFlip", "LF"))
    assert cli.main(["report", "synthetic", "--results", str(archive.folder)]) == 2
    assert f"report: {damaged}, line 2, must be a result" in capsys.readouterr().err


def test_tables_without_results(archive: Archive, capsys: Capture) -> None:
    setting = TABLES["synthetic"].setting("Krum", "LabelFlip")
    archive.add([(setting, finished(setting, 1.2))])
    assert cli.main(["report", "--results", str(archive.folder)]) == 0
    out = capsys.readouterr().out
    assert re.findall("## (.*)", out) == [
        "Max.MSE on synthetic data (`synthetic`)",
        "Missing cells",
    ]
    assert "| `synthetic` | 1 | 0 | 0 | 62 |" in out
    assert "1.20 (1.23) =" in out


def test_missing_cells_and_hours(archive: Archive, capsys: Capture) -> None:
    """Krum has its own pace, other rules that of the data set."""
    table = TABLES["synthetic"]
    for rule, seconds in (("Krum", 3600.0), ("Median", 720.0)):
        setting = table.setting(rule, "LabelFlip")
        archive.add([(setting, finished(setting, 1.2) | {"seconds": seconds})])
    assert cli.main(["report", "synthetic", "celeba", "--results", str(archive.folder)]) == 0
    out = capsys.readouterr().out.split("## Missing cells")[1]
    hours = 6 * 1.0 + 6 * 0.2 + 7 * 7 * 0.6
    assert f"| `synthetic` | 63 | 61 | {hours:.1f} |" in out
    assert "| `celeba` | 72 | 72 | not known |" in out
    assert "`mnist`" not in out


def test_complete_table(archive: Archive, capsys: Capture) -> None:
    for _, _, setting in TABLES["windows"].cells():
        archive.add([(setting, finished(setting, 0.5))])
    assert cli.main(["report", "windows", "--results", str(archive.folder)]) == 0
    assert "missing |" not in capsys.readouterr().out.split("## Median")[1]


def test_committed_report(capsys: Capture) -> None:
    """It is written by ``report --results benchmarks/paper/runs`` after each new result."""
    folder = ROOT / "benchmarks/paper"
    assert cli.main(["report", "--results", str(folder / "runs")]) == 0
    assert capsys.readouterr().out.rstrip() in (folder / "report.md").read_text()
