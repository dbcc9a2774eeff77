"""Tables of results as heatmaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from equipoise.plots._style import AnyArray, axes_for, label_axes, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


class MeanTable(Protocol):
    """Means and standard deviations, such as ``results.table(...)`` of a sweep.

    Cells that are means of no seed are missing.
    """

    @property
    def mean(self) -> DataFrame: ...
    @property
    def sd(self) -> DataFrame: ...
    @property
    def count(self) -> DataFrame: ...


def heatmap(
    results: Mapping[str, Mapping[str, float]] | DataFrame | MeanTable,
    ax: Axes | None = None,
    *,
    sd: Mapping[str, Mapping[str, float]] | DataFrame | None = None,
    label: str = "max. test error rate",
) -> Axes:
    """Draw a table of results, ``results[rule][attack]``; darker cells are worse.

    ``results`` may also be a ``pandas.DataFrame`` with rules as index and attacks as columns.
    ``sd`` is such a table of standard deviations: cells then read mean ± sd. The table of a sweep,
    ``results.table(...)``, has both.

    Shades run from 0 to 1 if all values do. Otherwise they run from the smallest to the largest
    value, on a logarithmic scale if all values are positive. Values that are not finite, including
    NaN in a DataFrame, have the darkest shade. Missing values are left white.

    >>> from equipoise import plots
    >>> fedavg = {"none": 0.05, "Gaussian": 0.9}
    >>> balance = {"none": 0.05, "Gaussian": 0.06}
    >>> ax = plots.heatmap({"FedAvg": fedavg, "Balance": balance})
    >>> [text.get_text() for text in ax.texts]
    ['0.05', '0.90', '0.05', '0.06']
    """
    rows = _rows(results)
    if sd is None and _is_mean_table(results):
        rows = _without_missing(rows, _rows(results.count))
        sd = results.sd
    cells = _cells_of(rows, {} if sd is None else _rows(sd, "sd"))
    upright = len(cells.attacks) > 6  # slanted names of more columns would overlap
    height = 0.5 + 0.16 * len(cells.rules)
    if upright:
        height += 0.05 * max(map(len, cells.attacks))
    ax, _ = axes_for(ax, height)
    _draw_cells(ax, cells)
    _label_cells(ax, cells.rules, cells.attacks, upright)
    label_axes(ax, label if sd is None else f"{label}, mean ± sd of seeds", "")
    return ax


class _Cells(NamedTuple):
    """The table as arrays, with a row for each rule and a column for each attack."""

    rules: list[str]
    attacks: list[str]
    values: AnyArray
    sd: AnyArray
    missing: AnyArray


def _cells_of(
    rows: dict[object, dict[object, float]], sd: dict[object, dict[object, float]]
) -> _Cells:
    """The cells of a table and of its standard deviations; values that it lacks are NaN."""
    attacks = list(dict.fromkeys(attack for row in rows.values() for attack in row))
    if not attacks:
        raise ValueError(f"results must hold a value for a rule and an attack, found {rows!r:.80}")
    return _Cells(
        rules=list(map(_name, rows)),
        attacks=list(map(_name, attacks)),
        values=_array(list(rows.values()), attacks),
        sd=_array([sd.get(rule, {}) for rule in rows], attacks),
        missing=np.array([[attack not in row for attack in attacks] for row in rows.values()]),
    )


def _array(rows: Sequence[Mapping[object, float]], attacks: Sequence[object]) -> AnyArray:
    return np.array([[row.get(attack, math.nan) for attack in attacks] for row in rows])


def _name(label: object) -> str:
    """The name of a row or a column, which has several parts in a MultiIndex."""
    return ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _is_mean_table(results: Any) -> TypeGuard[MeanTable]:
    # A DataFrame has these names, too, but as methods.
    return hasattr(results, "sd") and hasattr(getattr(results, "mean", None), "columns")


def _without_missing(
    rows: dict[object, dict[object, float]], counts: dict[object, dict[object, float]]
) -> dict[object, dict[object, float]]:
    """The cells that are means of at least one seed; NaN fails the comparison."""
    return {
        rule: {attack: value for attack, value in row.items() if counts[rule][attack] > 0}
        for rule, row in rows.items()
    }


def _rows(results: Any, argument: str = "results") -> dict[object, dict[object, float]]:
    """Return the numbers by rule and attack, whose names need not be strings."""
    if _is_mean_table(results):
        results = results.mean
    # Not isinstance(results, DataFrame): pandas may not be installed.
    if hasattr(results, "columns") and hasattr(results, "to_dict"):
        for name in ("index", "columns"):
            labels = getattr(results, name)
            if not labels.is_unique:
                raise ValueError(f"{argument}.{name} must be unique, found {list(labels)!r:.80}")
        results = results.astype(object).where(results.notna(), math.nan).to_dict(orient="index")
    if not isinstance(results, Mapping):
        expected = "a DataFrame or a mapping, results[rule][attack]"
        raise ValueError(f"{argument} must be {expected}, found {type(results).__name__}")
    rows = {}
    for rule, row in results.items():
        if not isinstance(row, Mapping):
            found = f"{row!r:.80}"
            raise ValueError(f"{argument}[{rule!r}] must map attacks to numbers, found {found}")
        rows[rule] = {
            attack: _cell_value(f"{argument}[{rule!r}][{attack!r}]", value)
            for attack, value in row.items()
        }
    return rows


def _cell_value(name: str, value: Any) -> float:
    """Convert a value to a float; None becomes NaN, as in JSON."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for a vector
        raise ValueError(f"{name} must be a number, found {value!r:.80}") from None


def _draw_cells(ax: Axes, cells: _Cells) -> None:
    """Shade the cells and write their values into them, except where they are missing."""
    shades, form = _shades(cells.values)
    image = np.ma.array(shades, mask=cells.missing)
    ax.imshow(image, cmap="YlOrBr", vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(~cells.missing):
        text = form(cells.values[row, column])
        if math.isfinite(cells.sd[row, column]):
            text = f"{text} ± {form(cells.sd[row, column])}"
        color = "white" if shades[row, column] > 0.72 else "black"  # a contrast of at least 4
        ax.text(column, row, text, color=color, fontsize=6, ha="center", va="center_baseline")


def _shades(table: AnyArray) -> tuple[AnyArray, Callable[[float], str]]:
    """Map values to shades from 0 to 1; also return the function that formats a value."""
    finite = np.isfinite(table)
    low = table[finite].min(initial=math.inf)
    high = table[finite].max(initial=-math.inf)
    if low >= 0 and high <= 1:  # rates, or no finite value at all
        return np.where(finite, table, 1.0), "{:.2f}".format
    scaled = np.log(table, where=finite, out=np.zeros_like(table)) if low > 0 else table
    scaled = scaled / 2  # the difference of the largest and the smallest float would overflow
    low = scaled[finite].min()
    high = scaled[finite].max()
    return np.where(finite, (scaled - low) / (high - low or 1), 1.0), _format_briefly


def _format_briefly(x: float) -> str:
    """Format with at most six characters, which fit one of seven columns: 1.5e6 for 1,460,000."""
    if 1e5 <= abs(x) < math.inf:
        return f"{x:.1e}".replace("e+0", "e").replace("e+", "e")
    return short(x)


def _label_cells(ax: Axes, rules: list[str], attacks: list[str], upright: bool) -> None:
    """Write rules on the left and attacks above, slanted or upright if they would overlap."""
    ax.set_yticks(range(len(rules)), rules)
    ax.set_xticks(range(len(attacks)), attacks)
    ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    if max(map(len, attacks)) > 40 / len(attacks):  # about 40 characters fit across a column
        turned: dict[str, Any] = {"rotation": 35, "ha": "left", "rotation_mode": "anchor"}
        if upright:
            turned = {"rotation": 90}
        ax.set_xticks(range(len(attacks)), attacks, va="bottom", **turned)
    ax.set_xticks(np.arange(1, len(attacks)) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, len(rules)) - 0.5, minor=True)
    ax.tick_params(which="minor", length=0)
    # Minor ticks lie between the cells; their grid separates the cells.
    ax.grid(which="minor", color="white", linewidth=0.8)
