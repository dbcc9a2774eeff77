"""Pictures of graphs and of runs, to the width of a paper's column.

Every function draws into ``ax``, or into a new figure 3.3 inches wide, and returns the axes; save it with
``ax.figure.savefig("name.pdf")``. Nothing is shown, and no setting of matplotlib is changed. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; what is malicious is red, and has a shape of its own.
Needs matplotlib: ``pip install "equipoise[plots]"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from equipoise.arguments import Clients, as_mask
from equipoise.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from equipoise.topology import Topology

Array: TypeAlias = np.ndarray[Any, Any]

COLUMN = 3.3  # inches
BENIGN, MALICIOUS, GREY, LIGHT = "#0072B2", "#C8102E", "#555555", "#BBBBBB"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#D55E00")  # readable as lines on white
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
LABELS = {"error": "test error rate", "asr": "attack success rate", "mse": "mean squared error"}


# Graphs


def graph(
    topology: Topology,
    malicious: Clients | None = None,
    ax: Axes | None = None,
    *,
    layout: str | Mapping[int, Sequence[float]] = "circle",
) -> Axes:
    """Who hears whom: benign clients are blue discs, malicious ones are red squares with red edges.

    ``layout`` is ``"circle"``, ``"spring"`` (always the same for the same graph), or a position for each client. An
    edge without its reverse is an arrow from sender to receiver. Self-loops are not drawn.

    >>> from equipoise import plots
    >>> ax = plots.graph(eq.Topology.ring(5), malicious=[2])
    >>> ax.get_legend_handles_labels()[1]
    ['benign', 'malicious']
    """
    liars = as_mask(malicious, topology.n).cpu().numpy()
    places = _places(topology, layout)
    ax, new = _axes(ax, COLUMN)
    box = ax.get_window_extent()
    side = min(box.width, box.height) * 72 / ax.figure.dpi  # points
    size = float(np.clip(0.65 * math.pi * side / topology.n, 2, 13))
    _draw_edges(ax, topology.edges().tolist(), places, liars, size)
    _draw_clients(ax, places, liars, size)
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.set_axis_off()
    if liars.any():
        _legend_below(ax, new, gap=0, markerscale=6 / size, handletextpad=0.1)
    return ax


def _places(topology: Topology, layout: str | Mapping[int, Sequence[float]]) -> Array:
    """(n, 2) positions of the clients."""
    n = topology.n
    if layout == "circle":
        angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if layout == "spring":
        import networkx as nx

        layout = nx.spring_layout(topology.to_networkx(), seed=0)
    if not isinstance(layout, Mapping) or set(layout) != set(range(n)):
        expected = f'"circle", "spring" or a position for each of the clients 0 to {n - 1}'
        raise ValueError(f"layout must be {expected}, found {layout!r:.80}")
    return np.array([layout[client] for client in range(n)], dtype=float)


def _draw_edges(ax: Axes, edges: list[list[int]], places: Array, liars: Array, size: float) -> None:
    from matplotlib.collections import LineCollection

    pairs = {(u, v) for u, v in edges if u != v}
    mutual = sorted((u, v) for u, v in pairs if u < v and (v, u) in pairs)
    width = float(np.clip(80 / max(len(pairs), 1), 0.25, 0.8))
    for red, colour in ((False, LIGHT), (True, MALICIOUS)):
        lines = [(places[u], places[v]) for u, v in mutual if bool(liars[u] or liars[v]) == red]
        ax.add_collection(LineCollection(lines, colors=colour, linewidths=width, alpha=0.8, zorder=1))
    for u, v in sorted((u, v) for u, v in pairs if (v, u) not in pairs):
        style = {"color": MALICIOUS if liars[u] else GREY, "linewidth": width, "shrinkA": size / 2, "shrinkB": size / 2}
        arrow = {"arrowstyle": "-|>,head_width=0.12,head_length=0.3", **style}
        ax.annotate("", places[v], places[u], arrowprops=arrow, zorder=1)


def _draw_clients(ax: Axes, places: Array, liars: Array, size: float) -> None:
    """Clients as markers of a size in points, with their ids if these are readable."""
    for name, chosen, colour, marker, scale in (
        ("benign", ~liars, BENIGN, "o", 1.0),
        ("malicious", liars, MALICIOUS, "s", 0.9),  # as much ink as a disc
    ):
        if chosen.any():
            ax.scatter(
                places[chosen, 0],
                places[chosen, 1],
                s=(scale * size) ** 2,
                color=colour,
                marker=marker,
                edgecolors="white",
                linewidths=0.4,
                zorder=2,
                label=name,
            )
    if size >= 9:
        for client, (x, y) in enumerate(places):
            ax.text(x, y, str(client), color="white", fontsize=size / 2, ha="center", va="center_baseline", zorder=3)


# Errors


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
    >>> from equipoise.history import History, Round
    >>> ax = plots.error_per_client(History(3, malicious=[2], rounds=[Round(0, {"error": (0.1, 0.2, 0.9)})]))
    >>> [float(bar.get_height()) for bar in ax.patches]
    [0.1, 0.2, 0.9]
    """
    values = _drawable(history.per_client(metric, t))
    ax, new = _axes(ax, 1.8)
    hatched: dict[str, Any] = {"facecolor": "#E4E4E4", "edgecolor": "#999999", "hatch": "/////", "linewidth": 0.3}
    for name, ids, style in (("benign", history.benign, {"color": BENIGN}), ("malicious", history.malicious, hatched)):
        if ids:
            ax.bar(ids, values[list(ids)], width=0.8, label=name, **style)
    _scale(ax, values, log)
    worst = values[list(history.benign)].max()
    if not math.isnan(worst):
        ax.axhline(worst, color=GREY, linewidth=0.8, linestyle="--", label=f"max. over benign: {_short(worst)}")
    _cross_out(ax, np.flatnonzero(np.isnan(values)))
    ax.set_xlim(-0.7, history.n - 0.3)
    _whole_numbers(ax)
    _label(ax, "client", LABELS.get(metric, metric))
    _legend_below(ax, new)
    return ax


def _cross_out(ax: Axes, clients: Array) -> None:
    """Crosses at the upper edge."""
    if len(clients):
        style: dict[str, Any] = {"color": GREY, "marker": "x", "markersize": 4, "linestyle": "none", "clip_on": False}
        ax.plot(clients, np.ones(len(clients)), transform=ax.get_xaxis_transform(), label="not finite", **style)


def error_over_rounds(
    histories: Mapping[str, History], metric: str = "error", ax: Axes | None = None, *, log: bool | None = None
) -> Axes:
    """The maximum of a metric over benign clients, round by round: a line for each history.

    With up to four histories, a light band reaches down to the mean. Where a line ends in a cross, the maximum is not
    finite any more, or beyond 1e150. The scale is logarithmic if ``log`` says so, or by default if values exceed 1 and
    span three decades.

    >>> from equipoise import plots
    >>> from equipoise.history import History, Round
    >>> runs = {"Median": History(2, rounds=[Round(t, {"error": (0.5, 1 / (t + 1))}) for t in range(3)])}
    >>> plots.error_over_rounds(runs).lines[0].get_ydata()
    array([1. , 0.5, 0.5])
    """
    _check_histories(histories)
    series = {name: history.worst(metric) for name, history in histories.items()}
    ax, new = _axes(ax, 1.8)
    for position, (name, (rounds, worst)) in enumerate(series.items()):
        line, style = _drawable(worst), _line_style(position, len(series), len(rounds))
        gone = np.isnan(line)
        ax.plot(rounds, line, label=f"{name} (diverged)" if gone.any() else name, **style)
        ends = np.flatnonzero(~gone[:-1] & gone[1:])
        if len(ends):
            ax.plot(np.array(rounds)[ends], line[ends], "x", color=style["color"], markersize=6, markeredgewidth=1.2)
        if len(series) <= 4:
            mean = _drawable(histories[name].mean(metric)[1])
            ax.fill_between(rounds, mean, line, color=style["color"], alpha=0.15, linewidth=0)
    _scale(ax, np.concatenate([_drawable(worst) for _, worst in series.values()]), log)
    _whole_numbers(ax)
    _label(ax, "round", f"max. {LABELS.get(metric, metric)}")
    _legend_below(ax, new)
    return ax


def _line_style(position: int, lines: int, points: int) -> dict[str, Any]:
    """Colour, dashes and marker, which tell up to 21 lines apart; about eight markers a line."""
    step = max(1, points // 8)
    return {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": DASHES[position // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[position % len(MARKERS)],
        "markevery": (position * step // lines, step),  # markers of lines that coincide lie side by side
        "markersize": 3,
        "linewidth": 0.9,
    }


def acceptance_over_rounds(history: History, ax: Axes | None = None) -> Axes:
    """How many of the messages of benign and of malicious clients were accepted, round by round.

    Rounds in which there was no such message are left out. Of more than 100 rounds the line shows the means of about
    100 spans, and a light band what they hold.

    >>> from equipoise import plots
    >>> from equipoise.history import History, Round
    >>> rounds = [Round(t, values={"accepted_benign": 1.0, "accepted_malicious": 0.25}) for t in range(2)]
    >>> ax = plots.acceptance_over_rounds(History(4, malicious=[0], rounds=rounds))
    >>> [line.get_ydata().tolist() for line in ax.lines]
    [[100.0, 100.0], [25.0, 25.0]]
    """
    sides = {"benign": (BENIGN, "-", "o"), "malicious": (MALICIOUS, "--", "s")}
    recorded = [side for side in sides if any(f"accepted_{side}" in one.values for one in history)]
    if not recorded:
        raise ValueError("history must hold accepted_benign or accepted_malicious: rules without weights have neither")
    ax, new = _axes(ax, 1.8)
    for position, side in enumerate(recorded):
        rounds, low, mean, high = _spans(*history.series(f"accepted_{side}"))
        colour, dash, marker = sides[side]
        style = _line_style(position, 2, len(rounds)) | {"color": colour, "linestyle": dash, "marker": marker}
        ax.plot(rounds, 100 * mean, label=side, **style)
        ax.fill_between(rounds, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
    ax.set_ylim(-4, 104)
    _whole_numbers(ax)
    _label(ax, "round", "messages accepted (%)")
    _legend_below(ax, new)
    return ax


def _spans(rounds: list[int], rates: list[float], spans: int = 100) -> Array:
    """(4, spans): mean round, and minimum, mean and maximum of what is not NaN, in spans of about equal length."""
    known = np.array([pair for pair in zip(rounds, rates, strict=True) if not math.isnan(pair[1])]).reshape(-1, 2)
    parts = np.array_split(known, min(spans, max(len(known), 1)))
    table = [(p[:, 0].mean(), p[:, 1].min(), p[:, 1].mean(), p[:, 1].max()) for p in parts if len(p)]
    return np.array(table).reshape(-1, 4).T


# Costs and tables


def cost_bars(histories: Mapping[str, History], axes: tuple[Axes, Axes] | None = None) -> tuple[Axes, Axes]:
    r"""What a client sends in a round, and how long aggregation takes for all clients: a bar for each history.

    A scale is logarithmic if its bars span two decades.

    >>> from equipoise import plots
    >>> from equipoise.history import History, Round
    >>> runs = {"Krum": History(2, rounds=[Round(0, values={"bytes": 4e6}, seconds={"aggregate": 0.003})])}
    >>> sent, took = plots.cost_bars(runs)
    >>> sent.texts[0].get_text(), sent.get_xlabel()
    ('4', 'sent per client\nand round (MB)')
    >>> took.texts[0].get_text(), took.get_xlabel()
    ('3', 'aggregation\nper round (ms)')
    """
    _check_histories(histories)
    if axes is None:
        size = (COLUMN, 0.6 + 0.15 * len(histories))
        _, axes = _pyplot().subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    sent, took = axes
    summaries = [history.summary() for history in histories.values()]
    values = [summary.get("bytes", math.nan) for summary in summaries]
    _bars(sent, list(histories), values, {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}, "sent per client\nand round")
    values = [summary.get("aggregate_seconds", math.nan) for summary in summaries]
    _bars(took, list(histories), values, {"µs": 1e-6, "ms": 1e-3, "s": 1}, "aggregation\nper round")
    took.tick_params(labelleft=False)
    return sent, took


def _bars(ax: Axes, names: list[str], values: list[float], units: Mapping[str, float], label: str) -> None:
    """Horizontal bars with their values beside them, in the largest unit in which the longest is at least 1."""
    _axes(ax, 0)
    known = [x for x in values if math.isfinite(x) and x > 0] or [1.0]
    unit = max(
        [u for u in units if units[u] <= max(known)] or [min(units, key=units.__getitem__)], key=units.__getitem__
    )
    lengths = [x / units[unit] if math.isfinite(x) else 0.0 for x in values]
    low, high = min(known) / units[unit], max(known) / units[unit]
    ax.barh(range(len(names)), lengths, height=0.7, color=BENIGN)
    if high >= 100 * low:
        ax.set_xscale("log")
        ax.set_xlim(low / 2, high * (high / low) ** 0.6)
    else:
        ax.set_xlim(0, 1.5 * high)
    for row, (length, value) in enumerate(zip(lengths, values, strict=True)):
        place = (max(length, ax.get_xlim()[0]), row)
        text = "n/a" if math.isnan(value) else _short(value / units[unit])
        ax.annotate(text, place, (2, 0), textcoords="offset points", fontsize=6, va="center")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0, labelsize=7 if max(map(len, names)) <= 20 else 6)
    ax.set_xlabel(f"{label} ({unit})", fontsize=7, labelpad=2)


def heatmap(
    results: Mapping[str, Mapping[str, float]], ax: Axes | None = None, *, label: str = "max. test error rate"
) -> Axes:
    """A table of results, ``results[rule][attack]``, in which the darker is the worse.

    Shades run from 0 to 1, or, if there are other values, from the smallest to the largest, by their logarithms if all
    are positive. What is not finite is as dark as it gets; what is missing is left white.

    >>> from equipoise import plots
    >>> ax = plots.heatmap({"FedAvg": {"none": 0.05, "Gaussian": 0.9}, "Balance": {"none": 0.05, "Gaussian": 0.06}})
    >>> [text.get_text() for text in ax.texts]
    ['0.05', '0.90', '0.05', '0.06']
    """
    rules, attacks = list(results), list(dict.fromkeys(attack for row in results.values() for attack in row))
    if not attacks:
        raise ValueError(f"results must hold a value for a rule and an attack, found {results!r:.80}")
    upright = len(attacks) > 6
    ax, _ = _axes(ax, 0.5 + 0.16 * len(rules) + (0.05 * max(map(len, attacks)) if upright else 0))
    missing = np.array([[attack not in results[rule] for attack in attacks] for rule in rules])
    table = np.array([[results[rule].get(attack, math.nan) for attack in attacks] for rule in rules], dtype=float)
    shades, form = _shades(table)
    ax.imshow(np.ma.array(shades, mask=missing), cmap="YlOrBr", vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(~missing):
        text, colour = form(table[row, column]), "white" if shades[row, column] > 0.72 else "black"
        ax.text(column, row, text, color=colour, fontsize=6, ha="center", va="center_baseline")
    _table_labels(ax, rules, attacks, upright)
    _label(ax, label, "")
    return ax


def _shades(table: Array) -> tuple[Array, Callable[[float], str]]:
    """Values as shades from 0 to 1, and how to write a value."""
    finite = np.isfinite(table)
    low, high = table[finite].min(initial=math.inf), table[finite].max(initial=-math.inf)
    if low >= 0 and high <= 1:  # rates, or nothing
        return np.where(finite, table, 1.0), "{:.2f}".format
    scaled = np.log(table, where=finite, out=np.zeros_like(table)) if low > 0 else table
    low, high = scaled[finite].min(), scaled[finite].max()
    return np.where(finite, (scaled - low) / (high - low or 1), 1.0), _short


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


# Style


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('equipoise.plots needs matplotlib: pip install "equipoise[plots]"') from error
    return pyplot


def _axes(ax: Axes | None, height: float) -> tuple[Axes, bool]:
    """The given axes, or those of a new figure, and whether they are new; with thin lines and small letters."""
    new = ax is None
    if ax is None:
        _, ax = _pyplot().subplots(figsize=(COLUMN, height), layout="constrained")
    ax.tick_params(labelsize=7, width=0.5, length=2.5, pad=2)
    ax.tick_params(which="minor", width=0.4, length=1.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.5)
    return ax, new


def _label(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, fontsize=8, labelpad=2)
    ax.set_ylabel(y, fontsize=8, labelpad=3)


def _whole_numbers(ax: Axes) -> None:
    """Rounds and clients have no fractions, not even if there is only one of them."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 2.5, 5, 10]))


def _drawable(values: Sequence[float]) -> Array:
    """Values with NaN for what is not finite, or so large that matplotlib would make it so."""
    array = np.array(values, dtype=float)
    return np.where(np.abs(array) < 1e150, array, np.nan)


def _scale(ax: Axes, values: Array, log: bool | None) -> None:
    """A vertical scale from 0, or a logarithmic one."""
    known = values[~np.isnan(values)]
    high, positive = known.max(initial=0), known[known > 0]
    if log is None:
        log = bool(high > 1 and high / 1000 >= positive.min())
    if log and len(positive):
        ax.set_yscale("log")
    elif (known >= 0).all():
        ax.set_ylim(0, 1.04 if 0.5 < high <= 1 else 1.08 * high or 1)


def _short(x: float) -> str:
    """Three digits or so, with an exponent only where it helps."""
    return f"{x:,.0f}" if 100 <= abs(x) < 1e5 else f"{x:.3g}"


def _legend_below(ax: Axes, new: bool, gap: float = 27, **style: Any) -> None:
    """A legend that covers nothing: under the axes and, by a gap in points, under their labels.

    It has as many columns as fit; a new figure grows with its rows.
    """
    from matplotlib.container import BarContainer
    from matplotlib.transforms import ScaledTranslation

    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    if not entries:  # matplotlib hides names that begin with an underscore
        return
    entries.sort(key=lambda entry: not isinstance(entry[0], BarContainer))  # bars before the lines across them
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


def _check_histories(histories: Mapping[str, History]) -> None:
    if not isinstance(histories, Mapping) or not histories:
        raise ValueError(f"histories must map names to histories, found {histories!r:.80}")
