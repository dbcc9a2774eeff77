"""The progress bar of a run."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def simulator(rounds: int, **options: Any) -> eq.Simulator:
    settings: dict[str, Any] = {
        "trainer": lambda models, t: models + 1,
        "topology": eq.Topology.complete(3),
        "rule": eq.FedAvg(),
        "models": torch.zeros(3, 1),
        "metrics": {"size": lambda models: models[:, 0] * torch.tensor([1.0, 2.0, 100.0])},
        "malicious": [2],
        "total": rounds,
    }
    return eq.Simulator(**settings | options)


def test_note_on_worst_client(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(3).run(progress=True)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "worst size 6]" in shown


def test_note_on_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(3, trainer=lambda models, t: models * torch.nan).run(progress=True)
    assert capsys.readouterr().err.endswith("worst size nan, 2 benign clients not finite]\n")


def test_run_without_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(3, metrics=None).run(progress=True)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "worst" not in shown


def test_bar_of_resumed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulator(6).run(3, checkpoint=tmp_path / "run")
    simulator(6).run(checkpoint=tmp_path / "run", progress=True)
    shown = capsys.readouterr().err
    assert "3/6" in shown
    assert "6/6" in shown
    assert "0/6" not in shown


def test_silent_run_needs_no_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(eq.History, "status", None)
    assert len(simulator(3).run()) == 3


def test_run_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert len(simulator(3).run(progress=True)) == 3
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert len(simulator(3).run(progress=True)) == 3


def test_status_only_when_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(eq.History, "status", lambda history: calls.append(len(history)) or "")
    simulator(200).run(progress=True)
    assert len(calls) < 100
    assert calls[-1] == 200


def test_missing_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r'tqdm is not installed: pip install "equipoise\[progre'):
        simulator(3).run(progress=True)
