"""The cells that a sweep runs, its results, and the cells that it does not run again."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from tests.sweeps import small
from tests.sweeps.small import lines, make

RULES = [eq.Median(), eq.FedAvg()]


@pytest.fixture(autouse=True)
def same_threads() -> None:
    assert torch.get_num_threads() == 1


def quiet(*arguments: Any, **options: Any) -> eq.sweeps.Results:
    return eq.sweep(*arguments, progress=False, **options)


def histories(results: eq.sweeps.Results) -> list[eq.History | None]:
    return [cell.history for cell in results]


def test_cells_equal_single_runs() -> None:
    results = quiet(make, rule=RULES, attack=small.ATTACKS, seed=range(2))
    assert len(results) == 8
    for cell in results:
        assert cell.history == make(**cell.choice).run()
        assert cell.history is not None
        assert cell.history.seed == cell.labels["seed"]
    names = [tuple(cell.labels.values()) for cell in results]
    assert names[:3] == [("Median", "none", 0), ("Median", "none", 1), ("Median", "Gaussian", 0)]


def test_processes_equal_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rule": RULES, "attack": small.ATTACKS, "seed": range(2)}
    one = quiet(make, **options)
    assert histories(quiet(make, **options, workers=2)) == histories(one)
    assert histories(quiet(make, **options, workers=2, folder=tmp_path)) == histories(one)


def test_functions_of_main_and_notebooks() -> None:
    factor = 3

    def local(seed: int) -> eq.Simulator:
        return make(seed=factor * seed)

    results = quiet(local, seed=[1, 2], workers=2)
    assert histories(results) == [make(seed=3).run(), make(seed=6).run()]


def test_list_of_choices_times_axes() -> None:
    grid = [{"rule": eq.Median(), "total": 2}, {"rule": eq.FedAvg(), "total": 3}]
    results = quiet(make, grid, seed=range(2))
    found = [
        (cell.labels["rule"], cell.labels["seed"], len(cell.history or ())) for cell in results
    ]
    assert found == [("Median", 0, 2), ("Median", 1, 2), ("FedAvg", 0, 3), ("FedAvg", 1, 3)]


def test_finished_cells_do_not_run_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = functools.partial(quiet, small.counted, log=[str(log)], folder=tmp_path / "results")
    first = run(seed=[0, 1])
    second = run(seed=[0, 1, 2])
    assert lines(log) == ["0", "1", "2"]
    assert histories(second)[:2] == histories(first)
    run(seed=[2, 0])
    assert len(lines(log)) == 3


def test_recompute_by_choice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = functools.partial(
        quiet, small.counted, log=[str(log)], seed=[0, 1], folder=tmp_path / "results"
    )
    run()
    run(recompute=lambda seed, **_: seed == 1)
    assert lines(log) == ["0", "1", "1"]
    run(recompute=True)
    assert lines(log)[3:] == ["0", "1"]


def test_other_source_is_another_cell(tmp_path: Path) -> None:
    rounds = 2

    def first(seed: int) -> eq.Simulator:
        return make(seed=seed, total=rounds)

    assert [len(h or ()) for h in histories(quiet(first, seed=[0], folder=tmp_path))] == [2]
    rounds = 3  # a value that the function uses
    assert [len(h or ()) for h in histories(quiet(first, seed=[0], folder=tmp_path))] == [3]
    assert len(list((tmp_path / "cells").iterdir())) == 2


def test_history_instead_of_simulator(tmp_path: Path) -> None:
    def run(rate: float, seed: int) -> eq.History:
        return eq.History(1, rounds=[eq.Round(0, {"error": [rate]})])

    results = quiet(run, rate=[0.5, 0.25], seed=[3], folder=tmp_path)
    assert [h.seed for h in histories(results) if h] == [3, 3]
    assert histories(eq.sweeps.read(tmp_path)) == histories(results)
    assert str(histories(results)[0] or []).startswith("0.5, 3: 1 clients")


def test_failure_is_a_cell() -> None:
    results = quiet(small.fails_on_median, rule=RULES, seed=range(2), workers=2)
    assert str(results).splitlines() == [
        "4 cells: 2 finished, 2 failed",
        "rule=Median, seed=0: ArithmeticError: no median for seed 0",
        "rule=Median, seed=1: ArithmeticError: no median for seed 1",
    ]
    assert "Traceback" in results.failures[0].failure
    assert "in fails_on_median" in results.failures[0].failure


def test_failed_cells_run_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def sometimes(seed: int) -> eq.Simulator:
        if broken.exists():
            raise OSError("not now")
        return make(seed=seed)

    assert len(quiet(sometimes, seed=[0], folder=tmp_path / "results").failures) == 1
    assert len(eq.sweeps.read(tmp_path / "results").failures) == 1
    broken.unlink()
    assert not quiet(sometimes, seed=[0], folder=tmp_path / "results").failures
    assert not eq.sweeps.read(tmp_path / "results").failures


def test_dying_worker_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"rule": RULES, "seed": range(2), "workers": 2}
    results = eq.sweep(small.dies_on_median, **options, folder=tmp_path)
    assert "4/4" in capsys.readouterr().err
    died = [cell.labels["rule"] for cell in results if "worker process died" in cell.failure]
    assert died == ["Median", "Median"]
    assert [len(h or ()) for h in histories(results)] == [0, 0, 4, 4]


def test_measure_adds_results(tmp_path: Path) -> None:
    def norm(simulator: eq.Simulator) -> dict[str, Any]:
        return {"norm": float(simulator.models.norm()), "names": ["a"]}

    results = quiet(make, seed=[0, 1], measure=norm, folder=tmp_path)
    assert results.summary()["norm"].tolist() == [cell.measured["norm"] for cell in results]
    assert "names" not in results.summary()
    assert eq.sweeps.read(tmp_path).cells[1].measured == results.cells[1].measured


def test_on_round_ends_a_cell() -> None:
    results = quiet(make, seed=[0], on_round=lambda simulator: simulator.t == 2)
    assert [len(h or ()) for h in histories(results)] == [2]


def test_warnings_are_given_once() -> None:
    def warns(seed: int) -> eq.Simulator:
        warnings.warn("careful", UserWarning, stacklevel=1)
        return make(seed=seed)

    with pytest.warns(UserWarning, match=r"^careful \(in 2 of 2 cells\)$") as given:
        quiet(warns, seed=[0, 1])
    assert len(given) == 1


def test_progress_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"rule": RULES, "seed": [0, 1], "folder": tmp_path}
    eq.sweep(small.fails_on_median, **options)
    first = capsys.readouterr().err
    assert "4/4" in first
    assert "0 running, 2 failed" in first
    eq.sweep(small.fails_on_median, **options)
    assert "2/4" in capsys.readouterr().err  # finished before


def test_one_thread_in_workers() -> None:
    def threads(seed: int) -> eq.History:
        return eq.History(1, rounds=[eq.Round(0, values={"threads": torch.get_num_threads()})])

    found = {
        count: quiet(threads, seed=[0], threads=count).summary()["threads"].item()
        for count in (1, 2)
    }
    assert found == {1: 1, 2: 2}
    assert torch.get_num_threads() == 1
