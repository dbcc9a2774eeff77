"""The tables of "Choose a rule", written into the page: ``python -m benchmarks.decision_table``.

With ``--measure``, the times are measured first, with one thread, in less than a minute.
"""

from __future__ import annotations

import argparse
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

import equipoise as eq
from benchmarks.decision_facts import RULES, WRAPPERS, Facts, Rule
from benchmarks.racing import Run, race
from benchmarks.workloads import WORKLOADS, Round
from equipoise.rules import without_warnings
from equipoise.topology import Diagnosis, Guarantee

PAGE = Path(__file__).parent.parent / "docs" / "choosing-a-rule.md"
TIMES = Path(__file__).with_suffix(".json")
BLOCK = re.compile(r"(?<=<!-- rules -->\n).*?(?=<!-- end of rules -->)", flags=re.DOTALL)

WORKLOAD = WORKLOADS["1"]
TURNS = 15
NEIGHBORS = 100  # of each client of the complete graph in which breakdown is found

AS_RULE = "as the rule"

COSTS = """\
| rule | needs | contains own | models sent | reads the messages for | ms |
|---|---|---|---|---|---:|
"""
THEORY = """\
| rule | assumes | guarantee | breakdown |
|---|---|---|---:|
"""


# Columns that follow from the rule


def needs(rule: Rule) -> str:
    """The round inputs that the rule reads."""
    return ", ".join(f"`{name}`" for name in getattr(rule, "needs", None) or ())


def contains_own(rule: Rule) -> str:
    return "yes" if getattr(rule, "contains_own", False) else ""


def guarantee(rule: Rule) -> str:
    """The condition of the theorem, in words."""
    found = getattr(rule, "guarantee", None)
    return "none" if found is None else str(found).replace(">=", "≥").replace("mu_2", "μ₂")


def breakdown(rule: Rule) -> str:
    """How many of 100 neighbors may be malicious, in a complete graph that the guarantee covers."""
    found = getattr(rule, "guarantee", None)
    if found is None or not _covers(found, 0):
        return "-"
    first_beyond = bisect_left(range(NEIGHBORS), True, key=lambda f: not _covers(found, f))
    return f"{first_beyond - 1}"


def _covers(found: Guarantee, f: int) -> bool:
    return found.judge(_complete(f)).covered is True


@cache
def _complete(f: int) -> Diagnosis:
    """A complete graph, in which each benign client has f malicious neighbors."""
    return eq.Topology.complete(NEIGHBORS + 1).diagnose(range(f), time_limit=0)


# Measured columns


def measure() -> dict[str, Any]:
    """Milliseconds of each rule for all clients, best of all turns."""
    work = Round(WORKLOAD)
    runs: dict[str, Run] = {
        name: partial(aggregate, facts.rule, work)
        for name, facts in (RULES | WRAPPERS).items()
        if facts.is_measured
    }
    for run in runs.values():
        run()
    ms = race(runs, TURNS)["1"]
    clients = f"{WORKLOAD.n} clients with {WORKLOAD.degree} neighbors each"
    return {
        "workload": f"{clients}, {WORKLOAD.d:,} parameters",
        "torch": torch.__version__,
        "turns": TURNS,
        "ms": ms,
    }


def aggregate(rule: Rule, work: Round) -> object:
    """One round of all clients."""
    inputs = work.inputs | {"update": work.models, "out": work.out}
    with without_warnings():
        return eq.run_exchanges(rule, work.models, work.topology.deliver, **inputs)


# The page


def tables(times: dict[str, Any]) -> str:
    """Both tables, as Markdown."""
    everything = RULES | WRAPPERS
    costs = [_costs(name, facts, times["ms"].get(name)) for name, facts in everything.items()]
    theory = [_theory(name, facts) for name, facts in everything.items()]
    measured = f"Milliseconds: {times['workload']}; one thread, torch {times['torch']}."
    weighted = [f"`{name}`" for name, facts in RULES.items() if hasattr(facts.rule, "cap")]
    samples = f"With `weighted=True`, these also need `samples`: {', '.join(weighted)}."
    after_costs = fill(f"{measured} {samples}", 120, break_on_hyphens=False)
    return f"\n{COSTS}{''.join(costs)}\n{after_costs}\n\n{THEORY}{''.join(theory)}\n"


def _costs(name: str, facts: Facts, ms: float | None) -> str:
    own = AS_RULE if name in WRAPPERS else contains_own(facts.rule)
    time = "-" if ms is None else f"{ms:.1f}"
    return _row(f"`{name}`", needs(facts.rule), own, facts.sends, facts.passes, time)


def _theory(name: str, facts: Facts) -> str:
    # A wrapper's guarantee is a property if it is that of the wrapped rule.
    if isinstance(getattr(type(facts.rule), "guarantee", None), property) and name in WRAPPERS:
        about_each = f"{AS_RULE}, if about each aggregate"
        return _row(f"`{name}`", facts.assumes, about_each, AS_RULE)
    return _row(f"`{name}`", facts.assumes, guarantee(facts.rule), breakdown(facts.rule))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def write(page: Path, block: str) -> None:
    """Replace the tables of the page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(lambda _: block, text), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decision_table", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--measure", action="store_true", help=f"measure, and write {TIMES.name}")
    if parser.parse_args(arguments).measure:
        TIMES.write_text(json.dumps(measure(), indent=1) + "\n")
    write(PAGE, tables(json.loads(TIMES.read_text())))


if __name__ == "__main__":
    main()
