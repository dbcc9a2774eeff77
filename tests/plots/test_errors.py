"""Errors per client and per round."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color, to_rgba

from equipoise import plots
from equipoise.simulation.history import History
from tests.plots.histories import INF, NAN, RULES, history_of, inside, labels


def bars(ax: Axes) -> dict[str, dict[int, Any]]:
    """The bars by label and client."""
    return {
        str(container.get_label()): {
            round(bar.get_x() + bar.get_width() / 2): bar for bar in container.patches
        }
        for container in ax.containers
    }


def test_one_bar_per_client() -> None:
    ax = plots.error_per_client(
        history_of((0.9, 0.9, 0.9, 0.9), (0.4, 0.1, 0.8, 0.2), malicious=(0, 2))
    )
    drawn = bars(ax)
    assert {client: bar.get_height() for client, bar in drawn["benign"].items()} == {1: 0.1, 3: 0.2}
    assert {client: bar.get_height() for client, bar in drawn["malicious"].items()} == {
        0: 0.4,
        2: 0.8,
    }
    assert all(bar.get_hatch() for bar in drawn["malicious"].values())
    assert all(
        same_color(bar.get_facecolor(), plots.BENIGN) and not bar.get_hatch()
        for bar in drawn["benign"].values()
    )
    assert ax.lines[0].get_ydata() == [0.2, 0.2]  # across, at the worst benign client
    assert labels(ax) == ["benign", "malicious", "max. over benign: 0.2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("client", "test error rate")


def test_errors_of_one_round() -> None:
    ax = plots.error_per_client(history_of((0.5, 0.6), (0.1, 0.2), malicious=()), t=0)
    assert [bar.get_height() for bar in bars(ax)["benign"].values()] == [0.5, 0.6]
    assert labels(ax) == ["benign", "max. over benign: 0.6"]


def test_not_finite_is_crossed_out() -> None:
    ax = plots.error_per_client(history_of((0.5, NAN, 0.25, INF), malicious=(3,)))
    crosses = ax.lines[0]
    assert (crosses.get_xdata(), crosses.get_marker()) == (pytest.approx([1, 3]), "x")
    assert ax.transAxes.inverted().transform(crosses.get_transform().transform([(1, 1)]))[0, 1] == 1
    assert labels(ax) == ["benign", "malicious", "not finite"]  # and no maximum
    assert inside(ax)


def over_rounds() -> dict[str, History]:
    return {
        "Median": history_of((9.0, 0.5, 0.7), (9.0, 0.25, 0.35), every=10),
        "Balance": history_of((9.0, 0.4, 0.2), (9.0, 0.125, 0.0), every=10),
    }


def test_lines_show_worst_client() -> None:
    ax = plots.error_over_rounds(over_rounds())
    assert [line.get_label() for line in ax.lines] == ["Median", "Balance"]
    assert labels(ax) == ["Median", "Balance", "mean to max. over benign clients"]
    assert [np.asarray(line.get_xdata()).tolist() for line in ax.lines] == [[0, 10]] * 2
    assert [np.asarray(line.get_ydata()).tolist() for line in ax.lines] == [
        [0.7, 0.35],
        [0.4, 0.125],
    ]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("round", "max. test error rate")


def test_bands_reach_to_the_mean() -> None:
    ax = plots.error_over_rounds(over_rounds())
    first = ax.collections[0].get_paths()[0].vertices
    assert sorted({(x, round(y, 9)) for x, y in first}) == [
        (0, 0.6),
        (0, 0.7),
        (10, 0.3),
        (10, 0.35),
    ]
    assert len(ax.collections) == 2
    crowd = {f"rule {i}": history_of((0.5, 0.4), malicious=()) for i in range(5)}
    assert len(plots.error_over_rounds(crowd).collections) == 0
    assert labels(plots.error_over_rounds(crowd)) == list(crowd)
    assert len(plots.error_over_rounds(crowd, band=True).collections) == 5
    assert labels(plots.error_over_rounds(over_rounds(), band=False)) == ["Median", "Balance"]


def test_coinciding_lines_differ() -> None:
    ax = plots.error_over_rounds({rule: history_of(*[(0.5, 0.4)] * 25) for rule in RULES[:4]})
    first = ax.lines[0]
    assert first.get_linestyle() == "-"
    assert all(
        line.get_linestyle() != "-" for line in ax.lines[1:]
    )  # the first shows through their gaps
    assert sorted(line.get_zorder() for line in ax.lines) == [
        line.get_zorder() for line in ax.lines
    ]
    assert len({line.get_zorder() for line in ax.lines}) == 4
    markers: list[Any] = [line.get_markevery() for line in ax.lines]
    spots = [set(range(start, 25, step)) for start, step in markers]
    assert sum(map(len, spots)) == len(set.union(*spots))  # no two markers at the same point


def test_every_line_has_pixels() -> None:
    """Pixels of each line's color remain where all lines coincide."""
    ax = plots.error_over_rounds({rule: history_of(*[(0.5, 0.4)] * 25) for rule in RULES[:7]})
    legend = ax.get_legend()
    assert legend is not None
    legend.remove()
    figure: Any = ax.figure
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    for line in ax.lines:
        color = np.round(255 * np.array(to_rgba(str(line.get_color()))[:3]))
        assert (np.abs(pixels - color).max(axis=2) <= 2).sum() > 10


def test_eleven_rules_differ() -> None:
    ax = plots.error_over_rounds({rule: history_of(*[(0.5, 0.4)] * 30) for rule in RULES})
    assert labels(ax) == RULES
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(looks) == len({line.get_marker() for line in ax.lines}) == 11
    assert not any(
        same_color(str(line.get_color()), plots.MALICIOUS) for line in ax.lines
    )  # red is for what is malicious


@pytest.mark.parametrize("bad", [NAN, INF])
def test_divergence_is_marked(bad: float) -> None:
    ax = plots.error_over_rounds(
        {"FedAvg": history_of((0.1, 0.5), (0.1, 0.6), (0.1, bad), (0.1, bad))}
    )
    line, cross = ax.lines
    assert np.asarray(line.get_ydata())[:2].tolist() == [0.5, 0.6]
    assert np.isnan(np.asarray(line.get_ydata())[2:]).all()
    assert (cross.get_marker(), list(cross.get_xdata()), list(cross.get_ydata())) == (
        "x",
        [1],
        [0.6],
    )
    assert cross.get_color() == line.get_color()
    assert labels(ax) == ["FedAvg (diverged)", "mean to max. over benign clients"]


def test_never_finite_is_in_legend() -> None:
    ax = plots.error_over_rounds(
        {"FedAvg": history_of((NAN, NAN)), "Median": history_of((0.5, 0.5))}
    )
    assert labels(ax) == ["FedAvg (diverged)", "Median", "mean to max. over benign clients"]
    assert len(ax.lines) == 2


@pytest.mark.parametrize("points", [1, 2, 7, 8, 100])
def test_every_line_has_markers(points: int) -> None:
    ax = plots.error_over_rounds({rule: history_of(*[(0.5, 0.4)] * points) for rule in RULES})
    for line in ax.lines:
        start, step = line.get_markevery()  # type: ignore[misc]
        assert start < points
        assert 1 <= len(range(start, points, step)) <= 16


def test_ticks_are_integers() -> None:
    ax = plots.error_over_rounds({"Balance": history_of((0.5, 0.4))})
    ax.figure.canvas.draw()
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [0]


@pytest.mark.parametrize(
    ("values", "log", "scale"),
    [
        ((0.001, 0.9), None, "linear"),  # rates
        ((1.0, 900.0), None, "linear"),
        ((1.0, 1000.0), None, "log"),
        ((0.2, 1e30), None, "log"),
        ((0.0, 2.0, 5000.0), None, "log"),
        ((1.0, 1000.0), False, "linear"),
        ((0.1, 0.9), True, "log"),
        ((0.0, 0.0), True, "linear"),
        ((NAN, INF), None, "linear"),
        ((-1.0, 2.0), None, "linear"),
        ((sys.float_info.max, 1.0), None, "linear"),  # the largest is crossed out
        ((sys.float_info.max, 0.0), False, "linear"),
        ((5e-324, 5e-324), None, "linear"),
        ((5e-324, 1e149), None, "log"),
    ],
)
def test_scales(values: tuple[float, ...], log: bool | None, scale: str) -> None:
    history = history_of(*[values] * 2, malicious=(), metric="mse")
    ax = plots.error_per_client(history, "mse", log=log)
    assert ax.get_yscale() == scale
    assert ax.get_ylabel() == "mean squared error"
    ax.figure.canvas.draw()
    plots.error_over_rounds({"Median": history}, "mse", log=log).figure.canvas.draw()


@pytest.mark.parametrize(
    ("high", "top"),
    [(0.05, 0.054), (0.5, 0.54), (0.6, 1.04), (1.0, 1.04), (50.0, 54.0), (0.0, 1.0)],
)
def test_linear_scales_start_at_zero(high: float, top: float) -> None:
    assert plots.error_per_client(history_of((high, 0.0))).get_ylim() == pytest.approx((0, top))


def test_unknown_metrics_keep_names() -> None:
    history = history_of((1.0, 2.0), metric="perplexity")
    assert plots.error_per_client(history, "perplexity").get_ylabel() == "perplexity"
    assert (
        plots.error_over_rounds({"Krum": history}, "perplexity").get_ylabel() == "max. perplexity"
    )
