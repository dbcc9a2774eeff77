"""The example runs under torchrun, which starts it again after a process was killed."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import equipoise as eq

SCRIPT = Path(__file__).parents[3] / "examples" / "many_processes.py"
CLIENTS = 200
ROUNDS = 300
SECONDS = 100.0


def start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    # Otherwise processes that are started again may read addresses of those before them:
    # https://github.com/pytorch/pytorch/issues/135712
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | fresh
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.skipif(not eq.native_available, reason="bits are those of the C kernels")
def test_killed_process_is_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    run = [str(SCRIPT), "--clients", str(CLIENTS), "--rounds", str(ROUNDS)]
    process = start(
        *("--standalone", "--nproc-per-node", "2"),
        *("--max-restarts", "1", "--monitor-interval", "0.1"),
        *run,
        *("--checkpoint", str(folder)),
    )
    try:
        limit = time.monotonic() + SECONDS
        while not list(folder.glob("round-*[1-9]0/.metadata")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.005)
        os.kill(children_of(process.pid)[-1], signal.SIGKILL)
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Signal 9" in errors or "exitcode: -9" in errors
    example = runpy.run_path(str(SCRIPT))
    simulator = example["make_simulator"](CLIENTS)
    simulator.run(ROUNDS)
    assert f"models {example['digest'](simulator.models)}\n" in output
