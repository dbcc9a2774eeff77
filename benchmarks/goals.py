"""Performance goals, and whether they are met; for one thread, except the speed-up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.racing import Row
from benchmarks.results import Results
from benchmarks.scale import SCALE, SCALE_RULES
from benchmarks.workloads import RULES, WORKLOADS

Bars = dict[tuple[str, str], float]  # by workload and rule


def bars(rules: str, *by_workload: float | None) -> Bars:
    """The same for some rules, on workloads 1 to 5; None is no bar."""
    pairs = zip(WORKLOADS, by_workload, strict=True)
    return {
        (workload, rule): bar
        for workload, bar in pairs
        if bar is not None
        for rule in rules.split()
    }


COPIES: Bars = {  # at most so many times the time of a copy of the models
    **bars("FedAvg", 2, 2.2, 2.2, 2.2, 2.2),
    **bars("Balance SCClip UBAR FLTrust", 2.5, 3.5, 3.5, 5, 1.5),
    **bars("Krum", 2.5, 3.5, 6, 4, 1.5),
    **bars("Median TrimmedMean", 2, 4, 2.8, 3.5, 1.2),
}
NAIVE: Bars = {  # at least so many times as fast as the loop in plain torch
    **bars(" ".join(RULES), *[0.95] * len(WORKLOADS)),  # never slower, but for noise
    **bars("Median TrimmedMean", 10, 6, None, 100, None),
    **bars("Balance", 5, 12, None, None, None),
}
BYZFL: Bars = {  # at least so many times as fast as byzfl
    **bars(
        "FedAvg", 10, 10, 10, 10, None
    ),  # a mean for one client is one pass over its messages, whoever takes it
    **bars("Krum", 60, 200, None, None, None),
    **bars("Median TrimmedMean", 150, None, None, 1500, None),
}
LARGER_THAN_CACHE = ("2", "3", "4", "5")
SPEED_UP = 1.6  # at least, of two threads, on these
GROWTH = 1.5  # at most, of the time per edge and parameter with many clients
MOST_MIB = 256  # beyond input and output


@dataclass(frozen=True)
class Goal:
    """A value that should be in a range; None was not measured."""

    name: str
    value: float | None
    low: float = -math.inf
    high: float = math.inf

    @property
    def missed(self) -> bool:
        return self.value is not None and not self.low <= self.value <= self.high

    def __str__(self) -> str:
        wanted = f">= {self.low:g}" if self.high == math.inf else f"<= {self.high:g}"
        found = "nothing" if self.value is None else f"{self.value:.3g}"
        return f"{self.name}: wanted {wanted}, found {found}"


def goals(results: Results) -> Iterator[Goal]:
    for workload in WORKLOADS:
        for rule in RULES:
            yield from goals_of(workload, rule, results)
    for large in SCALE:
        for rule in SCALE_RULES:
            row = results.find_scale(large.name, rule)
            where = f"scale {large.name}, {rule}"
            yield Goal(
                f"{where}, time per edge and parameter / workload 3",
                row.growth if row else None,
                high=GROWTH,
            )
            yield Goal(f"{where}, MiB", row.memory_mib if row else None, high=MOST_MIB)


def goals_of(workload: str, rule: str, results: Results) -> Iterator[Goal]:
    key = (workload, rule)
    where = f"workload {workload}, {rule}"
    row = results.find(*key) or Row(workload, rule, ms={})
    if key in COPIES:
        yield Goal(f"{where}, native/copy", row.ratio("native", "copy"), high=COPIES[key])
    yield Goal(f"{where}, naive/ours", row.ratio("naive", "ours"), low=NAIVE[key])
    if key in BYZFL:
        yield Goal(f"{where}, byzfl/native", row.ratio("byzfl", "native"), low=BYZFL[key])
    if workload in LARGER_THAN_CACHE:
        yield Goal(f"{where}, two threads", row.speed_up("native", 2), low=SPEED_UP)
    yield Goal(f"{where}, MiB", row.memory_mib, high=MOST_MIB)


def report_goals(results: Results) -> bool:
    """Print what is missed; whether all is well."""
    checked = list(goals(results))
    missed = [goal for goal in checked if goal.missed]
    unknown = sum(goal.value is None for goal in checked)
    print(
        f"\ngoals: {len(checked) - len(missed) - unknown} met, {len(missed)} missed,"
        f" {unknown} not measured"
    )
    for goal in missed:
        print(f"  missed: {goal}")
    return not missed
