"""What all pictures have in common: colours, thin lines, small letters, and legends that cover nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from equipoise.optional import import_optional
from equipoise.simulation import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array: TypeAlias = np.ndarray[Any, Any]

COLUMN = 3.3  # inches
BENIGN, MALICIOUS, GREY, LIGHT = "#0072B2", "#C8102E", "#555555", "#BBBBBB"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#D55E00")  # readable as lines on white
DASHES = ("-", "--", "-.", ":")  # solid first: lines below show through the gaps of the others
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
LABELS = {"error": "test error rate", "asr": "attack success rate", "mse": "mean squared error"}


def pyplot() -> Any:
    """``matplotlib.pyplot``, imported when something is drawn: importing equipoise stays fast."""
    return import_optional("matplotlib.pyplot", "plots")


def axes_for(ax: Axes | None, height: float) -> tuple[Axes, bool]:
    """The given axes, or those of a new figure, and whether they are new; with thin lines and small letters."""
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


def whole_numbers(ax: Axes) -> None:
    """Rounds and clients have no fractions, not even if there is only one of them."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10]))


def drawable(values: Sequence[float]) -> Array:
    """Values with NaN for what is not finite, or so large that matplotlib would make it so."""
    array = np.array(values, dtype=float)
    return np.where(np.abs(array) < 1e150, array, np.nan)


def set_scale(ax: Axes, values: Array, log: bool | None) -> None:
    """A vertical scale from 0, or a logarithmic one."""
    known = values[~np.isnan(values)]
    high, positive = known.max(initial=0), known[known > 0]
    if log is None:
        log = bool(high > 1 and high / 1000 >= positive.min())
    if log and len(positive):
        ax.set_yscale("log")
    elif (known >= 0).all():
        ax.set_ylim(0, 1.04 if 0.5 < high <= 1 else 1.08 * high or 1)


def short(x: float) -> str:
    """Three digits or so, with an exponent only where it helps."""
    return f"{x:,.0f}" if 100 <= abs(x) < 1e5 else f"{x:.3g}"


def legend_below(ax: Axes, new: bool, gap: float = 27, band: str = "", **style: Any) -> None:
    """A legend that covers nothing: under the axes and, by a gap in points, under their labels.

    It has as many columns as fit; a new figure grows with its rows. ``band`` is the entry that
    explains light bands beside lines.
    """
    from matplotlib.container import BarContainer
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    if not entries:  # matplotlib hides names that begin with an underscore
        return
    entries.sort(key=lambda entry: not isinstance(entry[0], BarContainer))  # bars before the lines across them
    if band:
        entries.append((Patch(color=GREY, alpha=0.25, linewidth=0), band))
    below = ax.transAxes + ScaledTranslation(0, -gap / 72, ax.figure.dpi_scale_trans)
    style |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below, "borderaxespad": 0}
    style |= {"fontsize": 7, "frameon": False, "borderpad": 0, "labelspacing": 0.3, "columnspacing": 1}
    for columns in range(len(entries), 0, -1):
        legend = ax.legend(*zip(*entries, strict=True), ncols=columns, **style)
        if legend.get_window_extent().width <= 1.1 * ax.get_window_extent().width:
            break
    if new:
        figure: Any = ax.figure
        figure.set_figheight(figure.get_figheight() + 0.13 * math.ceil(len(entries) / columns))


def line_style(position: int, lines: int, points: int) -> dict[str, Any]:
    """Color, dashes and marker, which tell up to 28 lines apart; at most 16 markers a line.

    Lines that coincide stay visible: solid lines lie below dashed and dotted ones, and markers lie
    side by side.
    """
    # At least as many points from marker to marker as there are lines, or markers would coincide.
    step = max(1, points // 8, min(lines, points // 2))
    dash = position % len(DASHES)
    return {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": DASHES[dash],
        "zorder": 2 + dash / 10,  # 2 is the default of lines
        "marker": MARKERS[position % len(MARKERS)],
        "markevery": (position * step // lines, step),
        "markersize": 3,
        "linewidth": 0.9,
    }


def check_history(history: object) -> None:
    """Raise unless it is one."""
    if not isinstance(history, History):
        raise ValueError(f"history must be a History, as run returns it, found {type(history).__name__}")


def check_histories(histories: Mapping[str, History]) -> None:
    """Raise unless there are histories, by name."""
    if not isinstance(histories, Mapping) or not histories:
        raise ValueError(f"histories must map names to histories, found {histories!r:.80}")
    for name, history in histories.items():
        if not isinstance(history, History):
            expected = "a History, as run returns it"
            found = type(history).__name__
            raise ValueError(f"histories[{name!r}] must be {expected}, found {found}")
