"""Draw the results for one thread: ``python -m benchmarks.picture``, from the root of a clone."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.limits import work_of
from benchmarks.results import Results, load
from benchmarks.workloads import WORKLOADS, Workload, workload_named

# Colors of Okabe and Ito, distinct for color-blind readers; the shapes are distinct in gray.
MARKS: dict[str, dict[str, Any]] = {
    "native": {
        "label": "equipoise, native",
        "color": "#0072B2",
        "marker": "o",
        "s": 38,
        "zorder": 5,
    },
    "torch": {"label": "equipoise, torch", "color": "#56B4E9", "marker": "s", "s": 26, "zorder": 4},
    "naive": {
        "label": "loop in plain torch",
        "color": "#000000",
        "marker": "x",
        "s": 20,
        "linewidths": 1.3,
    },
    "byzfl": {"label": "byzfl", "color": "#D55E00", "marker": "^", "s": 24},
    "flower": {"label": "Flower", "color": "#009E73", "marker": "D", "s": 16},
}
LIMIT_MARK = {"color": "#CC79A7", "marker": "|", "s": 130, "linewidths": 2.2, "zorder": 3}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "equipoise",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.titlesize": 9,
}
SHIFT = {
    "naive": -0.22,
    "flower": 0.22,
}  # up or down: loops over clients often take the same time, and would overlap
COLUMNS = 2


def picture(results: Results) -> Figure:
    """A panel for every workload, and a legend in the last place of the grid."""
    workloads = results.workloads
    rules = results.rules
    rows = math.ceil((len(workloads) + 1) / COLUMNS)
    figure = Figure(
        figsize=(8.4, rows * (0.25 * len(rules) + 0.85)), layout=ConstrainedLayoutEngine(h_pad=0.12)
    )
    axes = figure.subplots(rows, COLUMNS, sharey=True, squeeze=False).flatten()
    for axis, workload in zip(axes, workloads, strict=False):
        panel(axis, workload, rules, results)
    for axis in axes[len(workloads) :]:
        axis.axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[len(workloads)].legend(handles, labels, loc="center", frameon=False, fontsize=10)
    figure.supxlabel("time of one call for all clients", fontsize=9)
    return figure


def panel(axis: Any, workload: str, rules: Sequence[str], results: Results) -> None:
    """Rules from top to bottom, milliseconds from left to right."""
    for candidate, mark in MARKS.items():
        times = {rule: milliseconds(results, workload, rule, candidate) for rule in rules}
        scatter(axis, times, rules, mark, SHIFT.get(candidate, 0))
    copies = {rule: milliseconds(results, workload, rule, "copy") for rule in rules}
    least = {rule: least_milliseconds(results, workload, rule) for rule in rules}
    scatter(axis, least, rules, LIMIT_MARK | {"label": "limit of the machine"})
    known = [copy for copy in copies.values() if copy is not None]
    axis.axvline(
        statistics.median(known), color="0.5", linewidth=1, zorder=0, label="a copy of the models"
    )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda ms, _: f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s")
    axis.set_yticks(range(len(rules)), rules)
    axis.set_ylim(len(rules) - 0.4, -0.6)
    axis.set_title(title(workload), loc="left")
    axis.grid(axis="y", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelbottom=True)
    axis.spines[["top", "right", "left"]].set_visible(False)


def scatter(
    axis: Any,
    values: dict[str, float | None],
    rules: Sequence[str],
    mark: dict[str, Any],
    shift: float = 0,
) -> None:
    known = {rule: value for rule, value in values.items() if value is not None}
    axis.scatter(list(known.values()), [rules.index(rule) + shift for rule in known], **mark)


def milliseconds(results: Results, workload: str, rule: str, candidate: str) -> float | None:
    row = results.find(workload, rule)
    return None if row is None else row.time(candidate)


def least_milliseconds(results: Results, workload: str, rule: str) -> float | None:
    """The least time of a rule on the machine, with the copy that was timed beside it."""
    copy = milliseconds(results, workload, rule, "copy")
    found = workload_named(workload)
    if results.limits is None or copy is None or found is None:
        return None
    return work_of(rule, found).least_ms(results.limits, copy)


def title(workload: str) -> str:
    found = workload_named(workload)
    assert isinstance(found, Workload)
    number = f"{workload}: " if workload in WORKLOADS else ""
    clients = "1 client" if found.n == 1 else f"{found.n:,} clients"
    return f"{number}{clients}, {found.degree} neighbors, d = {found.d:,}"


def draw(source: Path, target: Path) -> None:
    """Without a date, so that the same numbers give the same file."""
    with mpl.rc_context(STYLE):
        metadata = {"Date": None, "Creator": None} if target.suffix == ".svg" else None
        picture(load(source)).savefig(target, metadata=metadata, dpi=110, facecolor="white")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks/results.json"), help="the measurements"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/kernels.svg"), help="an SVG, or another format"
    )
    options = parser.parse_args(arguments)
    draw(options.json, options.out)


if __name__ == "__main__":
    main()
