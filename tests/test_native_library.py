"""The library of the kernels in C: whether it is used, and by which process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from equipoise.kernels import native


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened whatever the environment says."""
    library = native._open()
    if library is None:
        pytest.skip("equipoise was installed without a compiler")
    monkeypatch.setattr(native, "LIBRARY", library)


@pytest.mark.parametrize("wish", ["0", "1", None])
def test_the_environment_decides(wish: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "EQUIPOISE_NATIVE"}
    environment |= {} if wish is None else {"EQUIPOISE_NATIVE": wish}
    done = subprocess.run(
        [sys.executable, "-c", "import equipoise; print(equipoise.native_available)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(wish != "0")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    """Those of the parent stay behind: a child that waited for them would wait for ever."""
    parents = native._pool(2)
    parents.submit(int).result()
    child = os.fork()
    if child == 0:
        os._exit(0 if native._pool(2) is not parents and native._pool(2).submit(int).result() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
