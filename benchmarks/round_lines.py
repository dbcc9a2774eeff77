"""Count the lines of the library that a simulated round executes, without C and torch.

python -m benchmarks.round_lines
PYTHONPATH=OTHER/src python benchmarks/round_lines.py    # of another version
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import equipoise as eq

PACKAGE = str(Path(eq.__file__).parent)
N = 20
MODELS = {
    "linear": (lambda: eq.models.logistic_regression(64, 10), (64,)),
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        (64,),
    ),
    "CNN": (eq.models.cnn, (1, 28, 28)),
}
ATTACKS = (eq.attacks.Gaussian, eq.attacks.TrimAttack)


def simulator(name: str, attack: Any) -> eq.Simulator:
    """A run of one model and attack, with 4 malicious clients of 20."""
    make, shape = MODELS[name]
    model = make()
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(40, *shape, generator=generator),
            torch.randint(10, (40,), generator=generator),
        )
        for _ in range(N)
    ]
    return eq.Simulator(
        trainer=eq.LocalSGD(model, nn.functional.cross_entropy, clients, lr=0.1),
        topology=eq.Topology.regular(N, 10, seed=0),
        rule=eq.Balance(),
        models=eq.flatten(model).expand(N, -1),
        attack=attack,
        malicious=[0, 1, 2, 3],
        total=20,
    )


def executed(run: eq.Simulator) -> tuple[dict[str, int], int]:
    """The distinct lines that the next round executes in each part of the library, and calls."""
    lines: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    calls: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return None
        part = Path(file).relative_to(PACKAGE).parts[0]
        if event == "call":
            calls[part] += 1
        elif event == "line":
            lines[part].add((file, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run.step()
    finally:
        sys.settrace(before)
    return {part: len(found) for part, found in sorted(lines.items())}, calls.total()


def main() -> None:
    """Print a row of a table for each model and attack."""
    torch.set_num_threads(1)  # other threads are not traced
    print("| model, attack | lines | calls | simulation | training | rules |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in MODELS:
        for attack in ATTACKS:
            run = simulator(name, attack())
            # The first rounds fill caches and compare the bits of the models.
            for _ in range(3):
                run.step()
            lines, calls = executed(run)
            parts = " | ".join(str(lines[part]) for part in ("simulation", "training", "rules"))
            total = sum(lines.values())
            print(f"| {name}, `{attack.__name__}` | {total:,} | {calls:,} | {parts} |")


if __name__ == "__main__":
    main()
