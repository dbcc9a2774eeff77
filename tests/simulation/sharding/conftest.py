"""The pool of processes, started once for all modules that a worker of pytest runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.sharding.pool import Pool


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(tmp_path_factory.mktemp("ranks")) as started:
        yield started
