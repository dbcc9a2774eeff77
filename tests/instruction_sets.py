"""Tests that run with every instruction set that the kernels in C are compiled for: import the fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from equipoise.kernels.native import _library as library


@pytest.fixture(autouse=True, params=[0, 1, 2], ids=["baseline", "AVX2", "AVX-512"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every instruction set that this CPU has."""
    opened = library._open()
    if opened is None:
        pytest.skip("equipoise was installed without a compiler")
    if opened.eq_use_instructions(request.param) != request.param:
        pytest.skip("this CPU does not have them")
    monkeypatch.setattr(library, "LIBRARY", opened)
    yield
    opened.eq_use_instructions(2)
