"""Whose messages were accepted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from equipoise.plots._style import (
    BENIGN,
    MALICIOUS,
    Array,
    axes_for,
    check_history,
    label_axes,
    legend_below,
    line_style,
    whole_numbers,
)
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def acceptance_over_rounds(history: History, ax: Axes | None = None) -> Axes:
    """How many of the messages of benign and of malicious clients were accepted, round by round.

    Rounds in which there was no such message are left out. Of more than 100 rounds the line shows the means of about
    100 spans, and a light band what they hold.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> accepted = {"accepted_benign": 1.0, "accepted_malicious": 0.25}
    >>> rounds = [Round(t, values=accepted) for t in range(2)]
    >>> ax = plots.acceptance_over_rounds(History(4, malicious=[0], rounds=rounds))
    >>> [line.get_ydata().tolist() for line in ax.lines]
    [[100.0, 100.0], [25.0, 25.0]]
    """
    check_history(history)
    sides = {"benign": (BENIGN, "-", "o"), "malicious": (MALICIOUS, "--", "s")}
    recorded = [side for side in sides if any(f"accepted_{side}" in one.values for one in history)]
    if not recorded:
        found = "neither: rules without weights do not record them" if len(history) else "no rounds"
        raise ValueError(f"history must hold accepted_benign or accepted_malicious, found {found}")
    ax, new = axes_for(ax, 1.8)
    band = ""
    for position, side in enumerate(recorded):
        rounds, low, mean, high = _spans(*history.series(f"accepted_{side}"))
        if (low < high).any():
            band = "min. to max. of adjacent rounds"
        colour, dash, marker = sides[side]
        style = line_style(position, 2, len(rounds)) | {"color": colour, "linestyle": dash, "marker": marker}
        ax.plot(rounds, 100 * mean, label=side, **style)
        ax.fill_between(rounds, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
    ax.set_ylim(-4, 104)
    whole_numbers(ax)
    label_axes(ax, "round", "messages accepted (%)")
    legend_below(ax, new, band=band)
    return ax


def _spans(rounds: list[int], rates: list[float], spans: int = 100) -> Array:
    """(4, spans): mean round, and minimum, mean and maximum of what is not NaN, in spans of about equal length."""
    known = np.array([pair for pair in zip(rounds, rates, strict=True) if not math.isnan(pair[1])]).reshape(-1, 2)
    parts = np.array_split(known, min(spans, max(len(known), 1)))
    table = [(p[:, 0].mean(), p[:, 1].min(), p[:, 1].mean(), p[:, 1].max()) for p in parts if len(p)]
    return np.array(table).reshape(-1, 4).T
