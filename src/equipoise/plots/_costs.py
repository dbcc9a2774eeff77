"""Bytes sent and aggregation time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise.plots._style import BENIGN, COLUMN, axes_for, pyplot, seeds_of, short
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1}


def cost_bars(
    histories: Mapping[str, History | Sequence[History]], axes: tuple[Axes, Axes] | None = None
) -> tuple[Axes, Axes]:
    r"""Plot two bars per history: bytes sent per client, and aggregation time of all clients.

    Both are per round, and means over a list of histories. A scale is logarithmic if its bars span
    two decades.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> measured = Round(0, values={"bytes": 4e6}, seconds={"aggregate": 0.003})
    >>> runs = {"Krum": History(2, rounds=[measured])}
    >>> sent, took = plots.cost_bars(runs)
    >>> sent.texts[0].get_text(), sent.get_xlabel()
    ('4', 'sent per client\nand round (MB)')
    >>> took.texts[0].get_text(), took.get_xlabel()
    ('3', 'aggregation\nper round (ms)')
    """
    groups = seeds_of(histories)
    names = [str(name) for name in histories]
    if axes is None:
        size = (COLUMN, 0.6 + 0.15 * len(histories))
        _, axes = pyplot().subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    # ``_draw_bars`` checks that both elements are axes.
    if not isinstance(axes, Sequence | np.ndarray) or len(axes) != 2:
        raise ValueError(f"axes must be two matplotlib Axes, found {axes!r:.80}")
    sent, took = axes
    sizes = [_mean(group, "bytes") for group in groups.values()]
    _draw_bars(sent, names, sizes, BYTES, "sent per client\nand round")
    times = [_mean(group, "aggregate_seconds") for group in groups.values()]
    _draw_bars(took, names, times, SECONDS, "aggregation\nper round")
    took.tick_params(labelleft=False)
    return sent, took


def _mean(group: Sequence[History], name: str) -> float:
    values = [history.summary().get(name, math.nan) for history in group]
    return sum(values) / len(values)


def _draw_bars(
    ax: Axes, names: list[str], values: list[float], units: Mapping[str, float], label: str
) -> None:
    """Draw horizontal bars with their values beside them."""
    axes_for(ax, 0)
    # Zero and non-finite values cannot set a unit or a scale.
    known = [x for x in values if math.isfinite(x) and x > 0] or [1.0]
    unit = _unit_for(max(known), units)
    scale = units[unit]
    lengths = [x / scale if math.isfinite(x) else 0.0 for x in values]
    ax.barh(range(len(names)), lengths, height=0.7, color=BENIGN)
    _set_width(ax, min(known) / scale, max(known) / scale)
    for row, (length, value) in enumerate(zip(lengths, values, strict=True)):
        end = (max(length, ax.get_xlim()[0]), row)
        text = "n/a" if math.isnan(value) else short(value / scale)
        ax.annotate(text, end, (2, 0), textcoords="offset points", fontsize=6, va="center")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)  # upside down: the first history is on top
    # Longer names need smaller letters to leave room for the bars.
    ax.tick_params(axis="y", length=0, labelsize=7 if max(map(len, names)) <= 20 else 6)
    ax.set_xlabel(f"{label} ({unit})", fontsize=7, labelpad=2)


def _unit_for(longest: float, units: Mapping[str, float]) -> str:
    """Return the largest unit in which the longest bar is at least 1, or the smallest unit."""
    smallest, *others = units
    # Both tables of units are ascending.
    return next((unit for unit in reversed(others) if units[unit] <= longest), smallest)


def _set_width(ax: Axes, low: float, high: float) -> None:
    """Make room for bars from ``low`` to ``high``, and for the numbers beside them."""
    if high >= 100 * low:
        # Start below the smallest bar, which would have no length otherwise.
        ax.set_xscale("log")
        ax.set_xlim(low / 2, high * (high / low) ** 0.6)
    else:
        ax.set_xlim(0, 1.5 * high)  # a third of the width for the numbers
