"""Bytes and times."""

from __future__ import annotations

import pytest

from equipoise import plots
from equipoise.simulation.history import History
from tests.plots.histories import INF, costing, inside


def test_bars_have_values_and_units() -> None:
    sent, took = plots.cost_bars(
        {"FedAvg": costing(5.6e6, 0.002), "LEARN": costing(56e6, 0.05), "new": History(2)}
    )
    assert [bar.get_width() for bar in sent.patches] == pytest.approx([5.6, 56, 0])
    assert [bar.get_width() for bar in took.patches] == pytest.approx([2, 50, 0])
    assert [text.get_text() for text in sent.texts] == ["5.6", "56", "n/a"]
    assert [text.get_text() for text in took.texts] == ["2", "50", "n/a"]
    assert [text.get_text() for text in sent.get_yticklabels()] == ["FedAvg", "LEARN", "new"]
    assert sent.get_ylim()[0] > sent.get_ylim()[1]  # the first is on top
    assert sent.get_xlabel() == "sent per client\nand round (MB)"
    assert took.get_xlabel() == "aggregation\nper round (ms)"
    assert (sent.get_xscale(), took.get_xscale()) == ("linear", "linear")


@pytest.mark.parametrize(
    ("values", "text", "unit", "scale"),
    [
        ((12.0, 999.0), ["12", "999"], "B", "linear"),
        ((1e3, 2e3), ["1", "2"], "kB", "linear"),
        ((1e3, 2e9), ["1e-06", "2"], "GB", "log"),
        ((1e4, 1e6), ["0.01", "1"], "MB", "log"),
        ((0.0, 0.0), ["0", "0"], "B", "linear"),
        ((0.0, 4e6), ["0", "4"], "MB", "linear"),
        ((INF, 4e6), ["inf", "4"], "MB", "linear"),
    ],
)
def test_units_and_scales(
    values: tuple[float, float], text: list[str], unit: str, scale: str
) -> None:
    ax, _ = plots.cost_bars({"a": costing(values[0], 0.1), "b": costing(values[1], 0.1)})
    assert [one.get_text() for one in ax.texts] == text
    assert ax.get_xlabel().endswith(f"({unit})")
    assert ax.get_xscale() == scale
    assert inside(ax)
