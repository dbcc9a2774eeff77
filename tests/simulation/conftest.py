"""Fixtures of several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.checkpoint_runs import (
    trained,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.npz"


@pytest.fixture
def small(path: Path) -> Path:
    trained().run(2, checkpoint=path)
    return path
