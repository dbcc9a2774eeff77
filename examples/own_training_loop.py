"""An ordinary PyTorch training loop, made decentralized and robust.

Eight clients share the data, and one of them is malicious:

    python -m pip install -c constraints.txt ".[data]"
    python examples/own_training_loop.py

4_own_training_loop.ipynb starts from the original loop and explains the changes.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import equipoise as eq

EPOCHS = 20


def load():
    """Training and test examples of handwritten digits."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    data = TensorDataset(x, torch.tensor(labels))
    generator = torch.Generator()
    return random_split(data, [0.8, 0.2], generator.manual_seed(0))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_loader(data):
    return DataLoader(data, batch_size=32, shuffle=True)


def make_optimizer(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(model, loader, optimizer):
    """One epoch."""
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def error(model, test):
    """The share of test examples that a model misclassifies."""
    model.eval()
    x, y = test[:]
    return (model(x).argmax(1) != y).float().mean().item()


def after(data, rule):
    models = [make_model() for _ in range(8)]
    loaders = [make_loader(part) for part in random_split(data, [1 / 8] * 8)]
    optimizers = [make_optimizer(model) for model in models]
    graph = eq.Topology.regular(8, 4, seed=0, malicious=[0])
    for epoch in range(EPOCHS):
        for model, loader, optimizer in zip(models, loaders, optimizers, strict=True):
            train(model, loader, optimizer)
        own = eq.stack_models(models)
        inbox = graph.deliver(own, lies=torch.randn_like(own), malicious=[0])
        out = rule(own, inbox, t=epoch, total=EPOCHS)
        mixed = eq.mix(own, out.model, alpha=0.5)
        eq.unstack_models(mixed, models)
    return models


def main():
    torch.set_num_threads(1)  # for models this small, more threads cost time
    data, test = load()
    for rule in (eq.FedAvg(), eq.Balance(gamma=0.3, kappa=1.0)):
        models = after(data, rule)
        worst = max(error(model, test) for model in models[1:])
        print(f"{type(rule).__name__:8} worst error of clients 1 to 7: {worst:.3f}")


if __name__ == "__main__":
    main()
