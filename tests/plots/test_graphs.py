"""Communication graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color

import equipoise as eq
from equipoise import plots
from tests.plots.histories import inside, labels, positions


def scattered(ax: Axes) -> dict[str, Any]:
    """The markers of clients, by label."""
    return {
        str(one.get_label()): one for one in ax.collections if not isinstance(one, LineCollection)
    }


def drawn_edges(ax: Axes) -> dict[str, set[frozenset[tuple[float, ...]]]]:
    """The ends of the lines, by whether they are red."""
    found: dict[str, set[frozenset[tuple[float, ...]]]] = {"red": set(), "grey": set()}
    for one in ax.collections:
        if isinstance(one, LineCollection) and len(one.get_segments()):
            color = "red" if same_color(one.get_colors()[0][:3], plots.MALICIOUS) else "grey"
            found[color] |= {
                frozenset(map(tuple, ends.round(6).tolist())) for ends in one.get_segments()
            }
    return found


@pytest.mark.parametrize(
    "malicious", [[1, 4], torch.tensor([False, True, False, False, True, False])]
)
def test_malicious_are_red_squares(malicious: Any) -> None:
    ax = plots.graph(eq.Topology.ring(6), malicious, layout=positions(6))
    drawn = scattered(ax)
    assert drawn["malicious"].get_offsets().tolist() == [[1, 1], [4, 16]]
    assert drawn["benign"].get_offsets().tolist() == [[0, 0], [2, 4], [3, 9], [5, 25]]
    assert same_color(drawn["malicious"].get_facecolor(), plots.MALICIOUS)
    assert same_color(drawn["benign"].get_facecolor(), plots.BENIGN)
    corners = {name: len(one.get_paths()[0].vertices) for name, one in drawn.items()}
    assert corners["malicious"] == 5  # a closed square
    assert corners["benign"] > 5
    assert labels(ax) == ["benign", "malicious"]


def test_edges_are_drawn_once() -> None:
    at = positions(4)
    topology = eq.Topology.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 3)])
    edges = drawn_edges(plots.graph(topology, [0], layout=at))
    assert edges == {
        "red": {frozenset({at[0], at[1]})},
        "grey": {frozenset({at[1], at[2]}), frozenset({at[2], at[3]})},
    }


def test_directed_edges_are_arrows() -> None:
    topology = eq.Topology.from_edges(3, [(0, 1), (1, 0), (0, 2), (2, 1)], directed=True)
    ax = plots.graph(topology, [2], layout=positions(3))
    arrows: list[Any] = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    ends = {
        (tuple(arrow.xyann), tuple(arrow.xy)): arrow.arrow_patch.get_edgecolor() for arrow in arrows
    }
    assert set(ends) == {((0.0, 0.0), (2.0, 4.0)), ((2.0, 4.0), (1.0, 1.0))}
    assert same_color(ends[(2.0, 4.0), (1.0, 1.0)], plots.MALICIOUS)
    assert not same_color(ends[(0.0, 0.0), (2.0, 4.0)], plots.MALICIOUS)
    assert sum(map(len, drawn_edges(ax).values())) == 1


@pytest.mark.parametrize("layout", ["circle", "spring"])
def test_layouts_are_deterministic(layout: str) -> None:
    topology = eq.Topology.regular(12, 4, seed=0)
    state = np.random.get_state()[1].copy()
    first, second = (
        scattered(plots.graph(topology, layout=layout))["benign"].get_offsets() for _ in range(2)
    )
    assert np.array_equal(first, second)
    assert len(np.unique(first.round(6), axis=0)) == 12
    assert np.array_equal(np.random.get_state()[1], state)


def test_ids_only_if_legible() -> None:
    assert [text.get_text() for text in plots.graph(eq.Topology.ring(20)).texts] == [
        str(i) for i in range(20)
    ]
    large = plots.graph(eq.Topology.ring(100))
    assert list(large.texts) == []
    assert large.get_legend() is None


@pytest.mark.parametrize("n", [20, 100])
def test_clients_do_not_overlap(n: int) -> None:
    ax = plots.graph(eq.Topology.ring(n), range(n // 5))
    ax.figure.canvas.draw()
    spots = np.concatenate(
        [ax.transData.transform(one.get_offsets()) for one in scattered(ax).values()]
    )
    gaps = np.linalg.norm(spots[:, None] - spots, axis=2) + 1e9 * np.eye(n)
    diameter = max(one.get_sizes()[0] for one in scattered(ax).values()) ** 0.5 * ax.figure.dpi / 72
    assert diameter < gaps.min()


@pytest.mark.parametrize(
    "topology",
    [eq.Topology.ring(1), eq.Topology.from_edges(3, []), eq.Topology.ring(3).with_self_loops()],
    ids=repr,
)
def test_small_graphs(topology: eq.Topology) -> None:
    ax = plots.graph(topology)
    assert len(scattered(ax)["benign"].get_offsets()) == topology.n
    assert inside(ax)


@pytest.mark.parametrize(
    ("n", "layout"),
    [
        (1, "circle"),
        (2, "circle"),
        (3, {i: (0.0, float(i)) for i in range(3)}),
        (1, {0: (5.0, 5.0)}),
    ],
)
def test_clients_in_a_line_fit(n: int, layout: Any) -> None:
    ax = plots.graph(eq.Topology.ring(n), layout=layout)
    ax.figure.canvas.draw()
    spots = ax.transData.transform(scattered(ax)["benign"].get_offsets())
    radius = scattered(ax)["benign"].get_sizes()[0] ** 0.5 / 2 * ax.figure.dpi / 72
    box = ax.get_window_extent()
    assert (spots - radius >= box.min).all()
    assert (spots + radius <= box.max).all()


def test_endangered_are_orange_diamonds() -> None:
    ax = plots.diagnosis(eq.Topology.ring(6).diagnose([0, 1]), layout=positions(6))
    drawn = scattered(ax)
    assert drawn["endangered"].get_offsets().tolist() == [[2, 4], [5, 25]]
    assert drawn["benign"].get_offsets().tolist() == [[3, 9], [4, 16]]
    assert same_color(drawn["endangered"].get_facecolor(), plots.ENDANGERED)
    letters = {text.get_text(): text.get_color() for text in ax.texts}
    assert letters["2"] == "black"
    assert letters["3"] == letters["0"] == "white"


def test_malicious_are_never_endangered() -> None:
    ax = plots.graph(eq.Topology.ring(5), [1], endangered=[0, 1], layout=positions(5))
    assert scattered(ax)["endangered"].get_offsets().tolist() == [[0, 0]]
    assert scattered(ax)["malicious"].get_offsets().tolist() == [[1, 1]]


def test_endangered_without_malicious_has_a_legend() -> None:
    ax = plots.graph(eq.Topology.ring(5), endangered=[0])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["benign", "endangered"]


def test_diagnosis_must_be_one() -> None:
    with pytest.raises(ValueError, match="found must be a Diagnosis"):
        plots.diagnosis(eq.Topology.ring(5))  # type: ignore[arg-type]
