"""Performance goals, and whether they are met; for one thread, except the speed-up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.limits import work_of
from benchmarks.racing import Row, quotient
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
# At most so many copies of the models, or the least time of `limits` if that is longer: no code can
# meet a goal below it.
COPIES: Bars = {
    **bars("FedAvg", 2.5, None, None, None, None),
    **bars("Median TrimmedMean", 4.5, None, None, None, None),
    **bars("Balance SCClip FLTrust", 5, None, None, None, None),
    **bars("Krum", 5.5, None, None, None, None),
}
# At most so many times the least time of `limits`: what the machine needs for the operations of a
# rule. The calls of Python and torch, tens of microseconds each, count as well, so that models that
# fit the cache get more.
LIMIT = 2.5
LIMIT_IN_CACHE = 4.0
LARGER_THAN_CACHE = ("2", "3", "4", "5")
# At least, of the speed-up of a copy with two threads: both share the memory, and a kernel that
# runs at its speed cannot gain more than a copy does.
SHARE_OF_SPEED_UP = 0.75
# At most, of the time per edge and parameter with 10,000 clients, whose strips exceed the
# second-level cache. With 100,000 they exceed the last one: each edge costs an access to memory,
# which no order of the work avoids on a random graph, so there is no goal.
GROWTH = {"10000x10x20000": 2.5}
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
            if large.name in GROWTH:
                yield Goal(
                    f"{where}, time per edge and parameter / workload 3",
                    row.growth if row else None,
                    high=GROWTH[large.name],
                )
            yield Goal(f"{where}, MiB", row.memory_mib if row else None, high=MOST_MIB)


def goals_of(workload: str, rule: str, results: Results) -> Iterator[Goal]:
    key = (workload, rule)
    where = f"workload {workload}, {rule}"
    row = results.find(*key) or Row(workload, rule, ms={})
    yield Goal(f"{where}, native/limit", over_limit(row, results), high=limit_of(workload))
    if key in COPIES:
        most = most_copies(row, results)
        yield Goal(f"{where}, native/copy", row.ratio("native", "copy"), high=most)
    yield Goal(f"{where}, naive/ours", row.ratio("naive", "ours"), low=NAIVE[key])
    if key in BYZFL:
        yield Goal(f"{where}, byzfl/native", row.ratio("byzfl", "native"), low=BYZFL[key])
    if workload in LARGER_THAN_CACHE:
        gained = quotient(row.speed_up("native", 2), row.speed_up("copy", 2))
        yield Goal(f"{where}, speed-up / that of a copy", gained, low=SHARE_OF_SPEED_UP)
    yield Goal(f"{where}, MiB", row.memory_mib, high=MOST_MIB)


def limit_of(workload: str) -> float:
    return LIMIT if workload in LARGER_THAN_CACHE else LIMIT_IN_CACHE


def least_ms(row: Row, results: Results) -> float | None:
    """The least time of a rule on this machine."""
    copy = row.time("copy")
    if results.limits is None or copy is None:
        return None
    return work_of(row.rule, WORKLOADS[row.workload]).least_ms(results.limits, copy)


def over_limit(row: Row, results: Results) -> float | None:
    """The time of native as a multiple of the least time on this machine."""
    return quotient(row.time("native"), least_ms(row, results))


def most_copies(row: Row, results: Results) -> float:
    """The goal of a rule in `COPIES`."""
    least = quotient(least_ms(row, results), row.time("copy"))
    return max(COPIES[row.workload, row.rule], round(least or 0.0, 2))


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
