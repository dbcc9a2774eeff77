"""The check of Theorem 1."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
import torch

import equipoise as eq
from benchmarks.paper import cli, theorem_1
from tests.benchmarks.paper.helpers import (
    Capture,
)


def test_risk_is_mean_squared_error() -> None:
    data = eq.data.synthetic_regression(n_train=300, n_test=1, features=4)
    risk = theorem_1.Quadratic.of(data.x, data.y)
    model = torch.randn(4, dtype=torch.float64, requires_grad=True)
    loss = (data.x.double() @ model - data.y).square().mean()
    (gradient,) = torch.autograd.grad(loss, model)
    assert risk.excess(model[None].detach()).item() + risk.floor == pytest.approx(loss.item())
    assert torch.allclose(risk.gradient(model[None].detach())[0], gradient)
    smallest, largest = risk.curvature()
    assert 0 < smallest < 2 < largest


def test_bound_by_hand() -> None:
    constants = theorem_1.Constants(
        mu=2.0, L=4.0, delta=3.0, rho=5.0, psi=7.0, eta=0.05, gamma=0.1, alpha=0.5, start=100.0
    )
    assert constants.bound(2) == pytest.approx(
        0.9**2 * 100 + 2 * 4 * 0.05 * 9 / 2 + 2 * 0.1 * 5 * 7 * 0.5 / 0.1
    )
    assert constants.conditions() == {"eta": True, "gamma": True}


def test_theory_command(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["theory", "--rounds", "5", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall("  yes$", out, re.MULTILINE)) == len(theorem_1.ATTACKS)
    with open(tmp_path / "theorem-1.csv", newline="") as file:
        found = {row["attack"]: row for row in csv.DictReader(file)}
    assert list(found) == list(theorem_1.ATTACKS)
    assert len(found["Gaussian"]["excess"].split()) == 6
    assert len(found["Gaussian"]["bound"].split()) == 6
    assert found["Gaussian"]["holds"] == "True"
    assert (tmp_path / "theorem-1.svg").exists()


def test_theory_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert theorem_1.save({}, tmp_path) == [tmp_path / "theorem-1.csv"]
    expected = 'No picture: matplotlib is not installed: pip install "equipoise[plots]"\n'
    assert capsys.readouterr().err == expected
