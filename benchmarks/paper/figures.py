"""Pictures of results: the paper's figures, and tables in colours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.paper.report import Cell
from benchmarks.paper.tables import Table
from equipoise import plots
from equipoise.optional import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "malicious": "share of malicious clients",
    "partition": "degree of non-IID, p",
    "graph": "regular graph (clients, neighbours)",
}
STYLES = ("-o", "--s", "-.^", ":D", "-v", "--P", "-.X", ":*", "-h")


def draw(table: Table, found: list[Cell], path: Path) -> None:
    """Save a picture of a table: lines over an axis, or shades.

    Raises:
        ImportError: matplotlib is not installed.
    """
    known = [cell for cell in found if cell.ours]
    figure = lines(table, known) if table.axis else shades(table, known)
    figure.savefig(path, dpi=200, bbox_inches="tight", pad_inches=0.1)


def shades(table: Table, found: list[Cell]) -> Figure:
    """Every row and column of a table, the worse the darker; infinite where there is more than 100."""
    figure = _figure(1.0 + 0.5 * len(table.columns), 0.8 + 0.22 * len(table.rows))
    values = {row: {cell.column: cell.ours[0] for cell in found if cell.row == row} for row in table.rows}
    plots.heatmap({row: cells for row, cells in values.items() if cells}, figure.subplots(), label=table.caption)
    return figure


def lines(table: Table, found: list[Cell]) -> Figure:
    """A panel for each attack, in which every rule has a line over the values of the table's axis."""
    attacks = list(dict.fromkeys(cell.setting.attack for cell in found))
    figure = _figure(1.2 + 1.7 * min(len(attacks), 4), 0.7 + 1.6 * -(-len(attacks) // 4))
    panels = figure.subplots(-(-len(attacks) // 4), min(len(attacks), 4), sharey=True, squeeze=False).flat
    for ax, attack in zip(panels, attacks, strict=False):
        _panel(ax, table, [cell for cell in found if cell.setting.attack == attack])
        ax.set_title("no attack" if attack == "No" else attack, fontsize=8)
    for ax in panels:
        ax.label_outer()
    figure.supxlabel(AXES.get(table.axis, table.axis), fontsize=8)
    figure.supylabel("max. test error rate", fontsize=8)
    rules = len({cell.setting.rule for cell in found})
    if rules > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=7)
    return figure


def _panel(ax: Axes, table: Table, found: list[Cell]) -> None:
    columns = list(table.columns)
    for i, rule in enumerate(dict.fromkeys(cell.setting.rule for cell in found)):
        chosen = [cell for cell in found if cell.setting.rule == rule]
        places = [columns.index(cell.column) for cell in chosen]
        style: dict[str, Any] = {"color": plots.COLORS[i % len(plots.COLORS)], "markersize": 3, "linewidth": 1}
        ax.plot(places, [min(cell.ours[0], 1.0) for cell in chosen], STYLES[i % len(STYLES)], label=rule, **style)
    names = [name.removeprefix("p=").removeprefix("regular-") for name in columns]
    ax.set_xticks(range(len(columns)), names, fontsize=6)
    ax.tick_params(labelsize=6, length=2)
    ax.set_ylim(0, 1)
    ax.grid(alpha=0.3, linewidth=0.5)


def _figure(width: float, height: float) -> Figure:
    module = import_optional("matplotlib.figure", "plots")
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained")
    return figure
