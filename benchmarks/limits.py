"""The least time of a rule on this machine: what it reads and writes, and its arithmetic.

The rates come from `machine_limits.c`, compiled and run on this machine, the speed of memory from a
copy of the models in the same race. Models that fit the cache are copied fastest row by row, which
no kernel can do: it needs some columns of all rows at a time. So this order is measured as well.
Nothing overlaps here, so that a kernel which computes while it waits for memory could be faster;
none is twice as fast.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.workloads import Workload
from equipoise.kernels._selection_networks import Network, middle, sorting

SOURCE = Path(__file__).with_name("machine_limits.c")
RATE = re.compile(r"(.+?) +(\d+) floats per ns in (ymm|zmm)")
NAMES = {
    "vfmadd231ps": "products",
    "vsubps and vfmadd231ps": "differences",
    "vpminsd": "comparisons",
    "vfmadd231ps from L1": "loaded products",
}
COPIES = re.compile(r"copied in ([0-9.]+) ms; 256 columns at a time ([0-9.]+) ms")
# Models and results of this size fit a last-level cache of 32 MiB, as those that are copied in C.
CACHED_BYTES = 1 << 24

EQUAL_WEIGHTS = (
    *("FedAvg", "Balance", "BalanceMedian", "UBAR"),
    *("Gossip", "GTS", "NNA", "IOS", "FABA"),
)
ORDER_STATISTICS = ("Median", "TrimmedMean", "BridgeT", "BridgeM")
ONE_PASS = ("FedAvg", "Gossip", *ORDER_STATISTICS)
CHOOSE_ONE = ("Krum", "BridgeK")
# The pairs of these are those of the messages; own is one more in the second group.
BETWEEN_MESSAGES = ("Krum", "FABA")
BETWEEN_ALL = ("BridgeK", "IOS")


@cache
def measured_limits() -> dict[str, float] | None:
    """Operations per ns, with the wider vectors of the CPU; None if they cannot be measured.

    ``strips`` is how many times longer a copy takes if some columns of all rows are copied at a
    time.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        try:
            subprocess.run(["cc", "-O2", str(SOURCE), "-o", str(program)], check=True)
            text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
    rates = [(NAMES.get(name), float(rate)) for name, rate, _ in RATE.findall(text)]
    # The program measures narrow vectors first, and wide ones if there are any.
    limits = {name: rate for name, rate in rates if name is not None}
    by_row, in_strips = COPIES.findall(text)[0]
    return limits | {"strips": float(in_strips) / float(by_row)}


@dataclass(frozen=True)
class Work:
    """The work of a rule, as counts of floats."""

    copies: float  # of the models: half for each time that they are read, half for the results
    products: float = 0.0
    differences: float = 0.0  # each is subtracted, and its square added
    comparisons: float = 0.0  # minima and maxima
    is_cached: bool = False  # whether the models fit the last-level cache

    def least_ms(self, limits: dict[str, float], copy_ms: float) -> float:
        """The least time; stored results of earlier versions have fewer limits."""
        strips = limits.get("strips", 1.0) if self.is_cached else 1.0
        arithmetic = (
            self.products / limits.get("loaded products", limits["products"])
            + 2 * self.differences / limits["differences"]
            + self.comparisons / limits["comparisons"]
        )
        return self.copies * strips * copy_ms + 1e-6 * arithmetic


def work_of(rule: str, workload: Workload) -> Work:
    """The work of a rule for all clients, where receivers share what they can."""
    written = 0.5 if workload.n > 1 else 0.5 / (workload.degree + 1)
    rows = workload.n if workload.n > 1 else workload.degree + 1
    cached = 4 * rows * workload.d <= CACHED_BYTES
    if rule in ORDER_STATISTICS:
        comparisons = _comparisons(rule, workload) * workload.d
        return Work(0.5 + written, comparisons=comparisons, is_cached=cached)
    products = _sums(rule, workload) * workload.d
    pairs = _pairs(rule, workload) * workload.d
    reads = 0.5 if rule in ONE_PASS else 1.0
    # A scalar product is one product, where a distance is a difference and a product.
    if rule == "FLTrust":
        return Work(reads + written, products=products + pairs, is_cached=cached)
    return Work(reads + written, products, pairs, is_cached=cached)


def _is_complete(workload: Workload) -> bool:
    return 1 < workload.n == workload.degree + 1


def _sums(rule: str, workload: Workload) -> float:
    """Models that are added."""
    n = workload.n
    if rule in CHOOSE_ONE:
        return 0.0
    # Receivers that lack one message share the sums of blocks: each adds a block and all blocks.
    if _is_complete(workload) and rule in EQUAL_WEIGHTS:
        return n * 2 * n**0.5
    return n * workload.degree


def _pairs(rule: str, workload: Workload) -> float:
    """Pairs of models that are compared."""
    n, k = workload.n, workload.degree
    if rule in ("FedAvg", "Gossip"):
        return 0.0
    if rule in BETWEEN_MESSAGES + BETWEEN_ALL:
        models = k if rule in BETWEEN_MESSAGES else k + 1
        within = n * models * (models - 1) / 2
        return min(within, n * (n - 1) / 2) if n > 1 else within
    # A pair of neighbors is measured once for both.
    return n * k / 2 if n > 1 else k


def _comparisons(rule: str, workload: Workload) -> float:
    n, k = workload.n, workload.degree
    trim = (k - 1) // 2 if rule in ("Median", "BridgeM") else workload.tolerated
    if _is_complete(workload):
        return _size(sorting(n, trim)) + 2 * n
    return n * _size(middle(k, trim))


def _size(network: Network) -> int:
    return sum(step.low + step.high for step in network.steps)
