"""One training run of six clients, by the simulator and by peers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq

NAMES = [f"client-{i}" for i in range(6)]
TOTAL = 4
DEADLINE = 60.0  # generous, because everybody is in time


def graph() -> eq.Topology:
    return eq.Topology.complete(len(NAMES))  # with fewer neighbors, Krum does not tolerate one


def neighbors_of(client: int) -> list[str]:
    return [NAMES[i] for i in graph().neighbors(client).tolist()]


def trainer(*, momentum: float = 0.9) -> eq.LocalSGD:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 12, 5, generator=generator)
    y = torch.randint(3, (6, 12), generator=generator)
    clients = list(zip(x, y, strict=True))
    return eq.LocalSGD(
        torch.nn.Linear(5, 3), cross_entropy, clients, lr=0.2, batch_size=4, momentum=momentum
    )


def first_models() -> Tensor:
    return torch.randn(6, 18, generator=torch.Generator().manual_seed(1))


def simulated(rule: Any) -> Tensor:
    simulator = eq.Simulator(
        trainer(), graph(), rule, first_models(), total=TOTAL, tolerated=1, alpha=0.25
    )
    simulator.run()
    return simulator.models


def play(peer: eq.Peer, client: int, rule: Any, local: eq.LocalSGD) -> Tensor:
    """The model of one client after all rounds."""
    only = torch.tensor([client])
    models = first_models()
    state = None
    for t in range(TOTAL):
        trained = torch.empty_like(models)
        local.train_into(trained, models, t, clients=only)
        own = trained[client]
        losses = local.loss_of(t)
        mixed_with, out = peer.run_exchanges(
            rule,
            own,
            t,
            deadline=DEADLINE,
            total=TOTAL,
            tolerated=1,
            samples=local.samples,
            update=own - models[client],
            loss_of=lambda candidates, losses=losses: losses(
                candidates, only.expand(len(candidates))
            ),
            state=state,
        )
        absences = {other: x.absent for other, x in peer.report().neighbors.items() if x.absent}
        assert not absences, absences  # otherwise each later exchange would wait for its deadline
        state = out.state
        models[client] = eq.mix(mixed_with, out.model, alpha=0.25)
    return models[client]


def played_in_threads(rule: Any, make: Callable[[int], eq.Peer]) -> Tensor:
    """The models of all clients, each of which is a peer in a thread."""

    def run(client: int, local: eq.LocalSGD) -> Tensor:
        with make(client) as peer:
            return play(peer, client, rule, local)

    # Made in one thread: a trainer watches torch's global generator while it tries its model, and
    # takes numbers that another thread draws for those of a random model.
    trainers = [trainer() for _ in NAMES]
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return torch.stack(list(pool.map(run, range(len(NAMES)), trainers)))
