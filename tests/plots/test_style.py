"""Properties that all figures share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

import equipoise as eq
from equipoise import plots
from equipoise.simulation.history import History, Round
from tests.plots.histories import (
    NAN,
    RULES,
    accepting,
    costing,
    history_of,
    inside,
    labels,
    positions,
)

MANY = {rule: history_of(*[(0.9, 0.2 + i / 50) for i in range(20)]) for rule in RULES}
LONG = {
    "Balance(gamma=0.3, kappa=1.0, strict)": history_of((0.5, 0.4)),
    "Median": history_of((0.5, 0.4)),
}
PICTURES: dict[str, Callable[[], Axes]] = {
    "graph": lambda: plots.graph(eq.Topology.regular(20, 10, seed=0), range(4)),
    "large graph": lambda: plots.graph(
        eq.Topology.regular(100, 10, seed=0), range(20), layout="spring"
    ),
    "clients": lambda: plots.error_per_client(
        history_of(tuple(i / 20 for i in range(20)), malicious=(0, 1))
    ),
    "100 clients": lambda: plots.error_per_client(
        history_of((0.5, NAN, 1e30) * 34, metric="mse"), "mse"
    ),
    "rounds": lambda: plots.error_over_rounds(MANY),
    "long names": lambda: plots.error_over_rounds(LONG),
    "acceptance": lambda: plots.acceptance_over_rounds(accepting([1.0, 0.9], [0.0, 0.1])),
    "costs": lambda: plots.cost_bars({rule: costing(5.6e6, 0.003) for rule in RULES})[0],
    "costs, long names": lambda: plots.cost_bars(
        {name: costing(10.0**i, 1.0) for i, name in enumerate(LONG)}
    )[1],
    "table": lambda: plots.heatmap(
        {rule: dict.fromkeys(["none", "Gaussian", "LabelFlip"], 0.5) for rule in RULES}
    ),
    "wide table": lambda: plots.heatmap(
        {rule: {f"attack no. {i}": 0.05 for i in range(10)} for rule in RULES}
    ),
    "slanted table": lambda: plots.heatmap(
        {rule: {f"attack no. {i}": 0.05 for i in range(5)} for rule in RULES}
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_new_figures_fit_a_column(name: str) -> None:
    ax = PICTURES[name]()
    assert ax.figure.get_figwidth() == 3.3  # type: ignore[union-attr]
    assert inside(ax)
    texts = [
        *ax.texts,
        *ax.get_xticklabels(),
        *ax.get_yticklabels(),
        ax.xaxis.label,
        ax.yaxis.label,
    ]
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
        lambda ax: plots.error_per_client(history_of((0.5, 0.4)), ax=ax),
        lambda ax: plots.error_over_rounds(LONG, ax=ax),
        lambda ax: plots.acceptance_over_rounds(accepting([1.0], [0.0]), ax),
        lambda ax: plots.heatmap({"Krum": {"none": 0.5}}, ax),
        lambda ax: plots.cost_bars(LONG, (ax, ax.figure.axes[1]))[0],
    ],
)
def test_given_axes_are_used(draw: Callable[[Axes], Axes]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(5, 3))
    assert draw(axes[0]) is axes[0]
    assert plt.get_fignums() == [figure.number]
    assert figure.get_size_inches().tolist() == [5, 3]
    assert axes[0].has_data()


NOTHING = History(2, rounds=[Round(0, values={"consensus": 1.0})])
NO_METRICS = (
    r"metric 'error' was not measured, the history has no metrics: pass Simulator\(..., metrics="
)


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: plots.graph(eq.Topology.ring(3), [3]), "malicious must be"),
        (
            lambda: plots.graph(eq.Topology.ring(3), layout="ring"),
            "layout must be .* clients 0 to 2, found 'ring'",
        ),
        (
            lambda: plots.graph(eq.Topology.ring(3), layout=positions(2)),
            r"layout must be .*, found \{0: \(0.0, 0.0\)",
        ),
        (
            lambda: plots.error_per_client(history_of((0.5, 0.4)), "mse"),
            r"metric must be one of \['error'\], found 'mse'",
        ),
        (
            lambda: plots.error_over_rounds({"a": history_of((0.5, 0.4))}, "asr"),
            "metric must be one of",
        ),
        (lambda: plots.error_over_rounds({}), r"histories must map names to histories, found \{\}"),
        (
            lambda: plots.error_over_rounds(history_of((0.5, 0.4))),
            "histories must map .* found History",
        ),
        (lambda: plots.cost_bars({}), "histories must map"),
        (
            lambda: plots.acceptance_over_rounds(history_of((0.5, 0.4))),
            "history must hold accepted_benign or",
        ),
        (
            lambda: plots.heatmap({"Krum": {}}),
            r"results must hold a value .* found \{'Krum': \{\}\}",
        ),
        (
            lambda: plots.heatmap([[0.5]]),
            r"results must be a DataFrame or a mapping, .* found list",
        ),
        (lambda: plots.heatmap(None), "results must be .* found NoneType"),
        (
            lambda: plots.heatmap({"Krum": 0.5}),
            r"results\['Krum'\] must map attacks to numbers, found 0.5",
        ),
        (
            lambda: plots.heatmap({"Krum": {"LIE": history_of((0.5, 0.4))}}),
            r"\['LIE'\] must be a number, found History",
        ),
        (
            lambda: plots.heatmap({"Krum": {"LIE": torch.ones(2)}}),
            r"must be a number, found tensor\(\[1., 1.\]\)",
        ),
        (
            lambda: plots.heatmap({"Krum": {"LIE": 0.5}}, "ax"),
            "ax must be one matplotlib Axes, found str",
        ),
        (lambda: plots.error_over_rounds({"a": History(2)}), NO_METRICS),
        (
            lambda: plots.error_over_rounds({"b": history_of((0.5, 0.4)), "a": NOTHING}),
            rf"^histories\['a'\]: {NO_METRICS}",
        ),
        (lambda: plots.error_per_client(NOTHING), NO_METRICS),
        (
            lambda: plots.error_per_client(history_of((0.5, 0.4)), ["error"]),
            r"metric must be one of \['error'\], found",
        ),
        (
            lambda: plots.error_per_client(history_of((0.5, 0.4)), t=[0]),
            r"t must be a round .* found \[0\]",
        ),
        (
            lambda: plots.error_over_rounds({"a": 3}),
            r"histories\['a'\] must be a History, .* found int",
        ),
        (lambda: plots.cost_bars({"a": 3}), r"histories\['a'\] must be a History, .* found int"),
        (
            lambda: plots.cost_bars({"a": NOTHING}, (1, 2, 3)),
            r"axes must be two matplotlib Axes, found \(1, 2, 3\)",
        ),
        (
            lambda: plots.cost_bars({"a": NOTHING}, (1, 2)),
            "ax must be one matplotlib Axes, found int",
        ),
        (lambda: plots.acceptance_over_rounds(History(2)), "accepted_malicious, found no rounds"),
        (
            lambda: plots.graph(eq.Topology.ring(3).to_networkx()),
            "topology must be a Topology, .* found Graph",
        ),
        (
            lambda: plots.graph(eq.Topology.ring(2), layout={0: 1, 1: 2}),
            r"position \(x, y\) .* found \{0: 1, 1: 2\}",
        ),
        (
            lambda: plots.graph(eq.Topology.ring(2), layout={0: (1, 2), 1: (1,)}),
            r"layout must be .* position \(x, y\)",
        ),
        (
            lambda: plots.graph(eq.Topology.ring(2), layout={0: (1, 2), 1: (1, NAN)}),
            r"layout must be .* found",
        ),
    ],
)
def test_bad_input_makes_no_figure(draw: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        draw()
    assert plt.get_fignums() == []


def test_names_need_not_be_strings() -> None:
    runs: Any = {
        0.1: history_of((0.5, 0.4)),
        2: history_of((0.5, 0.4)),
        "2": history_of((0.5, 0.4)),
    }
    expected = ["0.1", "2", "2"]
    assert labels(plots.error_over_rounds(runs, band=False)) == expected
    ticks = plots.cost_bars(runs)[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == expected
    ticks = plots.heatmap({name: {2: 0.1, "2": 0.2} for name in runs}).get_yticklabels()
    assert [tick.get_text() for tick in ticks] == expected


def test_hidden_names_have_no_legend() -> None:
    assert plots.error_over_rounds({"_": history_of((0.5, 0.4))}).get_legend() is None


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "equipoise\[plots\]"'):
        plots.graph(eq.Topology.ring(3))


def test_import_defers_matplotlib() -> None:
    check = "import sys, equipoise.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    "draw", [plots.acceptance_over_rounds, plots.error_per_client], ids=lambda draw: draw.__name__
)
def test_several_histories_rejected(draw: Any) -> None:
    with pytest.raises(
        ValueError, match="history must be a History, as run returns it, found dict"
    ):
        draw({"Balance": History(2)})
