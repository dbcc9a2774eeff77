"""Communication graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise._utils.validation import Clients, as_mask
from equipoise.plots._style import (
    BENIGN,
    COLUMN,
    ENDANGERED,
    GREY,
    LIGHT,
    MALICIOUS,
    AnyArray,
    axes_for,
    legend_below,
)
from equipoise.topology import Diagnosis, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def graph(
    topology: Topology,
    malicious: Clients | None = None,
    ax: Axes | None = None,
    *,
    layout: str | Mapping[int, Sequence[float]] = "circle",
    endangered: Clients | None = None,
) -> Axes:
    """Draw a communication graph.

    Benign clients are blue discs, or orange diamonds if they are ``endangered``; malicious clients
    are red squares with red edges. ``layout`` is ``"circle"``, ``"spring"`` (deterministic), or a
    mapping from client to position. An edge without its reverse is an arrow from sender to
    receiver. Self-loops are not drawn.

    >>> from equipoise import plots
    >>> ax = plots.graph(eq.Topology.ring(5), malicious=[2])
    >>> ax.get_legend_handles_labels()[1]
    ['benign', 'malicious']
    """
    if not isinstance(topology, Topology):
        expected = "a Topology, such as Topology.from_networkx returns"
        raise ValueError(f"topology must be {expected}, found {type(topology).__name__}")
    is_malicious = as_mask(malicious, topology.n).cpu().numpy()
    is_endangered = as_mask(endangered, topology.n, name="endangered").cpu().numpy()
    positions = _positions(topology, layout)
    ax, new = axes_for(ax, COLUMN)
    box = ax.get_window_extent()
    side = min(box.width, box.height) * 72 / ax.figure.dpi  # points
    # On a circle of this diameter, clients cover 65 % of the circumference and do not overlap.
    size = float(np.clip(0.65 * math.pi * side / topology.n, 2, 13))
    _draw_edges(ax, topology.adjacency().cpu().numpy(), positions, is_malicious, size)
    _draw_clients(ax, positions, is_malicious, is_endangered & ~is_malicious, size)
    ax.set_aspect("equal")
    _set_limits(ax, positions)
    ax.set_axis_off()
    if is_malicious.any() or is_endangered.any():
        legend_below(ax, new, gap=0, markerscale=6 / size, handletextpad=0.1)
    return ax


def diagnosis(
    found: Diagnosis,
    ax: Axes | None = None,
    *,
    layout: str | Mapping[int, Sequence[float]] = "circle",
) -> Axes:
    """Draw the graph of a diagnosis, as `graph`, with the endangered clients marked.

    These are the benign clients that can be captured or are cut off; see
    `equipoise.topology.Diagnosis`.

    >>> from equipoise import plots
    >>> ax = plots.diagnosis(eq.Topology.ring(8).diagnose(malicious=[0, 4]))
    >>> ax.get_legend_handles_labels()[1]
    ['benign', 'endangered', 'malicious']
    """
    if not isinstance(found, Diagnosis):
        name = type(found).__name__
        raise ValueError(f"found must be a Diagnosis, as Topology.diagnose returns, found {name}")
    topology = Topology(found.topology.senders)
    return graph(topology, found.malicious, ax, layout=layout, endangered=found.endangered)


def _positions(topology: Topology, layout: str | Mapping[int, Sequence[float]]) -> AnyArray:
    """Return the (n, 2) positions of the clients."""
    n = topology.n
    # An array has no single truth value: compare strings only.
    name = layout if isinstance(layout, str) else ""
    if name == "circle":
        angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n  # clockwise from the top, like a clock
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if name == "spring":
        import networkx as nx

        # A fixed seed: the same graph looks the same in every figure.
        layout = nx.spring_layout(topology.to_networkx(), seed=0)
    try:
        if isinstance(layout, Mapping) and set(layout) == set(range(n)):
            positions = np.array([layout[client] for client in range(n)], dtype=float)
            if positions.shape == (n, 2) and np.isfinite(positions).all():
                return positions
    except (TypeError, ValueError):  # not numbers, or not two per client
        pass
    expected = f'"circle", "spring" or a position (x, y) for each of the clients 0 to {n - 1}'
    raise ValueError(f"layout must be {expected}, found {layout!r:.80}")


def _set_limits(ax: Axes, positions: AnyArray) -> None:
    """Leave a margin around all clients, even if there is one, or if they form a line."""
    low = positions.min(axis=0)
    high = positions.max(axis=0)
    extent = high - low
    # Half the extent and 8 % more, for the markers. A side is at least a fifth of the other one.
    half = 0.58 * np.maximum(extent, 0.2 * extent.max() or 1)
    center = (low + high) / 2
    ax.set_xlim(center[0] - half[0], center[0] + half[0])
    ax.set_ylim(center[1] - half[1], center[1] + half[1])


def _draw_edges(
    ax: Axes, sends: AnyArray, positions: AnyArray, is_malicious: AnyArray, size: float
) -> None:
    """Draw lines for mutual edges and arrows for the others, red if a malicious client sends."""
    from matplotlib.collections import LineCollection

    sends = sends & ~np.eye(len(sends), dtype=bool)  # no self-loops
    width = float(np.clip(80 / max(sends.sum(), 1), 0.25, 0.8))  # thinner if there are many
    mutual = np.argwhere(np.triu(sends & sends.T))  # (edges, 2), each pair of clients once
    is_red = is_malicious[mutual].any(axis=1)
    # Red lines come last, so that grey ones do not cover them.
    for chosen, color in ((~is_red, LIGHT), (is_red, MALICIOUS)):
        lines = list(positions[mutual[chosen]])  # (2, 2) each: both ends, x and y
        collection = LineCollection(lines, colors=color, linewidths=width, alpha=0.8, zorder=1)
        ax.add_collection(collection)
    for u, v in np.argwhere(sends & ~sends.T):
        arrow = {
            "arrowstyle": "-|>,head_width=0.12,head_length=0.3",
            "color": MALICIOUS if is_malicious[u] else GREY,
            "linewidth": width,
            # Arrows end at the edge of a marker, or the marker would cover their heads.
            "shrinkA": size / 2,
            "shrinkB": size / 2,
        }
        ax.annotate("", positions[v], positions[u], arrowprops=arrow, zorder=1)


def _draw_clients(
    ax: Axes, positions: AnyArray, is_malicious: AnyArray, is_endangered: AnyArray, size: float
) -> None:
    """Draw clients as markers of ``size`` points, with their ids if these are legible."""
    for name, chosen, color, marker, scale in (
        ("benign", ~is_malicious & ~is_endangered, BENIGN, "o", 1.0),
        # About the area of a disc, both.
        ("endangered", is_endangered, ENDANGERED, "D", 0.9),
        ("malicious", is_malicious, MALICIOUS, "s", 0.9),
    ):
        if chosen.any():
            ax.scatter(
                positions[chosen, 0],
                positions[chosen, 1],
                s=(scale * size) ** 2,
                color=color,
                marker=marker,
                edgecolors="white",
                linewidths=0.4,
                zorder=2,
                label=name,
            )
    if size >= 9:  # points: letters of half that size are the smallest that can be read
        for client, (x, y) in enumerate(positions):
            ax.text(
                x,
                y,
                str(client),
                # White on orange cannot be read.
                color="black" if is_endangered[client] else "white",
                fontsize=size / 2,
                ha="center",
                va="center_baseline",
                zorder=3,
            )
