"""Shares of accepted messages."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import same_color

from equipoise import plots
from equipoise.simulation.history import History, Round
from tests.plots.histories import NAN, accepting, inside, labels


def test_acceptance_in_percent() -> None:
    ax = plots.acceptance_over_rounds(accepting([1.0, 0.5, 0.75], [0.25, NAN, 0.0]))
    benign, malicious = ax.lines
    assert np.asarray(benign.get_ydata()).tolist() == [100, 50, 75]
    assert (
        np.asarray(malicious.get_xdata()).tolist(),
        np.asarray(malicious.get_ydata()).tolist(),
    ) == ([0, 2], [25, 0])
    assert same_color(str(malicious.get_color()), plots.MALICIOUS)
    assert same_color(str(benign.get_color()), plots.BENIGN)
    assert (benign.get_linestyle(), malicious.get_linestyle()) == ("-", "--")
    assert benign.get_marker() != malicious.get_marker()
    assert labels(ax) == ["benign", "malicious"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("round", "messages accepted (%)")


def test_many_rounds_are_averaged() -> None:
    ax = plots.acceptance_over_rounds(accepting([0.0, 1.0] * 500, [0.5] * 1000))
    xs, ys = (np.asarray(data) for data in ax.lines[0].get_data())
    assert xs.tolist() == [4.5 + 10 * i for i in range(100)]
    assert ys.tolist() == [50.0] * 100
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0, 100)
    assert labels(ax) == ["benign", "malicious", "min. to max. of adjacent rounds"]


def test_missing_sides_and_messages() -> None:
    alone = History(2, rounds=[Round(0, values={"accepted_benign": 1.0})])
    assert labels(plots.acceptance_over_rounds(alone)) == ["benign"]
    silent = plots.acceptance_over_rounds(accepting([NAN, NAN], [NAN, NAN]))
    assert [len(np.asarray(line.get_xdata())) for line in silent.lines] == [0, 0]
    assert inside(silent)
