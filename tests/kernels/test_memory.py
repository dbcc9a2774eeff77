"""Memory per message in a complete graph."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import re, sys, warnings
from pathlib import Path
import torch
import equipoise as eq

warnings.simplefilter("ignore")
torch.set_num_threads(2)
rule = eval(sys.argv[1])
losses = lambda models, clients: models.square().sum(1)
inputs = {"t": 0, "total": 9, "tolerated": 1, "loss_of": losses}

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

small = torch.randn(12, 3000)
rule(small, eq.Topology.complete(12).deliver(small), **inputs)  # loads code and starts threads
models = torch.randn(60) + 0.05 * torch.randn(600, 60)
inbox = eq.Topology.complete(600).deliver(models)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
before = peak()
out = rule(models, inbox, **inputs)
output = sum(part.nbytes for part in (out.model, out.weights) if part is not None)
print((peak() - before - output) / inbox.mask.numel())
"""
# Bytes per message, 1.3 to 2 times the least measured: a rule that needs twice the memory fails.
LIMITS = {"eq.Balance()": 195, "eq.UBAR()": 190, "eq.Krum()": 85, "eq.FedAvg()": 145}


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("rule", LIMITS)
def test_bytes_per_message(rule: str) -> None:
    # With the threads that users have: pytest itself runs with one.
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", SCRIPT, rule]
    peaks = []
    # Where threads allocate at the same time can only add to the peak: 127 to 286 bytes for UBAR.
    while len(peaks) < 10 and min(peaks, default=LIMITS[rule]) >= LIMITS[rule]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    assert min(peaks) < LIMITS[rule], peaks
