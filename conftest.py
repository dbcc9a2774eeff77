"""Settings of all tests and doctests."""

from __future__ import annotations

import os
from typing import Any

# Before torch starts its threads: for small tensors they cost more than they give, and each worker
# of pytest and each process that a test starts would have its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

import equipoise

pytest.register_assert_rewrite("tests.rule_laws", "tests.cases", "tests.references")

hypothesis.settings.register_profile("equipoise", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("equipoise")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def names_in_doctests(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, eq=equipoise)
