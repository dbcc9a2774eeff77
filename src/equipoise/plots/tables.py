"""Tables of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.plots.style import Array, axes_for, label_axes, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def heatmap(
    results: Mapping[str, Mapping[str, float]], ax: Axes | None = None, *, label: str = "max. test error rate"
) -> Axes:
    """A table of results, ``results[rule][attack]``, in which the darker is the worse.

    Shades run from 0 to 1, or, if there are other values, from the smallest to the largest, by their logarithms if all
    are positive. What is not finite is as dark as it gets; what is missing is left white.

    >>> from equipoise import plots
    >>> errors = {"FedAvg": {"none": 0.05, "Gaussian": 0.9}, "Balance": {"none": 0.05, "Gaussian": 0.06}}
    >>> ax = plots.heatmap(errors)
    >>> [text.get_text() for text in ax.texts]
    ['0.05', '0.90', '0.05', '0.06']
    """
    rules, attacks = list(results), list(dict.fromkeys(attack for row in results.values() for attack in row))
    if not attacks:
        raise ValueError(f"results must hold a value for a rule and an attack, found {results!r:.80}")
    upright = len(attacks) > 6
    ax, _ = axes_for(ax, 0.5 + 0.16 * len(rules) + (0.05 * max(map(len, attacks)) if upright else 0))
    missing = np.array([[attack not in results[rule] for attack in attacks] for rule in rules])
    table = np.array([[results[rule].get(attack, math.nan) for attack in attacks] for rule in rules], dtype=float)
    shades, form = _shades(table)
    ax.imshow(np.ma.array(shades, mask=missing), cmap="YlOrBr", vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(~missing):
        text, colour = form(table[row, column]), "white" if shades[row, column] > 0.72 else "black"
        ax.text(column, row, text, color=colour, fontsize=6, ha="center", va="center_baseline")
    _table_labels(ax, rules, attacks, upright)
    label_axes(ax, label, "")
    return ax


def _shades(table: Array) -> tuple[Array, Callable[[float], str]]:
    """Values as shades from 0 to 1, and how to write a value."""
    finite = np.isfinite(table)
    low, high = table[finite].min(initial=math.inf), table[finite].max(initial=-math.inf)
    if low >= 0 and high <= 1:  # rates, or nothing
        return np.where(finite, table, 1.0), "{:.2f}".format
    scaled = np.log(table, where=finite, out=np.zeros_like(table)) if low > 0 else table
    low, high = scaled[finite].min(), scaled[finite].max()
    return np.where(finite, (scaled - low) / (high - low or 1), 1.0), short


def _table_labels(ax: Axes, rules: list[str], attacks: list[str], upright: bool) -> None:
    """Rules to the left, attacks above, upright or slanted where they would run into each other; white lines."""
    ax.set_yticks(range(len(rules)), rules)
    ax.set_xticks(range(len(attacks)), attacks)
    ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    if max(map(len, attacks)) > 40 / len(attacks):
        slanted: dict[str, Any] = {"rotation": 35, "ha": "left", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(attacks)), attacks, va="bottom", **({"rotation": 90} if upright else slanted))
    ax.set_xticks(np.arange(1, len(attacks)) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, len(rules)) - 0.5, minor=True)
    ax.tick_params(which="minor", length=0)
    ax.grid(which="minor", color="white", linewidth=0.8)
