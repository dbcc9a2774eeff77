"""Tables of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from equipoise import plots
from tests.plots.histories import INF, NAN


def test_cells_have_shade_and_text() -> None:
    ax = plots.heatmap(
        {"FedAvg": {"none": 0.05, "Gaussian": 0.9}, "Balance": {"none": 0.06, "LIE": NAN}},
        label="Max.TER",
    )
    assert [(text.get_position(), text.get_text()) for text in ax.texts] == [
        ((0, 0), "0.05"),
        ((1, 0), "0.90"),
        ((0, 1), "0.06"),
        ((2, 1), "nan"),
    ]
    shades = ax.images[0].get_array()
    assert shades is not None
    assert np.ma.getmaskarray(shades).tolist() == [[False, False, True], [False, True, False]]
    assert np.ma.filled(shades, -1).tolist() == [[0.05, 0.9, -1], [0.06, -1, 1]]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["none", "Gaussian", "LIE"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["FedAvg", "Balance"]
    assert ax.get_xlabel() == "Max.TER"


@pytest.mark.parametrize(
    ("values", "shades", "texts"),
    [
        ((1.0, 100.0, 1e4), [0, 0.5, 1], ["1", "100", "10,000"]),
        ((0.1, INF, 1e3), [0, 1, 1], ["0.1", "inf", "1,000"]),
        ((0.0, 2.0, 4.0), [0, 0.5, 1], ["0", "2", "4"]),
        ((5.0, 5.0, NAN), [0, 0, 1], ["5", "5", "nan"]),
        ((NAN, INF, -INF), [1, 1, 1], ["nan", "inf", "-inf"]),
    ],
)
def test_shades_of_other_values(
    values: tuple[float, ...], shades: list[float], texts: list[str]
) -> None:
    ax = plots.heatmap({"Krum": dict(zip("abc", values, strict=True))})
    assert np.ma.filled(ax.images[0].get_array(), -1)[0].tolist() == pytest.approx(shades)
    assert [text.get_text() for text in ax.texts] == texts


def test_frames_are_tables() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"none": [0.05, 0.06], "Gaussian": [0.9, NAN]}, index=["FedAvg", "Balance"]
    )
    ax = plots.heatmap(frame)
    assert [text.get_text() for text in ax.texts] == ["0.05", "0.90", "0.06", "nan"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["none", "Gaussian"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["FedAvg", "Balance"]
    nullable = pandas.DataFrame({0.1: pandas.array([0.5, None], dtype="Float64")})
    ax = plots.heatmap(nullable)
    assert [text.get_text() for text in ax.texts] == ["0.50", "nan"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0.1"]


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ({"data": []}, r"results must hold a value .* found \{\}"),
        (
            {"data": [[0.1], [0.2]], "index": ["a", "a"]},
            r"results.index must be unique, found \['a', 'a'\]",
        ),
        ({"data": [[0.1, 0.2]], "columns": ["a", "a"]}, r"results.columns must be unique, found"),
        ({"data": [["x"]]}, r"results\[0\]\[0\] must be a number, found 'x'"),
    ],
)
def test_bad_frames_are_rejected(frame: dict[str, Any], text: str) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=text):
        plots.heatmap(pandas.DataFrame(**frame))


def test_large_numbers_fit() -> None:
    values = (1.46e6, -2.5e5, 99_999.0, 1e108, 12.5, 1e-310, -1e308, 1.7e308)
    ax = plots.heatmap({"Krum": {f"attack {i}": x for i, x in enumerate(values)}})
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.texts[:4]] == ["1.5e6", "-2.5e5", "99,999", "1.0e108"]
    cell = ax.get_window_extent().width / len(values)
    assert max(text.get_window_extent().width for text in ax.texts) < 1.2 * cell


def test_text_contrasts_with_shade() -> None:
    def luminance(color: Any) -> float:
        channels = np.array(to_rgba(color)[:3])
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    ax = plots.heatmap({"Krum": {str(i): i / 50 for i in range(51)}})
    for text, shade in zip(ax.texts, np.linspace(0, 1, 51), strict=True):
        dark, light = sorted([luminance(text.get_color()), luminance(ax.images[0].cmap(shade))])
        assert (light + 0.05) / (dark + 0.05) > 4  # contrast as in WCAG 2
