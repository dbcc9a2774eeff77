"""Fixtures for the tests of benchmarks."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks import racing


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    racing.use_threads(threads)
