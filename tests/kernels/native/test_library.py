"""Opening the C library, and calling it from threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

from equipoise.kernels.native import _library as library


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the library even if EQUIPOISE_NATIVE is 0."""
    opened = library._open()
    if opened is None:
        pytest.skip("equipoise was installed without a compiler")
    monkeypatch.setattr(library, "LIBRARY", opened)


@pytest.mark.parametrize("value", ["0", None])
def test_environment(value: str | None) -> None:
    """EQUIPOISE_NATIVE=0 turns the library off; the fused convolution is never loaded by import."""
    environment = {name: x for name, x in os.environ.items() if name != "EQUIPOISE_NATIVE"}
    environment |= {} if value is None else {"EQUIPOISE_NATIVE": value}
    script = """
import sys, equipoise
print(equipoise.native_available, "equipoise.training._fused._convolution" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(value != "0"), "False"]


@pytest.mark.parametrize("damage", ["damaged", "of another version"])
def test_unusable_library(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not opened, and a warning names it."""
    if damage == "damaged":
        place = tmp_path / "_library.py"
        (tmp_path / f"_kernels{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
        monkeypatch.setattr(library, "__file__", str(place))
    else:
        monkeypatch.setitem(library.SIGNATURES, "not_yet_written", ())
    with pytest.warns(UserWarning, match="is not used; install equipoise again"):
        assert library._open() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_threads_after_fork() -> None:
    """Threads of the parent do not exist in the child, which would wait for ever."""
    parents = library._pool(2)
    parents.submit(int).result()
    child = os.fork()
    if child == 0:
        os._exit(
            0
            if library._pool(2) is not parents and library._pool(2).submit(int).result() == 0
            else 1
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_each_part_runs_once() -> None:
    done: list[int] = []

    def run(part: int) -> int:
        done.append(part)
        return 1

    assert library.in_threads(run, 16, library.SINGLE_THREADED) == [1] * 16
    assert sorted(done) == list(range(16))


@pytest.mark.usefixtures("three_threads")
def test_threads_stop_after_error() -> None:
    """A kernel that still runs would write to memory that the caller has freed."""
    begun: list[int] = []
    ended: list[int] = []
    others = threading.Event()

    def run(part: int) -> int:
        if threading.current_thread() is threading.main_thread():
            assert others.wait(60)
            raise KeyboardInterrupt
        begun.append(part)
        others.set()
        time.sleep(0.02)
        ended.append(part)
        return 1

    with pytest.raises(KeyboardInterrupt):
        library.in_threads(run, 6, library.SINGLE_THREADED)
    left = list(begun)
    assert left
    assert sorted(left) == sorted(ended)
    time.sleep(0.1)
    assert begun == left
