"""Histories to draw, and questions about what was drawn."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes

from equipoise.simulation.history import History, Round

NAN = math.nan
INF = math.inf
RULES = [
    *("FedAvg", "Krum", "TrimmedMean", "Median", "FLTrust", "UBAR", "LEARN", "SCClip"),
    *("Balance", "Balance(kappa=0)", "BalanceMedian"),
]


def history_of(
    *errors: tuple[float, ...],
    malicious: tuple[int, ...] = (0,),
    metric: str = "error",
    every: int = 1,
) -> History:
    """A history with the given errors: one tuple per round, one value per client."""
    rounds = [Round(every * i, {metric: values}) for i, values in enumerate(errors)]
    return History(len(errors[0]), malicious, rounds=rounds)


def accepting(benign: list[float], malicious: list[float]) -> History:
    pairs = enumerate(zip(benign, malicious, strict=True))
    return History(
        4,
        [0],
        rounds=[
            Round(t, values={"accepted_benign": b, "accepted_malicious": m}) for t, (b, m) in pairs
        ],
    )


def costing(sent: float, took: float) -> History:
    return History(2, rounds=[Round(0, values={"bytes": sent}, seconds={"aggregate": took})])


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def inside(ax: Axes) -> bool:
    """Whether everything lies within the page."""
    figure: Any = ax.figure
    figure.canvas.draw()
    box = figure.get_tightbbox()
    page = figure.get_size_inches()
    return bool(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page[0] and box.y1 <= page[1])


def positions(n: int) -> dict[int, tuple[float, float]]:
    return {i: (float(i), float(i * i)) for i in range(n)}
