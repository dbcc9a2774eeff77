"""A thousand clients in several processes, on one machine or on more.

    python -m pip install -c constraints.txt ".[data]"
    torchrun --standalone --nproc-per-node 4 examples/many_processes.py

Each process trains a part of the clients, and loads only their examples. Results are those of one
process, bit by bit. With ``--checkpoint FOLDER``, a run that ended goes on from its last
checkpoint. docs/many-processes.md has the commands for restarts and for two machines.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist

import equipoise as eq


def make_simulator(n, group=None):
    """The same in every process."""
    digits = eq.data.digits()
    model = eq.models.logistic_regression(64, 10)

    def load(client):
        """The examples of one client: here a random sample of the digits."""
        rows = torch.randint(len(digits.y), (20,), generator=torch.Generator().manual_seed(client))
        return digits.x[rows], digits.y[rows]

    malicious = eq.draw_malicious(n, 0.2)
    return eq.Simulator(
        trainer=eq.LocalSGD(
            model, torch.nn.functional.cross_entropy, eq.training.LazyClients(n, load), lr=0.15
        ),
        topology=eq.Topology.regular(n, 10, seed=0, malicious=malicious),
        rule=eq.Balance(),
        models=eq.flatten(model).expand(n, -1),  # one row in memory
        attack=eq.attacks.Gaussian(),
        malicious=malicious,
        metrics={"error": eq.metrics.ErrorRate(model, digits.test_x, digits.test_y)},
        evaluate_every=10,
        group=group,
    )


def digest(models):
    """A few characters that tell whether two runs have the same models."""
    return hashlib.sha256(models.numpy().tobytes()).hexdigest()[:16]


def main():
    """Run, and print the results in the first process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--checkpoint")
    arguments = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    simulator = make_simulator(arguments.clients, dist.group.WORLD)
    history = simulator.run(arguments.rounds, checkpoint=arguments.checkpoint, save_every=10)
    models = simulator.all_models()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, {simulator.cut()}")
        print(f"largest error {history.summary()['max_error']:.3f}")
        print(f"models {digest(models)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
