"""Lines, bands, cells and bars of several seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise import plots
from tests.plots.histories import NAN


def run(*errors: float, seed: int | None = None) -> eq.History:
    rounds = [eq.Round(t, {"error": (error, 0.0)}) for t, error in enumerate(errors)]
    return eq.History(2, rounds=rounds, seed=seed)


SEEDS = [run(0.5, 0.1, seed=0), run(0.7, 0.2, seed=1), run(0.9, 0.6, seed=2)]


def band_of(ax: Any) -> tuple[float, float]:
    """The limits of the band in the first round."""
    vertices = ax.collections[0].get_paths()[0].vertices
    y = vertices[vertices[:, 0] == 0, 1]
    return y.min(), y.max()


@pytest.mark.parametrize(
    ("band", "limits", "about"),
    [
        (None, (0.5, 0.9), "mean ± sd of 3 seeds"),
        (True, (0.5, 0.9), "mean ± sd of 3 seeds"),
        ("sd", (0.5, 0.9), "mean ± sd of 3 seeds"),
        ("min-max", (0.5, 0.9), "mean, min. to max. of 3 seeds"),
    ],
)
def test_line_is_the_mean_of_seeds(band: Any, limits: tuple[float, float], about: str) -> None:
    ax = plots.error_over_rounds({"Median": SEEDS}, band=band)
    assert np.asarray(ax.lines[0].get_ydata()) == pytest.approx([0.7, 0.3])
    assert band_of(ax) == pytest.approx(limits)
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["Median", about]


def test_bands_of_range_and_deviation_differ() -> None:
    seeds = [*SEEDS, run(0.7, 0.3, seed=3)]
    sd = band_of(plots.error_over_rounds({"Median": seeds}))
    assert sd == pytest.approx((0.7 - 0.1633, 0.7 + 0.1633), abs=1e-4)  # sqrt(0.08 / 3)
    assert band_of(plots.error_over_rounds({"Median": seeds}, band="min-max")) == (0.5, 0.9)


def test_bands_can_be_off() -> None:
    ax = plots.error_over_rounds({"Median": SEEDS}, band=False)
    assert not ax.collections


def test_diverged_seed_ends_the_line() -> None:
    ax = plots.error_over_rounds({"Median": [*SEEDS, run(0.5, NAN, seed=3)]})
    assert ax.lines[0].get_label() == "Median (diverged)"


def test_numbers_of_seeds_may_differ() -> None:
    ax = plots.error_over_rounds({"Median": SEEDS, "Krum": run(0.5, 0.5)})
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "mean ± sd of 1 to 3 seeds"


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([], r"histories\['Krum'\] must be a History, as run returns it, found list"),
        ([SEEDS[0], 1], r"histories\['Krum'\] must be a History, as run returns it, found int"),
        ([SEEDS[0], SEEDS[0]], r"must have different seeds, found seed 0 more than once"),
        ([SEEDS[0], run(0.5)], r"must have equal evaluations, found 2 and 1 of them, or others"),
    ],
)
def test_wrong_groups(group: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.error_over_rounds({"Krum": group})


def test_unknown_band() -> None:
    with pytest.raises(ValueError, match="band must be 'sd' or 'min-max', found 'range'"):
        plots.error_over_rounds({"Krum": SEEDS}, band="range")  # type: ignore[arg-type]


def test_cells_of_mean_and_deviation() -> None:
    mean = {"Median": {"none": 0.25, "LIE": 0.5}, "Krum": {"none": 0.125}}
    sd = {"Median": {"none": 0.0625, "LIE": NAN}}
    ax = plots.heatmap(mean, sd=sd)
    assert [text.get_text() for text in ax.texts] == ["0.25 ± 0.06", "0.50", "0.12"]
    assert ax.get_xlabel() == "max. test error rate, mean ± sd of seeds"


def test_costs_are_means_of_seeds() -> None:
    runs = [
        eq.History(1, rounds=[eq.Round(0, values={"bytes": size}, seconds={"aggregate": 1.0})])
        for size in (2e6, 4e6)
    ]
    sent, _ = plots.cost_bars({"Krum": runs})
    assert sent.texts[0].get_text() == "3"
