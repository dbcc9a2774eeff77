"""The common look of all figures: colors, line styles, scales and legends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from equipoise._utils.optional import import_optional
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AnyArray: TypeAlias = np.ndarray[Any, Any]

COLUMN = 3.3  # inches, the width of a column in the two-column layouts of ACM and IEEE
BENIGN = "#0072B2"
MALICIOUS = "#C8102E"
ENDANGERED = "#E69F00"
GREY = "#555555"
LIGHT = "#BBBBBB"
# Okabe and Ito's palette without its yellow, which is too faint for a line on white.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#D55E00")
# Solid first: solid lines are drawn below, and show through the gaps of the others.
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
METRIC_LABELS = {
    "error": "test error rate",
    "asr": "attack success rate",
    "mse": "mean squared error",
}
# Matplotlib squares values when it computes margins and transforms; 1e150 squared still is finite.
LARGEST_DRAWABLE = 1e150


def pyplot() -> Any:
    """Import ``matplotlib.pyplot`` on first use, so that importing equipoise stays fast."""
    return import_optional("matplotlib.pyplot", "plots")


def axes_for(ax: Axes | None, height: float) -> tuple[Axes, bool]:
    """Style the given axes, or those of a new figure; also return whether they are new."""
    new = ax is None
    if ax is None:
        _, ax = pyplot().subplots(figsize=(COLUMN, height), layout="constrained")
    elif not isinstance(ax, import_optional("matplotlib.axes", "plots").Axes):
        raise ValueError(f"ax must be one matplotlib Axes, found {type(ax).__name__}")
    ax.tick_params(labelsize=7, width=0.5, length=2.5, pad=2)
    ax.tick_params(which="minor", width=0.4, length=1.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.5)
    return ax, new


def label_axes(ax: Axes, x: str, y: str) -> None:
    """Name the two axes."""
    ax.set_xlabel(x, fontsize=8, labelpad=2)
    ax.set_ylabel(y, fontsize=8, labelpad=3)


def set_integer_ticks(ax: Axes) -> None:
    """Place horizontal ticks at integers only, even if the axis shows a single value."""
    from matplotlib.ticker import MaxNLocator

    steps = [1, 2, 2.5, 5, 10]
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=steps))


def drawable(values: Sequence[float]) -> AnyArray:
    """Return an array with NaN in place of values that matplotlib cannot draw."""
    array = np.array(values, dtype=float)
    return np.where(np.abs(array) < LARGEST_DRAWABLE, array, np.nan)


def set_scale(ax: Axes, values: AnyArray, log: bool | None) -> None:
    """Let the vertical scale start at 0, or make it logarithmic."""
    known = values[~np.isnan(values)]
    high = known.max(initial=0)
    positive = known[known > 0]
    if log is None:
        # Rates, which are at most 1, keep a linear scale. Three decades do not fit on one.
        log = bool(high > 1 and high / 1000 >= positive.min())
    if log and len(positive):
        ax.set_yscale("log")
    elif (known >= 0).all():
        # Show rates on the full scale once they are large; leave room for the highest marker.
        ax.set_ylim(0, 1.04 if 0.5 < high <= 1 else 1.08 * high or 1)


def short(x: float) -> str:
    """Format a number with about three digits, and with an exponent only where it helps."""
    return f"{x:,.0f}" if 100 <= abs(x) < 1e5 else f"{x:.3g}"


def legend_below(ax: Axes, new: bool, gap: float = 27, band: str = "", **style: Any) -> None:
    """Add a legend below the axes, where it covers nothing.

    ``gap`` is the distance from the axes in points; it leaves room for the axis label. The legend
    has as many columns as fit, and a new figure grows with its rows. ``band`` is the entry that
    explains the light bands next to lines.
    """
    from matplotlib.container import BarContainer
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    if not entries:  # matplotlib hides names that begin with an underscore
        return
    # Bars before the lines across them.
    entries.sort(key=lambda entry: not isinstance(entry[0], BarContainer))
    if band:
        entries.append((Patch(color=GREY, alpha=0.25, linewidth=0), band))
    below = ax.transAxes + ScaledTranslation(0, -gap / 72, ax.figure.dpi_scale_trans)
    style |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    style |= {"fontsize": 7, "frameon": False, "borderpad": 0, "borderaxespad": 0}
    style |= {"labelspacing": 0.3, "columnspacing": 1}
    # The legend may exceed the axes by 10 %: their labels leave that room on the page.
    for columns in range(len(entries), 0, -1):
        legend = ax.legend(*zip(*entries, strict=True), ncols=columns, **style)
        if legend.get_window_extent().width <= 1.1 * ax.get_window_extent().width:
            break
    if new:
        figure: Any = ax.figure
        rows = math.ceil(len(entries) / columns)
        figure.set_figheight(figure.get_figheight() + 0.13 * rows)  # inches: a line of 7-point text


def line_style(position: int, lines: int, points: int) -> dict[str, Any]:
    """Choose a color, dashes and a marker, so that up to 28 lines can be told apart.

    Lines that coincide stay visible: solid lines lie below dashed and dotted ones, and their
    markers lie side by side. A line has at most 16 markers.
    """
    # At least as many points between two markers as there are lines, or markers would coincide.
    step = max(1, points // 8, min(lines, points // 2))
    dash = position % len(DASHES)
    return {
        "color": COLORS[position % len(COLORS)],
        "linestyle": DASHES[dash],
        "zorder": 2 + dash / 10,  # 2 is matplotlib's default for lines
        "marker": MARKERS[position % len(MARKERS)],
        "markevery": (position * step // lines, step),
        "markersize": 3,
        "linewidth": 0.9,
    }


def check_history(history: object, name: str = "history") -> None:
    """Raise unless ``history`` is a `History`."""
    if not isinstance(history, History):
        found = type(history).__name__
        raise ValueError(f"{name} must be a History, as run returns it, found {found}")


def seeds_of(
    histories: Mapping[str, History | Sequence[History]],
) -> dict[str, Sequence[History]]:
    """The histories of every name as a list, one for each seed."""
    if not isinstance(histories, Mapping) or not histories:
        raise ValueError(f"histories must map names to histories, found {histories!r:.80}")
    groups: dict[str, Sequence[History]] = {}
    for name, value in histories.items():
        group: Sequence[Any] = [value]
        # An empty list is no history either.
        if isinstance(value, list | tuple) and value:
            group = value
        for history in group:
            check_history(history, f"histories[{name!r}]")
        seeds = [history.seed for history in group if history.seed is not None]
        # The same run twice would look as if it had a smaller deviation.
        if len(set(seeds)) < len(seeds):
            found = f"seed {max(seeds, key=seeds.count)} more than once"
            raise ValueError(f"histories[{name!r}] must have different seeds, found {found}")
        groups[name] = group
    return groups
