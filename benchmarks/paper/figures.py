"""Pictures of results: the paper's figures, and heatmaps of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.registry import NO_ATTACK
from benchmarks.paper.report import MARKS, Cell
from benchmarks.paper.tables import TABLES, Table
from equipoise import plots
from equipoise._utils.optional import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "malicious": "share of malicious clients",
    "partition": "degree of non-IID, p",
    "graph": "regular graph (clients, neighbors)",
}
STYLES = ("-o", "--s", "-.^", ":D", "-v", "--P", "-.X", ":*", "-h")


def draw(table: Table, found: list[Cell], path: Path) -> None:
    """Save a picture of a table: lines over an axis, or a heatmap.

    Raises:
        ImportError: matplotlib is not installed.
    """
    known = [cell for cell in found if cell.ours]
    figure = lines(table, known) if table.axis else shades(table, known)
    figure.savefig(path, dpi=200, bbox_inches="tight", pad_inches=0.1)


def shades(table: Table, found: list[Cell]) -> Figure:
    """Draw a heatmap of a table."""
    figure = _figure(1.0 + 0.5 * len(table.columns), 0.8 + 0.22 * len(table.rows))
    values = {
        row: {cell.column: cell.ours[0] for cell in found if cell.row == row} for row in table.rows
    }
    known = {row: cells for row, cells in values.items() if cells}
    plots.heatmap(known, figure.subplots(), label=table.caption)
    return figure


def lines(table: Table, found: list[Cell]) -> Figure:
    """Draw a panel for each attack, in which each rule has a line over the table's axis."""
    attacks = list(dict.fromkeys(cell.setting.attack for cell in found))
    columns = min(len(attacks), 4)
    rows = math.ceil(len(attacks) / 4)
    figure = _figure(1.2 + 1.7 * columns, 0.7 + 1.6 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for ax, attack in zip(panels, attacks, strict=False):
        _panel(ax, table, [cell for cell in found if cell.setting.attack == attack])
        ax.set_title("no attack" if attack == NO_ATTACK else attack, fontsize=8)
    for ax in panels:
        ax.label_outer()
    figure.supxlabel(AXES.get(table.axis, table.axis), fontsize=8)
    figure.supylabel("max. test error rate", fontsize=8)
    rules = len({cell.setting.rule for cell in found})
    if rules > 1:
        entries = panels[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside upper center", ncols=5, fontsize=7)
    return figure


def _panel(ax: Axes, table: Table, found: list[Cell]) -> None:
    columns = list(table.columns)
    for i, rule in enumerate(dict.fromkeys(cell.setting.rule for cell in found)):
        chosen = [cell for cell in found if cell.setting.rule == rule]
        places = [columns.index(cell.column) for cell in chosen]
        errors = [min(cell.ours[0], 1.0) for cell in chosen]
        color = plots.COLORS[i % len(plots.COLORS)]
        style: dict[str, Any] = {"color": color, "markersize": 3, "linewidth": 1}
        ax.plot(places, errors, STYLES[i % len(STYLES)], label=rule, **style)
    names = [re.sub(r"by_group\((.*)\)|regular", r"\1", name) for name in columns]
    ax.set_xticks(range(len(columns)), names, fontsize=6)
    ax.tick_params(labelsize=6, length=2)
    ax.set_ylim(0, 1)
    ax.grid(alpha=0.3, linewidth=0.5)


def _figure(width: float, height: float) -> Figure:
    module = import_optional("matplotlib.figure", "plots")
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained")
    return figure


SHOWN = ("mnist", "fashion-mnist", "har", "synthetic")
SHADES = "YlOrBr"


def ours_and_theirs(tables: Mapping[str, list[Cell]]) -> Figure:
    """Draw the main tables: each cell has our error on the left and the paper's on the right.

    Two halves of one shade agree. The mark of the verdict is between them.
    """
    module = import_optional("matplotlib.colors", "plots")
    figure = _figure(7.4, 6.6)
    panels = figure.subplots(2, 2).flat
    for ax, name in zip(panels, SHOWN, strict=True):
        squared = name == "synthetic"
        # Squared errors range from the noise floor to the collapse at 100: a logarithmic scale.
        norm = module.LogNorm(0.3, 100) if squared else module.Normalize(0, 1)
        image = _halves(ax, tables[name], norm)
        ax.set_title(TABLES[name].caption, fontsize=8)
        extend = "max" if squared else "neither"
        bar = figure.colorbar(image, ax=ax, fraction=0.04, pad=0.02, extend=extend)
        bar.ax.tick_params(labelsize=6)
    return figure


def _halves(ax: Axes, found: list[Cell], norm: Any) -> Any:
    rows = list(dict.fromkeys(cell.row for cell in found))
    columns = list(dict.fromkeys(cell.column for cell in found))
    values = np.full((len(rows), 2 * len(columns)), np.nan)
    for cell in found:
        row = rows.index(cell.row)
        left = 2 * columns.index(cell.column)
        for half, figures in enumerate((cell.ours, cell.paper)):
            if figures:
                # Infinite errors have the darkest shade; NaN would be blank.
                values[row, left + half] = min(figures[0], 1e6)
        if cell.ours:
            differs = cell.verdict == "differs"
            ax.text(
                left + 0.5,
                row,
                MARKS[cell.verdict],
                ha="center",
                va="center",
                fontsize=6.5,
                fontweight="bold" if differs else "normal",
                color=plots.MALICIOUS if differs else "black",
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "linewidth": 0},
            )
    image = ax.imshow(values, cmap=SHADES, norm=norm, aspect="auto")
    for place in range(1, len(columns)):
        ax.axvline(2 * place - 0.5, color="white", linewidth=2)
    for place in range(1, len(rows)):
        ax.axhline(place - 0.5, color="white", linewidth=1)
    ax.set_xticks(
        [2 * place + 0.5 for place in range(len(columns))],
        [column.replace("(", "\n(") for column in columns],
        rotation=45,
        ha="right",
        rotation_mode="anchor",
        fontsize=6,
    )
    ax.set_yticks(range(len(rows)), rows, fontsize=6)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image
