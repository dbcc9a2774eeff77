"""The command line, and what the demo claims."""

import subprocess
import sys

import pytest

import equipoise as eq
from equipoise.experiments import cli, demo


def test_demo_prints_a_row_for_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--seed", "1"]) == 0
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in capsys.readouterr().out.splitlines()[3:]}
    assert set(rows) == set(demo.RULES)
    assert rows["FedAvg"][1] > 1
    for name in set(rows) - {"FedAvg"}:
        assert rows[name][1] < 0.1
    assert all(calm < 0.1 for calm, _ in rows.values())


def test_the_module_runs_as_a_program_and_names_its_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "equipoise", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "demo" in done.stderr


def test_the_same_seed_gives_the_same_errors() -> None:
    problem = demo.Problem.draw(3)
    errors = {demo.final_error(problem, eq.Krum(), True, seed=3, rounds=3) for _ in range(2)}
    assert len(errors) == 1
