"""Fine-tune LoRA adapters on a graph: only the adapters travel, and BALANCE compares only them.

    python -m pip install -c constraints.txt ".[data,adapters]"
    python examples/lora.py

Ten clients, two of them malicious, adapt a network that was trained on upright digits to mirrored
ones. Prints the error of the worst benign client with FedAvg and with BALANCE, and the share of the
parameters that is sent.
"""

from __future__ import annotations

from copy import deepcopy

import peft
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq

CLIENTS = 10
ROUNDS = 60
MALICIOUS = [3, 7]


def pretrained(x: Tensor, y: Tensor) -> nn.Module:
    """A network that recognizes upright digits; in practice, a model from a hub."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(nn.Flatten(), *layers)
    train(model, x, y, steps=300)
    return model


def with_adapter(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy with frozen parameters, and a trainable adapter of rank 4 beside each layer."""
    torch.manual_seed(seed)  # all clients start from the same adapter
    config = peft.LoraConfig(r=4, target_modules=["1", "3", "5"])
    return peft.get_peft_model(deepcopy(model), config)


def train(model: nn.Module, x: Tensor, y: Tensor, *, steps: int, lr: float = 0.1) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


@torch.no_grad()
def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) != y).double().mean())


def mirrored(x: Tensor) -> Tensor:
    return x.flip(-1)


def worst_error(rule: eq.Aggregator, base: nn.Module, digits: eq.data.Dataset) -> float:
    shards = torch.arange(len(digits.x)).split(-(-len(digits.x) // CLIENTS))
    clients = [with_adapter(base) for _ in range(CLIENTS)]
    graph = eq.Topology.regular(CLIENTS, 6, seed=0)
    for t in range(ROUNDS):
        for model, rows in zip(clients, shards, strict=True):
            train(model, mirrored(digits.x[rows]), digits.y[rows], steps=5)
        # The vector of a client holds its adapter, and nothing else.
        sent = eq.stack_models(clients, only=eq.trainable)
        lies = sent.clone()
        lies[MALICIOUS] = torch.randn(len(MALICIOUS), sent.shape[1])
        out = rule(sent, graph.deliver(lies), t=t, total=ROUNDS)
        eq.unstack_models(eq.mix(sent, out.model), clients, only=eq.trainable)
    test_x = mirrored(digits.test_x)
    benign = [model for i, model in enumerate(clients) if i not in MALICIOUS]
    return max(error(model, test_x, digits.test_y) for model in benign)


def main() -> None:
    digits = eq.data.digits()
    base = pretrained(digits.x, digits.y)
    adapter = eq.flatten(with_adapter(base), only=eq.trainable)
    share = len(adapter) / len(eq.flatten(base))
    print(f"{len(adapter):,} parameters are sent, {share:.0%} of the network")
    start = error(base, mirrored(digits.test_x), digits.test_y)
    print(f"error on mirrored digits before: {start:.2f}")
    for rule in (eq.FedAvg(), eq.Balance(gamma=0.5)):
        found = worst_error(rule, base, digits)
        print(f"worst benign client with {type(rule).__name__}: {found:.2f}")


if __name__ == "__main__":
    main()
