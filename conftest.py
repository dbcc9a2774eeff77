"""What every test and every doctest can rely on."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import torch

import equipoise

pytest.register_assert_rewrite("tests.rule_laws", "tests.cases", "tests.references")

hypothesis.settings.register_profile("equipoise", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("equipoise")

torch.set_num_threads(1)  # for small tensors threads cost more than they give


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def names_in_doctests(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, eq=equipoise)
