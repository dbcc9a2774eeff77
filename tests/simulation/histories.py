"""A history to summarize and to write."""

from __future__ import annotations

import math
from typing import Any

from equipoise.simulation.history import History, Round

NAN, INF = math.nan, math.inf


def a_history(**more: Any) -> History:
    """Four clients, one of them malicious and the worst; 40 rounds, evaluated in every fifth."""
    history = History(4, malicious=[1], name="Balance", **more)
    for t in range(40):
        clients = {"error": (1 / (t + 1), 9.0, 2 / (t + 1), 0.0)} if t % 5 == 4 else {}
        values = {
            "consensus": 0.5**t,
            "accepted_benign": 1.0,
            "accepted_malicious": 0.25 * (t % 2),
            "bytes": 100.0 + t,
        }
        history.add(
            Round(
                t,
                clients,
                values,
                {"train": 0.3, "aggregate": 0.1} | ({"measure": 0.8} if clients else {}),
            )
        )
    return history
