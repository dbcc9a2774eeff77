"""No test of a figure opens a window or changes matplotlib's settings."""

from collections.abc import Iterator

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def isolated_matplotlib() -> Iterator[None]:
    plt.switch_backend("agg")
    before = mpl.rcParams.copy()
    yield
    plt.close("all")
    assert mpl.rcParams == before
