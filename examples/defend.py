"""Compare rules under attack: twenty clients on handwritten digits, four of them malicious.

    python -m pip install -c constraints.txt ".[data]"
    python examples/defend.py

Prints the error of the worst benign client under every attack. 2_defend.ipynb explains it and has
figures.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import equipoise as eq

RULES = {
    "Alone": None,
    "FedAvg": eq.FedAvg(),
    "Krum": eq.Krum(),
    "TrimmedMean": eq.TrimmedMean(),
    "Median": eq.Median(),
    "Balance": eq.Balance(),
}
ATTACKS = {
    "none": None,
    "Gaussian": eq.attacks.Gaussian(),
    "TrimAttack": eq.attacks.TrimAttack(),
    "MinMax": eq.attacks.MinMax(),
}


def worst_error(rule: eq.Aggregator | None, attack: eq.Attack | None, rounds: int) -> float:
    """Train, and return the final error of the worst benign client."""
    digits = eq.data.digits()
    clients = digits.split(eq.data.by_group(digits, 20, p=0.5))
    malicious = eq.draw_malicious(20, 0.2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    simulator = eq.Simulator(
        trainer=eq.LocalSGD(model, cross_entropy, clients, lr=0.2, steps=2),
        topology=eq.Topology.regular(20, 10, seed=0, malicious=malicious),
        rule=rule,
        models=eq.flatten(model).expand(20, -1),  # all clients start from the same model
        attack=attack,
        malicious=malicious,
        metrics={"error": eq.metrics.ErrorRate(model, digits.test_x, digits.test_y)},
        evaluate_every=rounds,
    )
    return simulator.run(rounds).summary()["max_error"]


def main(rounds: int = 60) -> None:
    torch.set_num_threads(1)  # for models this small, more threads cost time
    print(f"{'rule':12}" + "".join(f"{attack:>12}" for attack in ATTACKS))
    for name, rule in RULES.items():
        print(f"{name:12}", end="", flush=True)
        for attack in ATTACKS.values():
            print(f"{worst_error(rule, attack, rounds):12.2f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
