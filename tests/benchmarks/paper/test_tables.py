"""The settings and published figures of the tables."""

from __future__ import annotations

import math
import re
import shlex

import pytest

from benchmarks.paper import cli, published
from benchmarks.paper.setting import Setting
from benchmarks.paper.tables import TABLES, Table


@pytest.mark.parametrize("name", TABLES)
def test_cells_print_their_command(name: str) -> None:
    for _, _, setting in TABLES[name].cells():
        words = shlex.split(str(setting))
        assert words[:4] == ["python", "-m", "benchmarks.paper", "run"]
        assert parsed(words[4:]) == setting


def parsed(words: list[str]) -> Setting:
    """Parse options into a setting."""
    found: list[Setting] = []
    original = cli.commands.run_one
    try:
        cli.commands.run_one = lambda setting, *_: found.append(setting) or 0  # type: ignore[assignment,func-returns-value]
        assert cli.main(["run", *words, "--results", "."]) == 0
    finally:
        cli.commands.run_one = original
    return found[0]


def test_slugs_are_unique() -> None:
    settings = {setting for table in TABLES.values() for _, _, setting in table.cells()}
    assert len({setting.slug for setting in settings}) == len(settings)
    assert all(re.fullmatch(r"[\w-]+/[\w.,=()-]+", setting.slug) for setting in settings)


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.figures])
def test_figures_belong_to_cells(name: str) -> None:
    table: Table = TABLES[name]
    cells = {(row, column) for row, column, _ in table.cells()}
    assert cells & set(table.figures)
    if table.figures is not published.SENTENCES and name not in ("baselines",):
        assert set(table.figures) <= cells


def test_published_figures() -> None:
    assert published.MNIST["TrimmedMean", "Backdoor"] == (0.83, 0.72)
    assert published.SYNTHETIC["FedAvg", "Gaussian"] == (math.inf,)
    assert len(published.MNIST) == len(published.HAR) == 72
    assert len(published.SYNTHETIC) == 63
    assert (
        TABLES["noise-har"].figures["SCClip", "FeatureNoise(std=1000)"]
        == published.HAR["SCClip", "FeatureNoise"]
        == (0.13,)
    )
