"""Many clients: whether an edge and a parameter cost as much as with 1,000 clients.

They are compared with workload 3, whose models do not fit into a cache either: 100,000 clients
with 1,000 parameters are as many numbers. Then only n and the length of a row differ. To tell
these two apart, 1,000 clients with the same number of parameters are shown beside it; they are no
bar, because their 4 MB of models are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.memory import measure_memory
from benchmarks.racing import race
from benchmarks.workloads import WORKLOADS, Round, Workload, sized

SCALE = tuple(sized(name) for name in ("10000x10x20000", "100000x10x1000"))
SCALE_RULES = ("FedAvg", "Balance", "Median", "Krum")


@dataclass(frozen=True)
class ScaleRow:
    """Nanoseconds per edge and parameter: many clients, workload 3, and 1,000 clients."""

    workload: str
    rule: str
    large: float
    reference: float
    same_d: float
    memory_mib: float | None = None

    @property
    def growth(self) -> float:
        return self.large / self.reference


def compared(large: Workload) -> dict[str, Workload]:
    """A workload and those of 1,000 clients that it is compared with."""
    same = Workload("same d", 1_000, large.degree, large.d)
    return {"large": large, "reference": WORKLOADS["3"], "same_d": same}


class ScaleRace:
    """The models of a workload and of those it is compared with, made once for all rules."""

    def __init__(self, large: Workload) -> None:
        self.workloads = compared(large)
        self.rounds = {name: Round(workload) for name, workload in self.workloads.items()}

    def measure(self, rule: str, repeats: int, *, memory: bool) -> ScaleRow:
        """One thread; after one warm-up of each they take turns, and the best counts."""
        runs: dict[str, Callable[[], object]] = {
            name: partial(work.ours, rule, out=work.out) for name, work in self.rounds.items()
        }
        for warm_up in runs.values():
            warm_up()
        ms = race(runs, repeats)["1"]
        each = {name: 1e6 * ms[name] / workload.values for name, workload in self.workloads.items()}
        large = self.workloads["large"]
        return ScaleRow(
            large.name, rule, **each, memory_mib=measure_memory(large, rule, 1) if memory else None
        )
