"""A metric per client or per round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from equipoise._utils.validation import check_choice
from equipoise.plots._style import (
    BENIGN,
    GREY,
    METRIC_LABELS,
    AnyArray,
    axes_for,
    check_history,
    drawable,
    label_axes,
    legend_below,
    line_style,
    seeds_of,
    set_integer_ticks,
    set_scale,
    short,
)
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SeedBand = Literal["sd", "min-max"]

# Hatched as well as grey, so that malicious clients can be told apart in black and white.
HATCHED: dict[str, Any] = {
    "facecolor": "#E4E4E4",
    "edgecolor": "#999999",
    "hatch": "/////",
    "linewidth": 0.3,
}


def error_per_client(
    history: History,
    metric: str = "error",
    ax: Axes | None = None,
    *,
    t: int | None = None,
    log: bool | None = None,
) -> Axes:
    """Plot a metric of every client after round ``t``, by default the last round that measured it.

    Malicious clients are grey and hatched, because their own models do not matter. A dashed line
    marks the maximum over benign clients. A cross at the top marks a value that is not finite, or
    beyond 1e150. ``log`` chooses a logarithmic scale; by default it is used if values exceed 1 and
    span three decades.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> history = History(3, malicious=[2], rounds=[Round(0, {"error": (0.1, 0.2, 0.9)})])
    >>> ax = plots.error_per_client(history)
    >>> [float(bar.get_height()) for bar in ax.patches]
    [0.1, 0.2, 0.9]
    """
    check_history(history)
    # Validate before a figure is made: an error must not leave an empty figure behind.
    values = drawable(history.per_client(metric, t))
    ax, new = axes_for(ax, 1.8)
    benign = list(history.benign)
    malicious = list(history.malicious)
    # A history has at least one benign client.
    ax.bar(benign, values[benign], width=0.8, label="benign", color=BENIGN)
    if malicious:
        ax.bar(malicious, values[malicious], width=0.8, label="malicious", **HATCHED)
    set_scale(ax, values, log)
    worst = values[benign].max()  # NaN if one of them cannot be drawn
    if not math.isnan(worst):
        label = f"max. over benign: {short(worst)}"
        ax.axhline(worst, color=GREY, linewidth=0.8, linestyle="--", label=label)
    _mark_not_finite(ax, np.flatnonzero(np.isnan(values)))
    ax.set_xlim(-0.7, history.n - 0.3)  # half a bar, 0.4, and a gap of 0.3 on either side
    set_integer_ticks(ax)
    label_axes(ax, "client", METRIC_LABELS.get(metric, metric))
    legend_below(ax, new)
    return ax


def _mark_not_finite(ax: Axes, clients: AnyArray) -> None:
    """Draw a cross at the upper edge for every client."""
    if not len(clients):
        return
    ax.plot(
        clients,
        np.ones(len(clients)),
        # x in clients, y in fractions of the height: 1 is the upper edge on every scale.
        transform=ax.get_xaxis_transform(),
        label="not finite",
        color=GREY,
        marker="x",
        markersize=4,
        linestyle="none",
        clip_on=False,  # half of a cross on the edge would be cut off
    )


def error_over_rounds(
    histories: Mapping[str, History | Sequence[History]],
    metric: str = "error",
    ax: Axes | None = None,
    *,
    log: bool | None = None,
    band: bool | SeedBand | None = None,
) -> Axes:
    """Plot the maximum of a metric over benign clients, per round: one line per history.

    A light band extends from the line to the mean over benign clients. A list of histories, one for
    each seed, becomes one line: the mean over seeds, with a band of one standard deviation on
    either side (``band="sd"``), or from the smallest to the largest seed (``band="min-max"``). The
    legend says what bands are. ``band`` is also True or False; by default, bands are drawn for up
    to four lines.

    A line ends in a cross where the maximum of a seed is no longer finite, or beyond 1e150. ``log``
    chooses a logarithmic scale; by default it is used if values exceed 1 and span three decades.

    >>> from equipoise import plots
    >>> from equipoise.simulation.history import History, Round
    >>> rounds = [Round(t, {"error": (0.5, 1 / (t + 1))}) for t in range(3)]
    >>> runs = {"Median": History(2, rounds=rounds)}
    >>> plots.error_over_rounds(runs).lines[0].get_ydata()
    array([1. , 0.5, 0.5])
    """
    groups = seeds_of(histories)
    if band is not None and not isinstance(band, bool):
        check_choice("band", band, get_args(SeedBand))
    # As above: read all histories first, so that an unknown metric leaves no empty figure.
    several = any(len(group) > 1 for group in groups.values())
    summary = _over_seeds if several else _over_clients
    kind: SeedBand = "min-max" if band == "min-max" else "sd"
    series = {name: summary(name, group, metric, kind) for name, group in groups.items()}
    ax, new = axes_for(ax, 1.8)
    # More than four overlapping bands cannot be told apart.
    shown = len(series) <= 4 if band is None else bool(band)
    for position, (name, one) in enumerate(series.items()):
        style = line_style(position, len(series), len(one.rounds))
        _draw_line(ax, str(name), one.rounds, one.line, style)
        if shown:
            limits = (one.low, one.high)
            ax.fill_between(one.rounds, *limits, color=style["color"], alpha=0.15, linewidth=0)
    set_scale(ax, np.concatenate([one.line for one in series.values()]), log)
    set_integer_ticks(ax)
    label_axes(ax, "round", f"max. {METRIC_LABELS.get(metric, metric)}")
    about = _about_seeds(groups, kind) if several else "mean to max. over benign clients"
    legend_below(ax, new, band=about if shown else "")
    return ax


class Series(NamedTuple):
    """A line and the limits of its band."""

    rounds: list[int]
    line: AnyArray
    low: AnyArray
    high: AnyArray


def _over_clients(name: str, group: Sequence[History], metric: str, kind: SeedBand) -> Series:
    """The maximum over benign clients, with a band to their mean."""
    (history,) = group
    rounds, worst = _worst(name, history, metric)
    mean = drawable(history.mean(metric)[1])
    return Series(rounds, worst, mean, worst)


def _over_seeds(name: str, group: Sequence[History], metric: str, kind: SeedBand) -> Series:
    """The mean over seeds of that maximum, with a band of their deviation or their range."""
    rounds, first = _worst(name, group[0], metric)
    lines = [first]
    for history in group[1:]:
        others, worst = _worst(name, history, metric)
        if others != rounds:
            found = f"{len(rounds)} and {len(others)} of them, or others"
            raise ValueError(f"histories[{name!r}] must have equal evaluations, found {found}")
        lines.append(worst)
    table = np.stack(lines)
    mean = table.mean(0)
    if kind == "min-max":
        return Series(rounds, mean, table.min(0), table.max(0))
    # One seed has no deviation.
    sd = table.std(0, ddof=1) if len(group) > 1 else np.zeros_like(mean)
    return Series(rounds, mean, mean - sd, mean + sd)


def _about_seeds(groups: Mapping[str, Sequence[History]], kind: SeedBand) -> str:
    counts = sorted({len(group) for group in groups.values()})
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    return f"mean, min. to max. of {seeds}" if kind == "min-max" else f"mean ± sd of {seeds}"


def _worst(name: str, history: History, metric: str) -> tuple[list[int], AnyArray]:
    """Return the rounds that measured a metric, and its maximum over benign clients."""
    try:
        rounds, worst = history.worst(metric)
    except ValueError as error:
        # History does not know its name in the figure.
        raise ValueError(f"histories[{name!r}]: {error}") from None
    return rounds, drawable(worst)


def _draw_line(
    ax: Axes, name: str, rounds: list[int], line: AnyArray, style: dict[str, Any]
) -> None:
    """Draw a line, with a cross wherever it ends because the next value cannot be drawn."""
    gone = np.isnan(line)
    ax.plot(rounds, line, label=f"{name} (diverged)" if gone.any() else name, **style)
    # The last drawable value before each gap.
    ends = np.flatnonzero(~gone[:-1] & gone[1:])
    if len(ends):
        cross = {"color": style["color"], "markersize": 6, "markeredgewidth": 1.2}
        ax.plot(np.array(rounds)[ends], line[ends], "x", **cross)
