"""The cost of each attack, relative to the aggregation that it attacks; see README.md.

Run from the root of the repository: ``python -m benchmarks.attacks``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
from equipoise import attacks
from equipoise.attacks import Knowledge
from equipoise.rules import without_warnings

BALANCE = eq.Balance()
ATTACKS: dict[str, tuple[Any, eq.Aggregator]] = {
    "Zero": (attacks.Zero(), BALANCE),
    "NonFinite": (attacks.NonFinite(), BALANCE),
    "Mimic": (attacks.Mimic(), BALANCE),
    "Backdoor": (attacks.Backdoor(attacks.PixelPattern()), BALANCE),
    "Gaussian": (attacks.Gaussian(), BALANCE),
    "Spectral": (attacks.Spectral(), BALANCE),
    "Dissensus": (attacks.Dissensus(), BALANCE),
    "Isolation": (attacks.Isolation(), eq.SCClip()),
    "SignFlip": (attacks.SignFlip(), BALANCE),
    "IPM": (attacks.IPM(), BALANCE),
    "LIE": (attacks.LIE(), BALANCE),
    "TrimAttack, r = 2": (attacks.TrimAttack(random=False), eq.TrimmedMean()),
    "TrimAttack": (attacks.TrimAttack(), eq.TrimmedMean()),
    "TrimAttack, fang": (attacks.TrimAttack(form="fang"), eq.TrimmedMean()),
}
SEARCHES: dict[str, tuple[Any, eq.Aggregator]] = {
    "MinMax": (attacks.MinMax(), BALANCE),
    "MinSum": (attacks.MinSum(), BALANCE),
    "KrumAttack": (attacks.KrumAttack(), eq.Krum()),
    "KrumAttack, fang": (attacks.KrumAttack(form="fang"), eq.Krum()),
    "Adaptive": (attacks.Adaptive(), BALANCE),
    "Adaptive, literal": (attacks.Adaptive(mode="literal"), BALANCE),
}
MOST = 50  # aggregations that a search may cost


class Round:
    """One round of clients that nearly agree, a fifth of them malicious."""

    def __init__(self, n: int, degree: int, d: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.malicious = torch.arange(n) < n // 5
        self.topology = eq.Topology.regular(n, degree, seed=0, malicious=self.malicious)
        self.previous = torch.randn(d, generator=generator) + 1e-2 * torch.randn(
            n, d, generator=generator
        )
        self.models = self.previous + 1e-3 * torch.randn(n, d, generator=generator)
        self.inputs: eq.RoundInputs = {"t": 0, "total": 10}
        self.inputs["tolerated"] = self.topology.malicious_neighbors(self.malicious)

    def forge(self, attack: Any, rule: eq.Aggregator) -> eq.Lies | None:
        """The lies of this round; what is known of the graph is worked out each time."""
        knowledge = Knowledge(
            self.models, self.topology, self.malicious, self.previous, rule, self.inputs
        )
        lies: eq.Lies | None = attack.forge(knowledge)
        return lies

    def aggregate(self, rule: eq.Aggregator, lies: eq.Lies | None) -> eq.Aggregated:
        """The aggregation that is attacked: of the messages that are sent."""
        with without_warnings():  # rules get the true number, even beyond their guarantee
            return rule(
                self.models, self.topology.deliver(self.models, lies, self.malicious), **self.inputs
            )


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(work: Round, repeats: int) -> dict[str, dict[str, float]]:
    """Best time of forging, and of the aggregation with and without it, taken in turns."""
    best: dict[str, dict[str, float]] = {name: {} for name in ATTACKS | SEARCHES}
    for _ in range(repeats):
        for name, (attack, rule) in (ATTACKS | SEARCHES).items():
            lies = work.forge(attack, rule)
            contest = {
                "forge": lambda attack=attack, rule=rule: work.forge(attack, rule),
                "aggregate": lambda rule=rule, lies=lies: work.aggregate(rule, lies),
                "aggregate benign": lambda rule=rule: work.aggregate(rule, None),
            }
            for what, call in contest.items():
                best[name][what] = min(best[name].get(what, float("inf")), seconds(call))
    return best


def too_slow(times: dict[str, dict[str, float]]) -> list[str]:
    """The attacks that cost more than they may."""
    limits = {name: MOST if name in SEARCHES else 1 for name in times}
    return [
        name for name, found in times.items() if found["forge"] > limits[name] * found["aggregate"]
    ]


def table(times: dict[str, dict[str, float]]) -> str:
    lines = [
        "| attack | against | forge, ms | aggregate, ms | ratio | ratio to no attack |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in times.items():
        rule = type((ATTACKS | SEARCHES)[name][1]).__name__
        forge, attacked, benign = (found[key] for key in ("forge", "aggregate", "aggregate benign"))
        lines.append(
            f"| {name} | {rule} | {1e3 * forge:.1f} | {1e3 * attacked:.1f} |"
            f" {forge / attacked:.2f} | {forge / benign:.2f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--degree", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=139_960)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the times, in seconds, to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    times = measure(Round(options.clients, options.degree, options.parameters), options.repeats)
    print(table(times))
    slow = too_slow(times)
    print(f"Above the limit: {', '.join(slow) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
