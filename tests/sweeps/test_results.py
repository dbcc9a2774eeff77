"""Tables, frames and files of results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.sweeps import CellResult, Results

RULES = [eq.Median(), eq.Balance(), eq.Balance(kappa=0)]


def run(*errors: float, seed: int = 0) -> eq.History:
    rounds = [
        eq.Round(t, {"error": (error, error / 2, 1.0)}, {"consensus": 2.0})
        for t, error in enumerate(errors)
    ]
    return eq.History(3, malicious=[2], rounds=rounds, seed=seed)


def made(rule: eq.Aggregator, graph: int, seed: int) -> eq.History:
    error = 0.1 * RULES.index(rule) + 0.01 * graph + 0.001 * seed  # type: ignore[arg-type]
    if seed == 2 and graph == 2 and rule == RULES[0]:
        raise ValueError("broken")
    return run(2 * error, error, seed=seed)


@pytest.fixture(scope="module")
def results() -> Results:
    grid: dict[str, Any] = {"rule": RULES, "graph": [2, 1], "seed": range(3)}
    return eq.sweep(made, **grid, progress=False)


def test_frame_has_a_row_per_evaluation(results: Results) -> None:
    frame = results.frame()
    names = ["rule", "graph", "seed", "round", "max_error", "mean_error", "consensus"]
    assert list(frame.columns) == names
    assert len(frame) == 17 * 2
    assert frame.iloc[1].tolist() == ["Median", 2, 0, 1, 0.02, 0.015, 2.0]
    assert frame["seed"].dtype == "int64"


def test_summary_has_a_row_per_cell(results: Results) -> None:
    summary = results.summary()
    assert len(summary) == 17
    assert summary["tail_error"][0] == 0.02


def test_table_averages_over_seeds_only(results: Results) -> None:
    table = results.table(rows="rule", columns="graph", value="max_error")
    assert list(table.mean.index) == ["Median", "Balance(kappa=1.0)", "Balance(kappa=0)"]
    assert list(table.mean.columns) == [2, 1]
    assert table.mean.loc["Balance(kappa=0)", 1] == pytest.approx(0.211)
    assert table.sd.loc["Balance(kappa=0)", 1] == pytest.approx(0.001)
    assert table.count.to_numpy().tolist() == [[2, 3], [3, 3], [3, 3]]
    assert table.over == ("seed",)
    # An argument that is not named has rows of its own.
    rows = results.table(rows="rule", value="max_error").mean.index
    assert rows.names == ["graph", "rule"]
    assert len(rows) == 6
    assert results.table("rule", over=("seed", "graph")).count.loc["Median"].item() == 5


def test_text_and_latex(results: Results) -> None:
    table = results.table(rows="rule", columns="graph", value="max_error")
    assert table.text(digits=3).loc["Median", 1] == "0.011 ± 0.001"
    assert "graph" in str(table)
    latex = table.to_latex(digits=1, caption="Errors")
    assert r"Balance(kappa=0) & 0.2 $\pm$ 0.0 & 0.2 $\pm$ 0.0 \\" in latex
    assert r"\caption{Errors}" in latex
    assert "<table" in table._repr_html_()


def test_cells_of_one_seed_or_none() -> None:
    cells = [
        CellResult({"rule": "Krum", "attack": "none", "seed": 0}, run(0.25)),
        CellResult({"rule": "Krum", "attack": "LIE", "seed": 0}, failure="no"),
        CellResult({"rule": "LEARN", "attack": "LIE", "seed": 0}, run(math.nan)),
        CellResult({"rule": "LEARN", "attack": "none", "seed": 0}),
    ]
    results = Results(cells)
    assert repr(results) == "Results(4 cells: 2 finished, 1 failed, 1 not run)"
    text = results.table("rule", "attack").text()
    assert text.to_numpy().tolist() == [["0.25", "-"], ["-", "nan"]]


def test_diverged_seed_makes_the_mean_nan() -> None:
    cells = [
        CellResult({"rule": "Krum", "seed": seed}, run(error, seed=seed))
        for seed, error in enumerate([0.5, math.nan])
    ]
    assert Results(cells).table("rule").text().iloc[0, 0] == "nan ± nan"


def test_where_takes_labels_and_values(results: Results) -> None:
    assert len(results.where(rule="Median")) == 6
    assert len(results.where(rule=eq.Balance(), graph=1)) == 3
    assert len(results.where(rule=[eq.Median(), "Balance(kappa=0)"], seed=range(2))) == 8
    with pytest.raises(ValueError, match=r"rule must be one of Median, .*, found 'Krum'"):
        results.where(rule="Krum")
    with pytest.raises(ValueError, match=r"arguments .*, rule, graph, seed, found 'rul'"):
        results.where(rul="Median")


def test_histories_are_grouped_by_seed(results: Results) -> None:
    groups = results.where(graph=1).histories()
    assert list(groups) == ["Median", "Balance(kappa=1.0)", "Balance(kappa=0)"]
    assert [history.seed for history in groups["Median"]] == [0, 1, 2]
    assert "Median, 2" in results.histories()
    assert eq.plots.error_over_rounds(groups).lines


def test_unknown_names_suggest_others(results: Results) -> None:
    with pytest.raises(ValueError, match=r"value must be one of .*did you mean max_error\?"):
        results.table("rule", value="max_eror")
    with pytest.raises(ValueError, match=r"found 'attack'"):
        results.table("rule", "attack")
    with pytest.raises(ValueError, match="a table needs a finished cell, found 1 cells: 0 finish"):
        Results([CellResult({"rule": "Krum"}, failure="no")]).table("rule")


def test_files_hold_the_frame(results: Results, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    results.to_csv(tmp_path / "results.csv")
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "results.csv"), results.frame())
    results.to_parquet(tmp_path / "results.parquet")
    read = pandas.read_parquet(tmp_path / "results.parquet")
    pandas.testing.assert_frame_equal(read, results.frame(), check_dtype=False)


def test_mixed_labels_in_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    cells = [CellResult({"alpha": alpha}, run(0.5)) for alpha in (0.5, "random")]
    Results(cells).to_parquet(tmp_path / "results.parquet")
    assert list(pandas.read_parquet(tmp_path / "results.parquet")["alpha"]) == ["0.5", "random"]


def test_heatmap_of_a_table(results: Results) -> None:
    table = results.table(rows="rule", value="max_error")
    for ax in (eq.plots.heatmap(table), eq.plots.heatmap(table.mean, sd=table.sd)):
        assert ax.get_yticklabels()[0].get_text() == "2, Median"
        assert ax.texts[1].get_text() == "0.12 ± 0.00"


def test_cells_that_have_not_run_stay_white() -> None:
    cells = [
        CellResult({"rule": "Krum", "attack": "none", "seed": 0}, run(0.25)),
        CellResult({"rule": "Krum", "attack": "LIE", "seed": 0}, failure="no"),
        CellResult({"rule": "LEARN", "attack": "LIE", "seed": 0}, run(math.nan)),
    ]
    ax = eq.plots.heatmap(Results(cells).table("rule", "attack"))
    assert [text.get_text() for text in ax.texts] == ["0.25", "nan"]
