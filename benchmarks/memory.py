"""Peak memory, measured in a separate process.

Within one process, an earlier peak, or reused memory, would hide the peak of a call.
"""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.workloads import Round, Workload

MIB = 1 << 20


def measure_memory(workload: Workload, rule: str, threads: int) -> float | None:
    """MiB of the peak beyond input and output, None where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(extra_mib, workload, rule, threads).result()


def extra_mib(workload: Workload, rule: str, threads: int) -> float:
    """Return the peak of resident memory during a call, beyond the start and the output."""
    torch.set_num_threads(threads)
    Round(Workload("warm-up", 6, 3, 10_000)).ours(rule)  # loads code and starts threads
    work = Round(workload)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident_peak()
    out = work.ours(rule)
    output = sum(part.nbytes for part in (out.model, out.weights) if part is not None)
    return max(
        0.0, (resident_peak() - before - output) / MIB
    )  # a small output fits into what was resident before


def resident_peak() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])
