"""A metric, client by client or round by round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.plots._style import (
    BENIGN,
    GREY,
    LABELS,
    Array,
    axes_for,
    check_histories,
    check_history,
    drawable,
    label_axes,
    legend_below,
    line_style,
    set_scale,
    short,
    whole_numbers,
)
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def error_per_client(
    history: History,
    metric: str = "error",
    ax: Axes | None = None,
    *,
    t: int | None = None,
    log: bool | None = None,
) -> Axes:
    """A metric of each client after round ``t``, by default the last one in which it was measured.

    Malicious clients are grey and hatched: what becomes of their models matters to nobody. A line is at the maximum
    over benign clients, and a cross at the top says that a value is not finite, or beyond 1e150. The scale is
    logarithmic if ``log`` says so, or by default if values exceed 1 and span three decades.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> history = History(3, malicious=[2], rounds=[Round(0, {"error": (0.1, 0.2, 0.9)})])
    >>> ax = plots.error_per_client(history)
    >>> [float(bar.get_height()) for bar in ax.patches]
    [0.1, 0.2, 0.9]
    """
    check_history(history)
    values = drawable(history.per_client(metric, t))
    ax, new = axes_for(ax, 1.8)
    hatched: dict[str, Any] = {"facecolor": "#E4E4E4", "edgecolor": "#999999", "hatch": "/////", "linewidth": 0.3}
    for name, ids, style in (("benign", history.benign, {"color": BENIGN}), ("malicious", history.malicious, hatched)):
        if ids:
            ax.bar(ids, values[list(ids)], width=0.8, label=name, **style)
    set_scale(ax, values, log)
    worst = values[list(history.benign)].max()
    if not math.isnan(worst):
        ax.axhline(worst, color=GREY, linewidth=0.8, linestyle="--", label=f"max. over benign: {short(worst)}")
    _cross_out(ax, np.flatnonzero(np.isnan(values)))
    ax.set_xlim(-0.7, history.n - 0.3)
    whole_numbers(ax)
    label_axes(ax, "client", LABELS.get(metric, metric))
    legend_below(ax, new)
    return ax


def _cross_out(ax: Axes, clients: Array) -> None:
    """Crosses at the upper edge."""
    if len(clients):
        style: dict[str, Any] = {"color": GREY, "marker": "x", "markersize": 4, "linestyle": "none", "clip_on": False}
        ax.plot(clients, np.ones(len(clients)), transform=ax.get_xaxis_transform(), label="not finite", **style)


def error_over_rounds(
    histories: Mapping[str, History],
    metric: str = "error",
    ax: Axes | None = None,
    *,
    log: bool | None = None,
    band: bool | None = None,
) -> Axes:
    """The maximum of a metric over benign clients, round by round: a line for each history.

    A light band reaches down to the mean over benign clients if ``band`` is true, or by default
    with up to four histories. Where a line ends in a cross, the maximum is not
    finite any more, or beyond 1e150. The scale is logarithmic if ``log`` says so, or by default if values exceed 1 and
    span three decades.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> rounds = [Round(t, {"error": (0.5, 1 / (t + 1))}) for t in range(3)]
    >>> runs = {"Median": History(2, rounds=rounds)}
    >>> plots.error_over_rounds(runs).lines[0].get_ydata()
    array([1. , 0.5, 0.5])
    """
    check_histories(histories)
    series = {name: _over_rounds(name, history, metric) for name, history in histories.items()}
    ax, new = axes_for(ax, 1.8)
    band = len(series) <= 4 if band is None else band
    for position, (name, (rounds, mean, worst)) in enumerate(series.items()):
        style = line_style(position, len(series), len(rounds))
        _draw_line(ax, str(name), rounds, worst, style)
        if band:
            ax.fill_between(rounds, mean, worst, color=style["color"], alpha=0.15, linewidth=0)
    set_scale(ax, np.concatenate([worst for _, _, worst in series.values()]), log)
    whole_numbers(ax)
    label_axes(ax, "round", f"max. {LABELS.get(metric, metric)}")
    legend_below(ax, new, band="down to the mean" if band else "")
    return ax


def _over_rounds(name: str, history: History, metric: str) -> tuple[list[int], Array, Array]:
    """The rounds in which a metric was measured, and its mean and maximum over benign clients."""
    try:
        rounds, worst = history.worst(metric)
    except ValueError as error:
        raise ValueError(f"histories[{name!r}]: {error}") from None
    return rounds, drawable(history.mean(metric)[1]), drawable(worst)


def _draw_line(ax: Axes, name: str, rounds: list[int], line: Array, style: dict[str, Any]) -> None:
    """A line, with a cross wherever it ends because the next value cannot be drawn."""
    gone = np.isnan(line)
    ax.plot(rounds, line, label=f"{name} (diverged)" if gone.any() else name, **style)
    ends = np.flatnonzero(~gone[:-1] & gone[1:])
    if len(ends):
        ax.plot(np.array(rounds)[ends], line[ends], "x", color=style["color"], markersize=6, markeredgewidth=1.2)
