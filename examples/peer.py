"""One peer of decentralized training: an ordinary PyTorch script for one machine.

peers.py starts six of them. On machines of your own:

    python -m pip install -c constraints.txt ".[peers]"
    python examples/peer.py site-a --listen 0.0.0.0:7000 \
        --neighbors site-b=b.example:7000 site-c=c.example:7000

The folder has the data and the certificates of the peer; docs/peers.md describes them. A script
that is killed continues where it was when it is started again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq

PATIENCE = 300.0  # seconds, of the first exchange: the neighbors may still have to start


def train(model, loader, optimizer):
    """One epoch."""
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def run(peer, folder, rule, total, deadline):
    """Train, exchange, aggregate; save a checkpoint in each round."""
    data = torch.load(folder / f"{peer.name}-data.pt", weights_only=True)
    loader = DataLoader(TensorDataset(data["x"], data["y"]), batch_size=32, shuffle=True)
    torch.manual_seed(0)  # all peers start from the same model
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = folder / f"{peer.name}-checkpoint.pt"
    t = 0
    is_behind = checkpoint.exists()
    if is_behind:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        t = saved["t"] + 1
    with peer:
        while t < total:
            train(model, loader, optimizer)
            own = eq.flatten(model)
            inbox = peer.exchange(own, t, deadline=deadline if t else PATIENCE)
            if is_behind and can_catch_up(inbox):
                own = eq.Median()(own, inbox).model
                is_behind = False
            out = rule(own, inbox, t=t, total=total)
            peer.record(out)
            eq.unflatten(eq.mix(own, out.model, alpha=0.5), model)
            state = {"t": t, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(state, checkpoint)
            log(folder, peer, t, model, data, inbox, out)
            # After an interruption, continue in the round that the neighbors have reached.
            t = max(t + 1, peer.newest_round() or 0)
    print(peer.report())


def can_catch_up(inbox):
    """Whether most neighbors are present, so that their median is between benign models.

    Balance would reject the models of neighbors that have trained much longer, and they this one.
    """
    return inbox.present.sum() > inbox.k / 2


def save(state, path):
    """Replace the checkpoint at once, so that a crash leaves the old one or the new one."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def log(folder, peer, t, model, data, inbox, out):
    """Append a line about the round: the test error, and what became of each neighbor."""
    with torch.no_grad():
        error = (model(data["test_x"]).argmax(1) != data["test_y"]).float().mean().item()
    neighbors = {}
    for name, weight in zip(peer.neighbors, out.weights.flatten().tolist(), strict=True):
        neighbors[name] = "accepted" if weight > 0 else "rejected"
        if peer.ids[name] in inbox.absences:
            neighbors[name] = "absent"
    with open(folder / f"{peer.name}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"t": t, "error": error, "neighbors": neighbors}) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Run one peer.")
    parser.add_argument("name")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--neighbors", required=True, nargs="+", metavar="NAME=HOST:PORT")
    parser.add_argument("--folder", type=Path, default=Path(), help="data and certificates")
    parser.add_argument("--rule", default="Balance", choices=["Balance", "FedAvg"])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--deadline", type=float, default=0.5, help="seconds")
    parser.add_argument("--rehearse", action="store_true", help="attack the neighbors")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    torch.set_num_threads(1)  # for models this small, more threads cost time
    arguments = {
        "name": options.name,
        "neighbors": dict(entry.split("=") for entry in options.neighbors),
        "listen": options.listen,
        "credentials": eq.peers.Credentials.load(options.folder, options.name),
        "max_staleness": 2,  # peers are not in step while a neighbor is down
    }
    if options.rehearse:
        peer = eq.peers.MaliciousPeer(attack=eq.attacks.Gaussian(), **arguments)
    else:
        peer = eq.Peer(**arguments)
    rule = getattr(eq, options.rule)()
    run(peer, options.folder, rule, options.rounds, options.deadline)


if __name__ == "__main__":
    main()
