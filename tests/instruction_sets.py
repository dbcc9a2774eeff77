"""A fixture that runs tests with each instruction set that the C kernels are compiled for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from equipoise.kernels.native import _library
from equipoise.training._fused import _convolution


@pytest.fixture(autouse=True, params=[0, 1, 2], ids=["baseline", "AVX2", "AVX-512"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use each instruction set that this CPU has, whatever EQUIPOISE_NATIVE is."""
    libraries = []
    kernels = (_library, "LIBRARY", _library._open)
    convolution = (_convolution, "CONVOLUTION_LIBRARY", _convolution._open_convolution)
    for module, name, open_library in (kernels, convolution):
        opened = open_library()
        if opened is None:
            pytest.skip("equipoise was installed without a compiler")
        if opened.eq_use_instructions(request.param) != request.param:
            pytest.skip("this CPU does not have these instructions")
        monkeypatch.setattr(module, name, opened)
        libraries.append(opened)
    yield
    for opened in libraries:
        opened.eq_use_instructions(2)
