"""Plots: what is drawn, in which colours and shapes, and that nothing is cut off or covered."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color, to_rgba

import equipoise as eq
from equipoise import plots
from equipoise.simulation.history import History, Round

NAN, INF = math.nan, math.inf
RULES = ["FedAvg", "Krum", "TrimmedMean", "Median", "FLTrust", "UBAR", "LEARN", "SCClip", "Balance"]
RULES += ["Balance(kappa=0)", "BalanceMedian"]
RED, BLUE = plots.MALICIOUS, plots.BENIGN


@pytest.fixture(autouse=True)
def no_windows_and_no_changed_settings() -> Iterator[None]:
    plt.switch_backend("agg")
    before = mpl.rcParams.copy()
    yield
    plt.close("all")
    assert mpl.rcParams == before


def run(
    *errors: tuple[float, ...], malicious: tuple[int, ...] = (0,), metric: str = "error", every: int = 1
) -> History:
    """A history with these errors of clients."""
    rounds = [Round(every * i, {metric: values}) for i, values in enumerate(errors)]
    return History(len(errors[0]), malicious, rounds=rounds)


def accepting(benign: list[float], malicious: list[float]) -> History:
    pairs = enumerate(zip(benign, malicious, strict=True))
    return History(
        4, [0], rounds=[Round(t, values={"accepted_benign": b, "accepted_malicious": m}) for t, (b, m) in pairs]
    )


def costing(sent: float, took: float) -> History:
    return History(2, rounds=[Round(0, values={"bytes": sent}, seconds={"aggregate": took})])


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def inside(ax: Axes) -> bool:
    """Whether all that is drawn lies on the page."""
    figure: Any = ax.figure
    figure.canvas.draw()
    box, page = figure.get_tightbbox(), figure.get_size_inches()
    return bool(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page[0] and box.y1 <= page[1])


# Graphs


def scattered(ax: Axes) -> dict[str, Any]:
    """The markers of clients, by label."""
    return {str(one.get_label()): one for one in ax.collections if not isinstance(one, LineCollection)}


def drawn_edges(ax: Axes) -> dict[str, set[frozenset[tuple[float, ...]]]]:
    """The ends of the lines, by whether they are red."""
    found: dict[str, set[frozenset[tuple[float, ...]]]] = {"red": set(), "grey": set()}
    for one in ax.collections:
        if isinstance(one, LineCollection) and len(one.get_segments()):
            colour = "red" if same_color(one.get_colors()[0][:3], RED) else "grey"
            found[colour] |= {frozenset(map(tuple, ends.round(6).tolist())) for ends in one.get_segments()}
    return found


def places(n: int) -> dict[int, tuple[float, float]]:
    return {i: (float(i), float(i * i)) for i in range(n)}


@pytest.mark.parametrize("malicious", [[1, 4], torch.tensor([False, True, False, False, True, False])])
def test_malicious_clients_are_red_squares(malicious: Any) -> None:
    ax = plots.graph(eq.Topology.ring(6), malicious, layout=places(6))
    drawn = scattered(ax)
    assert drawn["malicious"].get_offsets().tolist() == [[1, 1], [4, 16]]
    assert drawn["benign"].get_offsets().tolist() == [[0, 0], [2, 4], [3, 9], [5, 25]]
    assert same_color(drawn["malicious"].get_facecolor(), RED)
    assert same_color(drawn["benign"].get_facecolor(), BLUE)
    corners = {name: len(one.get_paths()[0].vertices) for name, one in drawn.items()}
    assert corners["malicious"] == 5  # a closed square
    assert corners["benign"] > 5
    assert labels(ax) == ["benign", "malicious"]


def test_edges_of_malicious_clients_are_red_and_all_are_drawn_once() -> None:
    at = places(4)
    topology = eq.Topology.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 3)])
    edges = drawn_edges(plots.graph(topology, [0], layout=at))
    assert edges == {"red": {frozenset({at[0], at[1]})}, "grey": {frozenset({at[1], at[2]}), frozenset({at[2], at[3]})}}


def test_an_edge_without_its_reverse_is_an_arrow_to_the_receiver() -> None:
    topology = eq.Topology.from_edges(3, [(0, 1), (1, 0), (0, 2), (2, 1)], directed=True)
    ax = plots.graph(topology, [2], layout=places(3))
    arrows: list[Any] = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    ends = {(tuple(arrow.xyann), tuple(arrow.xy)): arrow.arrow_patch.get_edgecolor() for arrow in arrows}
    assert set(ends) == {((0.0, 0.0), (2.0, 4.0)), ((2.0, 4.0), (1.0, 1.0))}
    assert same_color(ends[(2.0, 4.0), (1.0, 1.0)], RED)
    assert not same_color(ends[(0.0, 0.0), (2.0, 4.0)], RED)
    assert sum(map(len, drawn_edges(ax).values())) == 1


@pytest.mark.parametrize("layout", ["circle", "spring"])
def test_layouts_are_the_same_every_time_and_do_not_touch_the_random_state(layout: str) -> None:
    topology, state = eq.Topology.regular(12, 4, seed=0), np.random.get_state()[1].copy()
    first, second = (scattered(plots.graph(topology, layout=layout))["benign"].get_offsets() for _ in range(2))
    assert np.array_equal(first, second)
    assert len(np.unique(first.round(6), axis=0)) == 12
    assert np.array_equal(np.random.get_state()[1], state)


def test_ids_are_written_while_they_are_readable_and_without_malicious_clients_there_is_no_legend() -> None:
    assert [text.get_text() for text in plots.graph(eq.Topology.ring(20)).texts] == [str(i) for i in range(20)]
    large = plots.graph(eq.Topology.ring(100))
    assert list(large.texts) == []
    assert large.get_legend() is None


@pytest.mark.parametrize("n", [20, 100])
def test_clients_on_the_circle_do_not_overlap(n: int) -> None:
    ax = plots.graph(eq.Topology.ring(n), range(n // 5))
    ax.figure.canvas.draw()
    spots = np.concatenate([ax.transData.transform(one.get_offsets()) for one in scattered(ax).values()])
    gaps = np.linalg.norm(spots[:, None] - spots, axis=2) + 1e9 * np.eye(n)
    diameter = max(one.get_sizes()[0] for one in scattered(ax).values()) ** 0.5 * ax.figure.dpi / 72
    assert diameter < gaps.min()


@pytest.mark.parametrize(
    "topology", [eq.Topology.ring(1), eq.Topology.from_edges(3, []), eq.Topology.ring(3).with_self_loops()], ids=repr
)
def test_small_graphs(topology: eq.Topology) -> None:
    ax = plots.graph(topology)
    assert len(scattered(ax)["benign"].get_offsets()) == topology.n
    assert inside(ax)


@pytest.mark.parametrize(
    ("n", "layout"), [(1, "circle"), (2, "circle"), (3, {i: (0.0, float(i)) for i in range(3)}), (1, {0: (5.0, 5.0)})]
)
def test_clients_in_a_line_are_not_cut_off(n: int, layout: Any) -> None:
    ax = plots.graph(eq.Topology.ring(n), layout=layout)
    ax.figure.canvas.draw()
    spots = ax.transData.transform(scattered(ax)["benign"].get_offsets())
    radius = scattered(ax)["benign"].get_sizes()[0] ** 0.5 / 2 * ax.figure.dpi / 72
    box = ax.get_window_extent()
    assert (spots - radius >= box.min).all()
    assert (spots + radius <= box.max).all()


# Errors


def bars(ax: Axes) -> dict[str, dict[int, Any]]:
    """The bars by label and client."""
    return {
        str(container.get_label()): {round(bar.get_x() + bar.get_width() / 2): bar for bar in container.patches}
        for container in ax.containers
    }


def test_a_bar_for_each_client_and_malicious_ones_hatched() -> None:
    ax = plots.error_per_client(run((0.9, 0.9, 0.9, 0.9), (0.4, 0.1, 0.8, 0.2), malicious=(0, 2)))
    drawn = bars(ax)
    assert {client: bar.get_height() for client, bar in drawn["benign"].items()} == {1: 0.1, 3: 0.2}
    assert {client: bar.get_height() for client, bar in drawn["malicious"].items()} == {0: 0.4, 2: 0.8}
    assert all(bar.get_hatch() for bar in drawn["malicious"].values())
    assert all(same_color(bar.get_facecolor(), BLUE) and not bar.get_hatch() for bar in drawn["benign"].values())
    assert ax.lines[0].get_ydata() == [0.2, 0.2]  # across, at the worst benign client
    assert labels(ax) == ["benign", "malicious", "max. over benign: 0.2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("client", "test error rate")


def test_errors_of_a_chosen_round() -> None:
    ax = plots.error_per_client(run((0.5, 0.6), (0.1, 0.2), malicious=()), t=0)
    assert [bar.get_height() for bar in bars(ax)["benign"].values()] == [0.5, 0.6]
    assert labels(ax) == ["benign", "max. over benign: 0.6"]


def test_what_is_not_finite_is_crossed_out_at_the_top() -> None:
    ax = plots.error_per_client(run((0.5, NAN, 0.25, INF), malicious=(3,)))
    crosses = ax.lines[0]
    assert (crosses.get_xdata(), crosses.get_marker()) == (pytest.approx([1, 3]), "x")
    assert ax.transAxes.inverted().transform(crosses.get_transform().transform([(1, 1)]))[0, 1] == 1
    assert labels(ax) == ["benign", "malicious", "not finite"]  # and no maximum
    assert inside(ax)


def over_rounds() -> dict[str, History]:
    return {
        "Median": run((9.0, 0.5, 0.7), (9.0, 0.25, 0.35), every=10),
        "Balance": run((9.0, 0.4, 0.2), (9.0, 0.125, 0.0), every=10),
    }


def test_a_line_for_each_history_at_the_worst_benign_client() -> None:
    ax = plots.error_over_rounds(over_rounds())
    assert [line.get_label() for line in ax.lines] == ["Median", "Balance"]
    assert labels(ax) == ["Median", "Balance", "down to the mean"]
    assert [np.asarray(line.get_xdata()).tolist() for line in ax.lines] == [[0, 10]] * 2
    assert [np.asarray(line.get_ydata()).tolist() for line in ax.lines] == [[0.7, 0.35], [0.4, 0.125]]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("round", "max. test error rate")


def test_a_band_reaches_to_the_mean_while_there_are_few() -> None:
    ax = plots.error_over_rounds(over_rounds())
    first = ax.collections[0].get_paths()[0].vertices
    assert sorted({(x, round(y, 9)) for x, y in first}) == [(0, 0.6), (0, 0.7), (10, 0.3), (10, 0.35)]
    assert len(ax.collections) == 2
    crowd = {f"rule {i}": run((0.5, 0.4), malicious=()) for i in range(5)}
    assert len(plots.error_over_rounds(crowd).collections) == 0
    assert labels(plots.error_over_rounds(crowd)) == list(crowd)
    assert len(plots.error_over_rounds(crowd, band=True).collections) == 5
    assert labels(plots.error_over_rounds(over_rounds(), band=False)) == ["Median", "Balance"]


def test_lines_that_coincide_stay_visible() -> None:
    ax = plots.error_over_rounds({rule: run(*[(0.5, 0.4)] * 25) for rule in RULES[:4]})
    first = ax.lines[0]
    assert first.get_linestyle() == "-"
    assert all(line.get_linestyle() != "-" for line in ax.lines[1:])  # the first shows through their gaps
    assert sorted(line.get_zorder() for line in ax.lines) == [line.get_zorder() for line in ax.lines]
    assert len({line.get_zorder() for line in ax.lines}) == 4
    markers: list[Any] = [line.get_markevery() for line in ax.lines]
    spots = [set(range(start, 25, step)) for start, step in markers]
    assert sum(map(len, spots)) == len(set.union(*spots))  # no two markers at the same point


def test_a_picture_shows_every_line() -> None:
    """Pixels of each line's color remain where all lines coincide."""
    ax = plots.error_over_rounds({rule: run(*[(0.5, 0.4)] * 25) for rule in RULES[:7]})
    legend = ax.get_legend()
    assert legend is not None
    legend.remove()
    figure: Any = ax.figure
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    for line in ax.lines:
        color = np.round(255 * np.array(to_rgba(str(line.get_color()))[:3]))
        assert (np.abs(pixels - color).max(axis=2) <= 2).sum() > 10


def test_eleven_rules_can_be_told_apart_with_and_without_colours() -> None:
    ax = plots.error_over_rounds({rule: run(*[(0.5, 0.4)] * 30) for rule in RULES})
    assert labels(ax) == RULES
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(looks) == len({line.get_marker() for line in ax.lines}) == 11
    assert not any(same_color(str(line.get_color()), RED) for line in ax.lines)  # red is for what is malicious


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_line_that_diverges_ends_in_a_cross_and_says_so(bad: float) -> None:
    ax = plots.error_over_rounds({"FedAvg": run((0.1, 0.5), (0.1, 0.6), (0.1, bad), (0.1, bad))})
    line, cross = ax.lines
    assert np.asarray(line.get_ydata())[:2].tolist() == [0.5, 0.6]
    assert np.isnan(np.asarray(line.get_ydata())[2:]).all()
    assert (cross.get_marker(), list(cross.get_xdata()), list(cross.get_ydata())) == ("x", [1], [0.6])
    assert cross.get_color() == line.get_color()
    assert labels(ax) == ["FedAvg (diverged)", "down to the mean"]


def test_what_was_never_finite_is_still_in_the_legend() -> None:
    ax = plots.error_over_rounds({"FedAvg": run((NAN, NAN)), "Median": run((0.5, 0.5))})
    assert labels(ax) == ["FedAvg (diverged)", "Median", "down to the mean"]
    assert len(ax.lines) == 2


@pytest.mark.parametrize("points", [1, 2, 7, 8, 100])
def test_every_line_has_markers_so_that_a_single_round_shows(points: int) -> None:
    ax = plots.error_over_rounds({rule: run(*[(0.5, 0.4)] * points) for rule in RULES})
    for line in ax.lines:
        start, step = line.get_markevery()  # type: ignore[misc]
        assert start < points
        assert 1 <= len(range(start, points, step)) <= 16


def test_ticks_are_whole_rounds() -> None:
    ax = plots.error_over_rounds({"Balance": run((0.5, 0.4))})
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
    history = run(*[values] * 2, malicious=(), metric="mse")
    ax = plots.error_per_client(history, "mse", log=log)
    assert ax.get_yscale() == scale
    assert ax.get_ylabel() == "mean squared error"
    ax.figure.canvas.draw()
    plots.error_over_rounds({"Median": history}, "mse", log=log).figure.canvas.draw()


@pytest.mark.parametrize(
    ("high", "top"), [(0.05, 0.054), (0.5, 0.54), (0.6, 1.04), (1.0, 1.04), (50.0, 54.0), (0.0, 1.0)]
)
def test_linear_scales_begin_at_zero_and_show_the_largest_value(high: float, top: float) -> None:
    assert plots.error_per_client(run((high, 0.0))).get_ylim() == pytest.approx((0, top))


def test_unknown_metrics_are_called_by_their_names() -> None:
    history = run((1.0, 2.0), metric="perplexity")
    assert plots.error_per_client(history, "perplexity").get_ylabel() == "perplexity"
    assert plots.error_over_rounds({"Krum": history}, "perplexity").get_ylabel() == "max. perplexity"


# Acceptance


def test_acceptance_in_percent_and_malicious_red_and_dashed() -> None:
    ax = plots.acceptance_over_rounds(accepting([1.0, 0.5, 0.75], [0.25, NAN, 0.0]))
    benign, malicious = ax.lines
    assert np.asarray(benign.get_ydata()).tolist() == [100, 50, 75]
    assert (np.asarray(malicious.get_xdata()).tolist(), np.asarray(malicious.get_ydata()).tolist()) == ([0, 2], [25, 0])
    assert same_color(str(malicious.get_color()), RED)
    assert same_color(str(benign.get_color()), BLUE)
    assert (benign.get_linestyle(), malicious.get_linestyle()) == ("-", "--")
    assert benign.get_marker() != malicious.get_marker()
    assert labels(ax) == ["benign", "malicious"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("round", "messages accepted (%)")


def test_many_rounds_are_averaged_in_spans_with_a_band_around() -> None:
    ax = plots.acceptance_over_rounds(accepting([0.0, 1.0] * 500, [0.5] * 1000))
    xs, ys = (np.asarray(data) for data in ax.lines[0].get_data())
    assert xs.tolist() == [4.5 + 10 * i for i in range(100)]
    assert ys.tolist() == [50.0] * 100
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0, 100)
    assert labels(ax) == ["benign", "malicious", "min. to max. of adjacent rounds"]


def test_one_side_alone_and_no_message_at_all() -> None:
    alone = History(2, rounds=[Round(0, values={"accepted_benign": 1.0})])
    assert labels(plots.acceptance_over_rounds(alone)) == ["benign"]
    silent = plots.acceptance_over_rounds(accepting([NAN, NAN], [NAN, NAN]))
    assert [len(np.asarray(line.get_xdata())) for line in silent.lines] == [0, 0]
    assert inside(silent)


# Costs and tables


def test_costs_are_bars_with_values_and_units() -> None:
    sent, took = plots.cost_bars({"FedAvg": costing(5.6e6, 0.002), "LEARN": costing(56e6, 0.05), "new": History(2)})
    assert [bar.get_width() for bar in sent.patches] == pytest.approx([5.6, 56, 0])
    assert [bar.get_width() for bar in took.patches] == pytest.approx([2, 50, 0])
    assert [text.get_text() for text in sent.texts] == ["5.6", "56", "n/a"]
    assert [text.get_text() for text in took.texts] == ["2", "50", "n/a"]
    assert [text.get_text() for text in sent.get_yticklabels()] == ["FedAvg", "LEARN", "new"]
    assert sent.get_ylim()[0] > sent.get_ylim()[1]  # the first is on top
    assert sent.get_xlabel() == "sent per client\nand round (MB)"
    assert took.get_xlabel() == "aggregation\nper round (ms)"
    assert (sent.get_xscale(), took.get_xscale()) == ("linear", "linear")


@pytest.mark.parametrize(
    ("values", "text", "unit", "scale"),
    [
        ((12.0, 999.0), ["12", "999"], "B", "linear"),
        ((1e3, 2e3), ["1", "2"], "kB", "linear"),
        ((1e3, 2e9), ["1e-06", "2"], "GB", "log"),
        ((1e4, 1e6), ["0.01", "1"], "MB", "log"),
        ((0.0, 0.0), ["0", "0"], "B", "linear"),
        ((0.0, 4e6), ["0", "4"], "MB", "linear"),
        ((INF, 4e6), ["inf", "4"], "MB", "linear"),
    ],
)
def test_units_and_scales_of_costs(values: tuple[float, float], text: list[str], unit: str, scale: str) -> None:
    ax, _ = plots.cost_bars({"a": costing(values[0], 0.1), "b": costing(values[1], 0.1)})
    assert [one.get_text() for one in ax.texts] == text
    assert ax.get_xlabel().endswith(f"({unit})")
    assert ax.get_xscale() == scale
    assert inside(ax)


def test_a_table_in_colours() -> None:
    ax = plots.heatmap(
        {"FedAvg": {"none": 0.05, "Gaussian": 0.9}, "Balance": {"none": 0.06, "LIE": NAN}}, label="Max.TER"
    )
    assert [(text.get_position(), text.get_text()) for text in ax.texts] == [
        ((0, 0), "0.05"),
        ((1, 0), "0.90"),
        ((0, 1), "0.06"),
        ((2, 1), "nan"),
    ]
    shades = ax.images[0].get_array()
    assert shades is not None
    assert np.ma.getmaskarray(shades).tolist() == [[False, False, True], [False, True, False]]
    assert np.ma.filled(shades, -1).tolist() == [[0.05, 0.9, -1], [0.06, -1, 1]]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["none", "Gaussian", "LIE"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["FedAvg", "Balance"]
    assert ax.get_xlabel() == "Max.TER"


@pytest.mark.parametrize(
    ("values", "shades", "texts"),
    [
        ((1.0, 100.0, 1e4), [0, 0.5, 1], ["1", "100", "10,000"]),
        ((0.1, INF, 1e3), [0, 1, 1], ["0.1", "inf", "1,000"]),
        ((0.0, 2.0, 4.0), [0, 0.5, 1], ["0", "2", "4"]),
        ((5.0, 5.0, NAN), [0, 0, 1], ["5", "5", "nan"]),
        ((NAN, INF, -INF), [1, 1, 1], ["nan", "inf", "-inf"]),
    ],
)
def test_shades_of_other_values(values: tuple[float, ...], shades: list[float], texts: list[str]) -> None:
    ax = plots.heatmap({"Krum": dict(zip("abc", values, strict=True))})
    assert np.ma.filled(ax.images[0].get_array(), -1)[0].tolist() == pytest.approx(shades)
    assert [text.get_text() for text in ax.texts] == texts


def test_a_table_from_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"none": [0.05, 0.06], "Gaussian": [0.9, NAN]}, index=["FedAvg", "Balance"])
    ax = plots.heatmap(frame)
    assert [text.get_text() for text in ax.texts] == ["0.05", "0.90", "0.06", "nan"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["none", "Gaussian"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["FedAvg", "Balance"]
    nullable = pandas.DataFrame({0.1: pandas.array([0.5, None], dtype="Float64")})
    ax = plots.heatmap(nullable)
    assert [text.get_text() for text in ax.texts] == ["0.50", "nan"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0.1"]


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ({"data": []}, r"results must hold a value .* found \{\}"),
        ({"data": [[0.1], [0.2]], "index": ["a", "a"]}, r"results.index must be unique, found \['a', 'a'\]"),
        ({"data": [[0.1, 0.2]], "columns": ["a", "a"]}, r"results.columns must be unique, found"),
        ({"data": [["x"]]}, r"results\[0\]\[0\] must be a number, found 'x'"),
    ],
)
def test_frames_that_are_no_tables(frame: dict[str, Any], text: str) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=text):
        plots.heatmap(pandas.DataFrame(**frame))


def test_large_numbers_fit_their_cells() -> None:
    values = (1.46e6, -2.5e5, 99_999.0, 1e108, 12.5, 1e-310, -1e308, 1.7e308)
    ax = plots.heatmap({"Krum": {f"attack {i}": x for i, x in enumerate(values)}})
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.texts[:4]] == ["1.5e6", "-2.5e5", "99,999", "1.0e108"]
    cell = ax.get_window_extent().width / len(values)
    assert max(text.get_window_extent().width for text in ax.texts) < 1.2 * cell


def test_numbers_can_be_read_on_every_shade() -> None:
    def luminance(colour: Any) -> float:
        channels = np.array(to_rgba(colour)[:3])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    ax = plots.heatmap({"Krum": {str(i): i / 50 for i in range(51)}})
    for text, shade in zip(ax.texts, np.linspace(0, 1, 51), strict=True):
        dark, light = sorted([luminance(text.get_color()), luminance(ax.images[0].cmap(shade))])
        assert (light + 0.05) / (dark + 0.05) > 4  # contrast as in WCAG 2


# All of them


MANY = {rule: run(*[(0.9, 0.2 + i / 50) for i in range(20)]) for rule in RULES}
LONG = {"Balance(gamma=0.3, kappa=1.0, strict)": run((0.5, 0.4)), "Median": run((0.5, 0.4))}
PICTURES: dict[str, Callable[[], Axes]] = {
    "graph": lambda: plots.graph(eq.Topology.regular(20, 10, seed=0), range(4)),
    "large graph": lambda: plots.graph(eq.Topology.regular(100, 10, seed=0), range(20), layout="spring"),
    "clients": lambda: plots.error_per_client(run(tuple(i / 20 for i in range(20)), malicious=(0, 1))),
    "100 clients": lambda: plots.error_per_client(run((0.5, NAN, 1e30) * 34, metric="mse"), "mse"),
    "rounds": lambda: plots.error_over_rounds(MANY),
    "long names": lambda: plots.error_over_rounds(LONG),
    "acceptance": lambda: plots.acceptance_over_rounds(accepting([1.0, 0.9], [0.0, 0.1])),
    "costs": lambda: plots.cost_bars({rule: costing(5.6e6, 0.003) for rule in RULES})[0],
    "costs, long names": lambda: plots.cost_bars({name: costing(10.0**i, 1.0) for i, name in enumerate(LONG)})[1],
    "table": lambda: plots.heatmap({rule: dict.fromkeys(["none", "Gaussian", "LabelFlip"], 0.5) for rule in RULES}),
    "wide table": lambda: plots.heatmap({rule: {f"attack no. {i}": 0.05 for i in range(10)} for rule in RULES}),
    "slanted table": lambda: plots.heatmap({rule: {f"attack no. {i}": 0.05 for i in range(5)} for rule in RULES}),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_new_picture_fits_a_column_and_nothing_is_cut_off_or_covered_or_tiny(name: str) -> None:
    ax = PICTURES[name]()
    assert ax.figure.get_figwidth() == 3.3  # type: ignore[union-attr]
    assert inside(ax)
    texts = [*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label]
    if legend := ax.get_legend():
        lowest = ax.xaxis.get_tightbbox() if ax.axison else ax.get_window_extent()
        assert lowest is not None
        assert legend.get_window_extent().y1 <= lowest.y0
        texts += legend.get_texts()
    assert min(text.get_fontsize() for text in texts) >= 6


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plots.graph(eq.Topology.ring(4), [0], ax),
        lambda ax: plots.error_per_client(run((0.5, 0.4)), ax=ax),
        lambda ax: plots.error_over_rounds(LONG, ax=ax),
        lambda ax: plots.acceptance_over_rounds(accepting([1.0], [0.0]), ax),
        lambda ax: plots.heatmap({"Krum": {"none": 0.5}}, ax),
        lambda ax: plots.cost_bars(LONG, (ax, ax.figure.axes[1]))[0],
    ],
)
def test_axes_can_be_given_and_figures_are_left_as_they_are(draw: Callable[[Axes], Axes]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(5, 3))
    assert draw(axes[0]) is axes[0]
    assert plt.get_fignums() == [figure.number]
    assert figure.get_size_inches().tolist() == [5, 3]
    assert axes[0].has_data()


NOTHING = History(2, rounds=[Round(0, values={"consensus": 1.0})])
NO_METRICS = r"metric 'error' was not measured, the history has no metrics: pass Simulator\(..., metrics="


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: plots.graph(eq.Topology.ring(3), [3]), "malicious must be"),
        (lambda: plots.graph(eq.Topology.ring(3), layout="ring"), "layout must be .* clients 0 to 2, found 'ring'"),
        (lambda: plots.graph(eq.Topology.ring(3), layout=places(2)), r"layout must be .*, found \{0: \(0.0, 0.0\)"),
        (lambda: plots.error_per_client(run((0.5, 0.4)), "mse"), r"metric must be one of \['error'\], found 'mse'"),
        (lambda: plots.error_over_rounds({"a": run((0.5, 0.4))}, "asr"), "metric must be one of"),
        (lambda: plots.error_over_rounds({}), r"histories must map names to histories, found \{\}"),
        (lambda: plots.error_over_rounds(run((0.5, 0.4))), "histories must map .* found History"),
        (lambda: plots.cost_bars({}), "histories must map"),
        (lambda: plots.acceptance_over_rounds(run((0.5, 0.4))), "history must hold accepted_benign or"),
        (lambda: plots.heatmap({"Krum": {}}), r"results must hold a value .* found \{'Krum': \{\}\}"),
        (lambda: plots.heatmap([[0.5]]), r"results must be a DataFrame or a mapping, .* found list"),
        (lambda: plots.heatmap(None), "results must be .* found NoneType"),
        (lambda: plots.heatmap({"Krum": 0.5}), r"results\['Krum'\] must map attacks to numbers, found 0.5"),
        (lambda: plots.heatmap({"Krum": {"LIE": run((0.5, 0.4))}}), r"\['LIE'\] must be a number, found History"),
        (lambda: plots.heatmap({"Krum": {"LIE": torch.ones(2)}}), r"must be a number, found tensor\(\[1., 1.\]\)"),
        (lambda: plots.heatmap({"Krum": {"LIE": 0.5}}, "ax"), "ax must be one matplotlib Axes, found str"),
        (lambda: plots.error_over_rounds({"a": History(2)}), NO_METRICS),
        (lambda: plots.error_over_rounds({"b": run((0.5, 0.4)), "a": NOTHING}), rf"^histories\['a'\]: {NO_METRICS}"),
        (lambda: plots.error_per_client(NOTHING), NO_METRICS),
        (lambda: plots.error_per_client(run((0.5, 0.4)), ["error"]), r"metric must be one of \['error'\], found"),
        (lambda: plots.error_per_client(run((0.5, 0.4)), t=[0]), r"t must be a round .* found \[0\]"),
        (lambda: plots.error_over_rounds({"a": 3}), r"histories\['a'\] must be a History, .* found int"),
        (lambda: plots.cost_bars({"a": 3}), r"histories\['a'\] must be a History, .* found int"),
        (lambda: plots.cost_bars({"a": NOTHING}, (1, 2, 3)), r"axes must be two matplotlib Axes, found \(1, 2, 3\)"),
        (lambda: plots.cost_bars({"a": NOTHING}, (1, 2)), "ax must be one matplotlib Axes, found int"),
        (lambda: plots.acceptance_over_rounds(History(2)), "accepted_malicious, found no rounds"),
        (lambda: plots.graph(eq.Topology.ring(3).to_networkx()), "topology must be a Topology, .* found Graph"),
        (lambda: plots.graph(eq.Topology.ring(2), layout={0: 1, 1: 2}), r"position \(x, y\) .* found \{0: 1, 1: 2\}"),
        (lambda: plots.graph(eq.Topology.ring(2), layout={0: (1, 2), 1: (1,)}), r"layout must be .* position \(x, y\)"),
        (lambda: plots.graph(eq.Topology.ring(2), layout={0: (1, 2), 1: (1, NAN)}), r"layout must be .* found"),
    ],
)
def test_bad_input_is_named_and_leaves_no_figure_behind(draw: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        draw()
    assert plt.get_fignums() == []


def test_names_need_not_be_strings() -> None:
    runs: Any = {0.1: run((0.5, 0.4)), 2: run((0.5, 0.4)), "2": run((0.5, 0.4))}
    expected = ["0.1", "2", "2"]
    assert labels(plots.error_over_rounds(runs, band=False)) == expected
    ticks = plots.cost_bars(runs)[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == expected
    ticks = plots.heatmap({name: {2: 0.1, "2": 0.2} for name in runs}).get_yticklabels()
    assert [tick.get_text() for tick in ticks] == expected


def test_names_that_matplotlib_hides_do_no_harm() -> None:
    assert plots.error_over_rounds({"_": run((0.5, 0.4))}).get_legend() is None


def test_without_matplotlib_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "equipoise\[plots\]"'):
        plots.graph(eq.Topology.ring(3))


def test_matplotlib_is_imported_when_something_is_drawn() -> None:
    check = "import sys, equipoise.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("draw", [plots.acceptance_over_rounds, plots.error_per_client], ids=lambda draw: draw.__name__)
def test_one_history_is_drawn_not_several(draw: Any) -> None:
    with pytest.raises(ValueError, match="history must be a History, as run returns it, found dict"):
        draw({"Balance": History(2)})
