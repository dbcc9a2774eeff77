"""One training run of six clients, by the simulator and by peers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise._utils.rng import stream
from tests.cases import LEARNS, RULES

NAMES = [f"client-{i}" for i in range(6)]
TOTAL = 4
DEADLINE = 60.0  # generous, because everybody is in time
COMPLETE = eq.Topology.complete(len(NAMES))  # with fewer neighbors, Krum does not tolerate one

# Each rule with all of its options, and those that tests/cases.py leaves to tests of their own.
EVERY: dict[str, Any] = {
    **RULES,
    **LEARNS,
    "centered-clip-last": eq.CenteredClip(),
    "mda": eq.MDA(),
    "per-group": eq.PerGroup(
        eq.groups(torch.nn.Linear(5, 3)), {"weight": eq.Balance(), "bias": eq.TrimmedMean()}
    ),
    "sketch-guard": eq.SketchGuard(gamma=1.1, size=7),
    "smea": eq.SMEA(),
    "static-clip": eq.StaticClip(eq.Median(), radius=1.0),
}


def neighbors_of(client: int, graph: eq.Topology = COMPLETE) -> list[str]:
    return [NAMES[i] for i in graph.neighbors(client).tolist()]


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


def simulated(rule: Any, graph: eq.Topology = COMPLETE) -> Tensor:
    simulator = eq.Simulator(
        trainer(),
        graph,
        rule,
        first_models(),
        total=TOTAL,
        tolerated=1,
        alpha=0.25,
        gossip="metropolis",
    )
    simulator.run()
    return simulator.models


def play(
    peer: eq.Peer, client: int, rule: Any, local: eq.LocalSGD, graph: eq.Topology = COMPLETE
) -> Tensor:
    """The model of one client after all rounds."""
    only = torch.tensor([client])
    gossip = graph.gossip_weights("metropolis")[client, : len(peer.neighbors)]
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
            gossip=gossip,
            # As the simulator passes it in this round, for buckets.
            generator=stream(0, "aggregation", t),
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


def played_in_threads(rule: Any, graph: eq.Topology = COMPLETE) -> Tensor:
    """The models of all clients, each of which is a peer in a thread."""
    network = eq.peers.InMemoryNetwork()

    def run(client: int, local: eq.LocalSGD) -> Tensor:
        name = NAMES[client]
        neighbors = neighbors_of(client, graph)
        transport = network.transport(name)
        with eq.Peer(name, neighbors, names=NAMES, transport=transport) as peer:
            return play(peer, client, rule, local, graph)

    # Made in one thread: a trainer watches torch's global generator while it tries its model, and
    # takes numbers that another thread draws for those of a random model.
    trainers = [trainer() for _ in NAMES]
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return torch.stack(list(pool.map(run, range(len(NAMES)), trainers)))
