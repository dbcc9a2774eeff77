"""The progress bar of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise._utils import progress

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")

FULL = "#" * 24


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
    assert capsys.readouterr().err == f"round 3/3 [{FULL}] 0:00 worst size 6\n"


def test_note_on_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(3, trainer=lambda models, t: models * torch.nan).run(progress=True)
    assert capsys.readouterr().err.endswith("worst size nan, 2 benign clients not finite\n")


def test_run_without_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    simulator(3, metrics=None).run(progress=True)
    assert capsys.readouterr().err == f"round 3/3 [{FULL}] 0:00\n"


def test_bar_of_resumed_run(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(models: torch.Tensor, t: int) -> torch.Tensor:
        clock.now += 10
        return models + 1

    simulator(6, trainer=train).run(3, checkpoint=tmp_path / "run")
    simulator(6, trainer=train).run(checkpoint=tmp_path / "run", progress=True)
    assert [line.split(" worst")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"round 4/6 [{'#' * 16}{'.' * 8}] 0:20 left",
        f"round 5/6 [{'#' * 20}{'.' * 4}] 0:10 left",
        f"round 6/6 [{FULL}] 0:30",
    ]
    simulator(6, trainer=train).run(checkpoint=tmp_path / "run", progress=True)
    assert capsys.readouterr().err == f"round 6/6 [{FULL}] 0:00\n"


def test_no_note_without_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eq.History, "status", None)
    assert len(simulator(3).run()) == 3


def test_run_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert len(simulator(3).run(progress=True)) == 3
