"""Time of the parts of a simulated round, and its growth with the number of clients.

Run from the root of the repository: ``python -m benchmarks.round_phases``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from benchmarks import workloads

RULES: dict[str, Any] = {**workloads.RULES, "LEARN": eq.LEARN()}
CHEAP = ("FedAvg", "Balance", "SCClip", "FLTrust", "Krum")
SHARE = 0.15  # of a round that everything but training may take, with these rules
# UBAR judges models by their loss, which is work like training; LEARN aggregates several times a
# round
EXEMPT = ("UBAR", "LEARN")
AGGREGATION = 0.03  # of a round, with one thread, that aggregating by any other rule may take
PHASES = ("train", "forge", "deliver", "aggregate", "mix", "bookkeeping")


def paper_cnn() -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The paper's model and random images for 20 clients: pixels do not affect the time."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(20, 300, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (20, 300), generator=generator)
    return eq.models.cnn(), list(zip(images, labels, strict=True))


def logistic(
    n: int, features: int, classes: int
) -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A linear model, and 40 made-up examples for each of n clients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 40, features, generator=generator)
    y = torch.randint(classes, (n, 40), generator=generator)
    return eq.models.logistic_regression(features, classes), list(zip(x, y, strict=True))


def simulator(
    model: torch.nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]], rule: Any, lr: float
) -> eq.Simulator:
    """Clients on a 10-regular graph, a fifth of them malicious; nothing is measured."""
    n = len(clients)
    malicious = eq.draw_malicious(n, 0.2)
    return eq.Simulator(
        eq.LocalSGD(model, cross_entropy, clients, lr=lr),
        eq.Topology.regular(n, 10, seed=0, malicious=malicious),
        rule,
        eq.flatten(model).expand(n, -1),
        attack=eq.attacks.Gaussian(),
        malicious=malicious,
        total=1000,
        evaluate_every={-1},
    )


def phases(run: eq.Simulator, rounds: int) -> dict[str, float]:
    """Median seconds of every phase, after two rounds that do not count."""
    records = [run.step().seconds for _ in range(rounds + 2)][2:]
    return {phase: statistics.median(record[phase] for record in records) for phase in PHASES}


def phase_table(rules: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Print where a round of the paper's CNN spends its time, for every rule."""
    model, clients = paper_cnn()
    found: dict[str, dict[str, float]] = {}
    print(
        "| rule | "
        + " | ".join(f"{phase}, ms" for phase in PHASES)
        + " | aggregating | all but training |"
    )
    print("|---" * (len(PHASES) + 3) + "|")
    for name in rules:
        found[name] = phases(simulator(model, clients, RULES[name], lr=1e-4), rounds)
        cells = " | ".join(f"{1e3 * found[name][phase]:.1f}" for phase in PHASES)
        shares = f"{100 * aggregating(found[name]):.1f} % | {100 * overhead(found[name]):.1f} %"
        print(f"| {name} | {cells} | {shares} |", flush=True)
    return found


def overhead(seconds: dict[str, float]) -> float:
    """The share of a round that is not training."""
    return 1 - seconds["train"] / sum(seconds.values())


def aggregating(seconds: dict[str, float]) -> float:
    """The share of a round that is aggregation."""
    return seconds["aggregate"] / sum(seconds.values())


def too_slow(times: dict[str, dict[str, float]], threads: int) -> dict[str, list[str]]:
    """By goal, the rules that miss it."""
    slow = [rule for rule in CHEAP if rule in times and overhead(times[rule]) > SHARE]
    found = {f"All but training above {100 * SHARE:.0f} %": slow}
    if threads == 1:
        judged = [rule for rule in times if rule not in EXEMPT]
        slow = [rule for rule in judged if aggregating(times[rule]) >= AGGREGATION]
        found[f"Aggregation not below {100 * AGGREGATION:.0f} %, {' and '.join(EXEMPT)} exempt"] = (
            slow
        )
    return found


def scale_table(
    sizes: Sequence[int], rounds: int, features: int, classes: int
) -> dict[str, dict[str, float]]:
    """Print rounds per second of logistic regression with Balance, and the peak memory so far."""
    found: dict[str, dict[str, float]] = {}
    print("| clients | parameters | rounds a second | us per client and round | peak memory, MiB |")
    print("|---" * 5 + "|")
    for n in sizes:
        model, clients = logistic(n, features, classes)
        seconds = sum(phases(simulator(model, clients, eq.Balance(), lr=0.01), rounds).values())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found[str(n)] = {"seconds": seconds, "MiB": memory}
        d = (features + 1) * classes
        print(
            f"| {n:,} | {d:,} | {1 / seconds:.1f} | {1e6 * seconds / n:.1f} | {memory:,.0f} |",
            flush=True,
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rules", nargs="*", default=list(RULES), choices=list(RULES), metavar="RULE"
    )
    parser.add_argument(
        "--sizes", nargs="*", type=int, default=[1_000, 4_000, 10_000], help="numbers of clients"
    )
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers, in seconds, to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rounds = phase_table(options.rules, options.rounds)
    scales = scale_table(options.sizes, options.rounds, options.features, options.classes)
    if options.json:
        results = {"threads": options.threads, "phases": rounds, "scale": scales}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    slow = too_slow(rounds, options.threads)
    for goal, missed in slow.items():
        print(f"{goal}: {', '.join(missed) or 'none'}")
    return int(any(slow.values()))


if __name__ == "__main__":
    sys.exit(main())
