"""The share of messages that were accepted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from equipoise.plots._style import (
    BENIGN,
    MALICIOUS,
    AnyArray,
    axes_for,
    check_history,
    label_axes,
    legend_below,
    line_style,
    set_integer_ticks,
)
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPANS = 100  # more points than that cannot be told apart in one column


def acceptance_over_rounds(history: History, ax: Axes | None = None) -> Axes:
    """Plot the share of accepted messages over rounds, for benign and malicious senders.

    Rounds without such a message are left out. For more than 100 rounds, the line shows the
    means of about 100 spans of adjacent rounds, and a light band their minima and maxima.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> accepted = {"accepted_benign": 1.0, "accepted_malicious": 0.25}
    >>> rounds = [Round(t, values=accepted) for t in range(2)]
    >>> ax = plots.acceptance_over_rounds(History(4, malicious=[0], rounds=rounds))
    >>> [line.get_ydata().tolist() for line in ax.lines]
    [[100.0, 100.0], [25.0, 25.0]]
    """
    check_history(history)
    # Fixed colors, dashes and markers: a figure with one side only must not show it as the other.
    sides = {"benign": (BENIGN, "-", "o"), "malicious": (MALICIOUS, "--", "s")}
    recorded = [side for side in sides if any(f"accepted_{side}" in one.values for one in history)]
    if not recorded:
        found = "no rounds"
        if len(history):
            found = "neither: rules without weights do not record them"
        raise ValueError(f"history must hold accepted_benign or accepted_malicious, found {found}")
    ax, new = axes_for(ax, 1.8)
    band = ""
    for position, side in enumerate(recorded):
        rounds, low, mean, high = _summarize_spans(*history.series(f"accepted_{side}"))
        if (low < high).any():
            band = "min. to max. of adjacent rounds"
        color, dash, marker = sides[side]
        style = line_style(position, 2, len(rounds))
        style |= {"color": color, "linestyle": dash, "marker": marker}
        ax.plot(rounds, 100 * mean, label=side, **style)
        ax.fill_between(rounds, 100 * low, 100 * high, color=color, alpha=0.15, linewidth=0)
    ax.set_ylim(-4, 104)  # markers at 0 and 100 % stay whole
    set_integer_ticks(ax)
    label_axes(ax, "round", "messages accepted (%)")
    legend_below(ax, new, band=band)
    return ax


def _summarize_spans(rounds: list[int], rates: list[float]) -> AnyArray:
    """Return (4, spans): the mean round, and the minimum, mean and maximum of the known rates."""
    pairs = [pair for pair in zip(rounds, rates, strict=True) if not math.isnan(pair[1])]
    known = np.array(pairs).reshape(-1, 2)  # (0, 2) if there are none
    # Spans differ by at most one round in length.
    spans = np.array_split(known, min(SPANS, max(len(known), 1)))
    table = [
        (span[:, 0].mean(), span[:, 1].min(), span[:, 1].mean(), span[:, 1].max())
        for span in spans
        if len(span)
    ]
    return np.array(table).reshape(-1, 4).T
