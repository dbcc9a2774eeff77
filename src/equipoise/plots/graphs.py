"""Who hears whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise._utils.validation import Clients, as_mask
from equipoise.plots._style import BENIGN, COLUMN, GREY, LIGHT, MALICIOUS, Array, axes_for, legend_below
from equipoise.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def graph(
    topology: Topology,
    malicious: Clients | None = None,
    ax: Axes | None = None,
    *,
    layout: str | Mapping[int, Sequence[float]] = "circle",
) -> Axes:
    """Who hears whom: benign clients are blue discs, malicious ones are red squares with red edges.

    ``layout`` is ``"circle"``, ``"spring"`` (always the same for the same graph), or a position for each client. An
    edge without its reverse is an arrow from sender to receiver. Self-loops are not drawn.

    >>> from equipoise import plots
    >>> ax = plots.graph(eq.Topology.ring(5), malicious=[2])
    >>> ax.get_legend_handles_labels()[1]
    ['benign', 'malicious']
    """
    if not isinstance(topology, Topology):
        expected = "a Topology, such as Topology.from_networkx returns"
        raise ValueError(f"topology must be {expected}, found {type(topology).__name__}")
    liars = as_mask(malicious, topology.n).cpu().numpy()
    places = _places(topology, layout)
    ax, new = axes_for(ax, COLUMN)
    box = ax.get_window_extent()
    side = min(box.width, box.height) * 72 / ax.figure.dpi  # points
    size = float(np.clip(0.65 * math.pi * side / topology.n, 2, 13))
    _draw_edges(ax, topology.edges().tolist(), places, liars, size)
    _draw_clients(ax, places, liars, size)
    ax.set_aspect("equal")
    _set_limits(ax, places)
    ax.set_axis_off()
    if liars.any():
        legend_below(ax, new, gap=0, markerscale=6 / size, handletextpad=0.1)
    return ax


def _places(topology: Topology, layout: str | Mapping[int, Sequence[float]]) -> Array:
    """(n, 2) positions of the clients."""
    n = topology.n
    if isinstance(layout, str) and layout == "circle":
        angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if isinstance(layout, str) and layout == "spring":
        import networkx as nx

        layout = nx.spring_layout(topology.to_networkx(), seed=0)
    try:
        if isinstance(layout, Mapping) and set(layout) == set(range(n)):
            places = np.array([layout[client] for client in range(n)], dtype=float)
            if places.shape == (n, 2) and np.isfinite(places).all():
                return places
    except (TypeError, ValueError):  # not numbers, or not two for each client
        pass
    expected = f'"circle", "spring" or a position (x, y) for each of the clients 0 to {n - 1}'
    raise ValueError(f"layout must be {expected}, found {layout!r:.80}")


def _set_limits(ax: Axes, places: Array) -> None:
    """A margin around all clients, also around one client or several in a line."""
    low = places.min(axis=0)
    high = places.max(axis=0)
    extent = high - low
    half = 0.58 * np.maximum(extent, 0.2 * extent.max() or 1)
    center = (low + high) / 2
    ax.set_xlim(center[0] - half[0], center[0] + half[0])
    ax.set_ylim(center[1] - half[1], center[1] + half[1])


def _draw_edges(ax: Axes, edges: list[list[int]], places: Array, liars: Array, size: float) -> None:
    from matplotlib.collections import LineCollection

    pairs = {(u, v) for u, v in edges if u != v}
    mutual = sorted((u, v) for u, v in pairs if u < v and (v, u) in pairs)
    width = float(np.clip(80 / max(len(pairs), 1), 0.25, 0.8))
    for red, colour in ((False, LIGHT), (True, MALICIOUS)):
        lines = [(places[u], places[v]) for u, v in mutual if bool(liars[u] or liars[v]) == red]
        ax.add_collection(LineCollection(lines, colors=colour, linewidths=width, alpha=0.8, zorder=1))
    for u, v in sorted((u, v) for u, v in pairs if (v, u) not in pairs):
        style = {"color": MALICIOUS if liars[u] else GREY, "linewidth": width, "shrinkA": size / 2, "shrinkB": size / 2}
        arrow = {"arrowstyle": "-|>,head_width=0.12,head_length=0.3", **style}
        ax.annotate("", places[v], places[u], arrowprops=arrow, zorder=1)


def _draw_clients(ax: Axes, places: Array, liars: Array, size: float) -> None:
    """Clients as markers of a size in points, with their ids if these are readable."""
    for name, chosen, colour, marker, scale in (
        ("benign", ~liars, BENIGN, "o", 1.0),
        ("malicious", liars, MALICIOUS, "s", 0.9),  # as much ink as a disc
    ):
        if chosen.any():
            ax.scatter(
                places[chosen, 0],
                places[chosen, 1],
                s=(scale * size) ** 2,
                color=colour,
                marker=marker,
                edgecolors="white",
                linewidths=0.4,
                zorder=2,
                label=name,
            )
    if size >= 9:
        for client, (x, y) in enumerate(places):
            ax.text(x, y, str(client), color="white", fontsize=size / 2, ha="center", va="center_baseline", zorder=3)
