"""Time of whole rounds: contenders take turns in one process."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.round_contenders import Contender

Name = TypeVar("Name")
# The first rounds load code and fill caches; the bars are for the rounds after them.
WARM_UP = 3


@dataclass
class Turns:
    """Milliseconds and page faults per round, one number for each turn."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """CPU milliseconds of the best turn: other load on the machine only adds time."""
        return min(self.cpu)

    @property
    def median(self) -> float:
        return statistics.median(self.cpu)

    @property
    def spread(self) -> float:
        """The interquartile range of the turns, as a share of their median."""
        if len(self.cpu) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.cpu, n=4, method="inclusive")
        return (high - low) / self.median

    @property
    def usual_faults(self) -> float:
        return statistics.median(self.faults)


def race(contenders: Mapping[Name, Contender], turns: int, rounds: int) -> dict[Name, Turns]:
    """Let all take turns of some rounds, every other time in reverse order."""
    for contender in contenders.values():
        for _ in range(WARM_UP):
            contender.round()
    found = {name: Turns() for name in contenders}
    order = list(contenders)
    for turn in range(turns):
        for name in order[:: -1 if turn % 2 else 1]:
            take_turn(contenders[name], rounds, found[name])
    return found


def take_turn(contender: Contender, rounds: int, into: Turns) -> None:
    faults = page_faults()
    wall = time.perf_counter()
    cpu = time.process_time()
    for _ in range(rounds):
        contender.round()
    into.cpu.append(1e3 * (time.process_time() - cpu) / rounds)
    into.wall.append(1e3 * (time.perf_counter() - wall) / rounds)
    into.faults.append((page_faults() - faults) / rounds)


def page_faults() -> int:
    """Pages that this process touched for the first time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def phases(contender: Any, rounds: int) -> dict[str, float]:
    """Median milliseconds of each phase of the simulator."""
    records = [contender.round().seconds for _ in range(rounds)]
    return {
        phase: 1e3 * statistics.median(record.get(phase, 0.0) for record in records)
        for phase in records[0]
    }
