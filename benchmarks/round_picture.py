"""Draw the race of rounds: ``python -m benchmarks.round_picture``, from the root of a clone."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator

from benchmarks.picture import STYLE
from benchmarks.round_results import RoundResults, load
from benchmarks.round_tables import title

# Colors of Okabe and Ito, distinct for color-blind readers; the shapes are distinct in gray.
MARKS: dict[str, dict[str, Any]] = {
    "ours": {"label": "equipoise", "color": "#0072B2", "marker": "o", "s": 42, "zorder": 5},
    "plain": {"label": "plain loop", "color": "#000000", "marker": "x", "s": 24},
    "plain, benign": {
        "label": "plain loop, benign only",
        "color": "#000000",
        "marker": "+",
        "s": 30,
    },
    "channels-last": {"label": "channels last", "color": "#009E73", "marker": "D", "s": 18},
    "channels-last, benign": {
        "label": "channels last, benign only",
        "color": "#009E73",
        "marker": "d",
        "s": 18,
    },
    "vmap": {"label": "vmap", "color": "#E69F00", "marker": "s", "s": 22},
    "vmap, benign": {"label": "vmap, benign only", "color": "#E69F00", "marker": "p", "s": 22},
    "vmap, benign, chunks": {
        "label": "vmap, benign only, in chunks",
        "color": "#CC79A7",
        "marker": "v",
        "s": 24,
    },
    "byzfl": {"label": "plain loop, byzfl's rules", "color": "#D55E00", "marker": "^", "s": 24},
}
COLUMNS = 2
# Milliseconds. Some panels contain no power of ten.
TICKS = [digit * 10**exponent for exponent in range(-3, 6) for digit in (1, 2, 5)]


def picture(results: RoundResults) -> Figure:
    """A panel for each workload and a legend below them."""
    workloads = results.workloads
    rows = math.ceil(len(workloads) / COLUMNS)
    most = max(len(rules_of(results, workload)) for workload in workloads)
    figure = Figure(
        figsize=(8.4, rows * (0.3 * most + 0.75) + 0.6), layout=ConstrainedLayoutEngine(h_pad=0.1)
    )
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axis, workload in zip(axes, workloads, strict=False):
        panel(axis, workload, results)
    for axis in axes[len(workloads) :]:
        axis.axis("off")
    known = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known, loc="outside lower center", ncols=4, frameon=False)
    return figure


def panel(axis: Any, workload: str, results: RoundResults) -> None:
    """Rules from top to bottom, milliseconds from left to right; lines span all turns."""
    rules = rules_of(results, workload)
    for place, rule in enumerate(rules):
        cell = results.find(workload, rule)
        assert cell is not None
        for name, turns in cell.contenders.items():
            axis.scatter(turns.best, place, **MARKS[name])
            ends = (turns.best, max(turns.cpu))
            axis.plot(ends, (place, place), color=MARKS[name]["color"], linewidth=1, alpha=0.6)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(TICKS))
    axis.xaxis.set_major_formatter(lambda ms, _: f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s")
    axis.xaxis.set_minor_formatter(lambda ms, _: "")
    axis.set_yticks(range(len(rules)), rules)
    axis.set_ylim(len(rules) - 0.4, -0.6)
    axis.set_title(title(workload), loc="left")
    axis.grid(axis="y", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)


def rules_of(results: RoundResults, workload: str) -> list[str]:
    return [cell.rule for cell in results.cells if cell.workload == workload]


def draw(source: Path, target: Path) -> None:
    """Without a date, so that the same numbers give the same file."""
    with mpl.rc_context(STYLE):
        metadata = {"Date": None, "Creator": None} if target.suffix == ".svg" else None
        # White, also in dark mode: the marks are chosen for it.
        picture(load(source)).savefig(target, metadata=metadata, dpi=110, facecolor="white")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.round_picture", description=__doc__)
    add = parser.add_argument
    add("--json", type=Path, default=Path("benchmarks/rounds.json"), help="the measurements")
    add("--out", type=Path, default=Path("docs/rounds.svg"), help="an SVG, or another format")
    options = parser.parse_args(arguments)
    draw(options.json, options.out)


if __name__ == "__main__":
    main()
