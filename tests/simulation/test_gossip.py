"""Simulations with rules that contain own: alpha, the weights of edges, and MoNNA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import equipoise as eq
from equipoise import attacks
from tests.simulation.small_runs import GRAPH, MALICIOUS, D, N, pull, simulator

pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")

START = torch.ones(N, D, dtype=torch.float64)


def matrix(kind: Any = "metropolis") -> Tensor:
    """(n, n) the gossip matrix W of the graph."""
    table = torch.zeros(N, N, dtype=torch.float64)
    weights = GRAPH.gossip_weights(kind)
    table.scatter_add_(1, GRAPH.senders.clamp_min(0), weights)
    return table + torch.diag(1 - table.sum(1))


# Alpha


@pytest.mark.parametrize(
    ("rule", "alpha"),
    [
        (eq.Gossip(), 0.0),
        (eq.NNA(tolerated=1), 0.0),
        (eq.SCClip(contains_own=True), 0.0),
        (eq.SCClip(), 0.5),
        (eq.Balance(), 0.5),
        (eq.LEARN(tolerated=1), 0.5),
        (None, 0.5),
        (eq.PerClient([eq.NNA(tolerated=1)] * N), 0.0),
        (lambda own, received, **_: eq.Aggregated(own.clone()), 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_alpha_of_rule(rule: Any, alpha: float) -> None:
    assert simulator(rule).alpha == alpha


def test_gossip_is_not_mixed_again() -> None:
    run = simulator(eq.Gossip())
    run.step()
    torch.testing.assert_close(run.models, matrix("uniform") @ pull(START, 0))


def test_given_alpha_wins() -> None:
    run = simulator(eq.Gossip(), alpha=0.25)
    run.step()
    trained = pull(START, 0)
    torch.testing.assert_close(run.models, 0.25 * trained + 0.75 * matrix("uniform") @ trained)


def test_alpha_of_each_client() -> None:
    rules = [eq.Gossip(), eq.FedAvg()] * (N // 2)
    run = simulator(eq.PerClient(rules))
    run.step()
    trained = pull(START, 0)
    gossip = matrix("uniform") @ trained
    heard = torch.stack([trained[GRAPH.neighbors(i)].mean(0) for i in range(N)])
    torch.testing.assert_close(run.models[::2], gossip[::2])
    torch.testing.assert_close(run.models[1::2], 0.5 * trained[1::2] + 0.5 * heard[1::2])


def test_alpha_of_each_round() -> None:
    """A rule that is drawn every round brings its own alpha."""
    drawn = eq.EachRound(lambda t, generator: eq.FedAvg() if t % 2 else eq.Gossip())
    run = simulator(drawn)
    fixed = simulator(drawn, alpha=lambda t: 0.5 if t % 2 else 0.0)
    run.run(4)
    fixed.run(4)
    assert torch.equal(run.models, fixed.models)


# Weights


@pytest.mark.parametrize("kind", ["metropolis", "lazy", "laplacian", "uniform"])
def test_kinds_of_weights(kind: Any) -> None:
    run = simulator(eq.Gossip(), gossip=kind)
    run.step()
    torch.testing.assert_close(run.models, matrix(kind) @ pull(START, 0))


def test_weights_of_function() -> None:
    calls: list[eq.Topology] = []

    def half(topology: eq.Topology) -> Tensor:
        calls.append(topology)
        return 0.5 * topology.gossip_weights("metropolis")

    run = simulator(eq.Gossip(), gossip=half)
    run.run(3)
    lazy = simulator(eq.Gossip(), gossip="lazy")
    lazy.run(3)
    assert len(calls) == 1  # once per graph
    torch.testing.assert_close(run.models, lazy.models)


def test_weights_of_changing_graphs() -> None:
    graphs = [eq.Topology.ring(N), GRAPH]
    run = simulator(eq.Gossip(), topology=lambda t: graphs[t % 2], gossip="metropolis")
    run.step()
    trained = pull(START, 0)
    ring = (trained + trained.roll(1, 0) + trained.roll(-1, 0)) / 3
    torch.testing.assert_close(run.models, ring)
    run.step()
    torch.testing.assert_close(run.models, matrix() @ pull(ring, 1))


class Idle:
    """A trainer that can leave clients out."""

    def __call__(self, models: Tensor, t: int) -> Tensor:
        return pull(models, t)

    def train_into(
        self, memory: Tensor, models: Tensor, t: int, *, clients: Tensor | None = None
    ) -> None:
        memory.copy_(pull(models, t))


@pytest.mark.parametrize("attack", [attacks.Gaussian(), attacks.Adaptive()], ids=repr)
def test_weights_without_idle_clients(attack: Any) -> None:
    """Malicious clients that need no training receive nothing; the others notice no difference."""
    edges = torch.cat([GRAPH.edges(), torch.tensor([[i, 0] for i in range(1, N)])])
    hub = eq.Topology.from_edges(N, edges)  # client 0, malicious, has the most neighbors
    options: dict[str, Any] = {"topology": hub, "attack": attack, "gossip": "metropolis"}
    found = simulator(eq.CSPlus(), trainer=Idle(), **options)
    expected = simulator(eq.CSPlus(), trainer=Idle(), train_malicious=True, **options)
    found.run(3)
    expected.run(3)
    benign = [i for i in range(N) if i not in MALICIOUS]
    torch.testing.assert_close(found.models[benign], expected.models[benign])


@pytest.mark.parametrize(
    ("gossip", "message"),
    [
        ("metropolitan", "gossip must be 'metropolis', 'lazy', 'laplacian' or 'uniform'"),
        (0.5, "gossip must be a function, found float"),
        (lambda topology: topology.senders[:, :1], "gossip must return one weight per slot"),
    ],
    ids=["misspelled", "a number", "another shape"],
)
def test_bad_gossip(gossip: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulator(eq.Gossip(), gossip=gossip)


def test_one_way_edges_fail_early() -> None:
    one_way = eq.Topology.from_edges(N, [(0, 1)], directed=True)
    with pytest.raises(ValueError, match="must have edges in both directions"):
        simulator(eq.Gossip(), topology=one_way, gossip="metropolis")


# MoNNA


def test_monna() -> None:
    """NNA after LocalSGD with momentum: m <- beta m + (1 - beta) g, x <- NNA(x - gamma m)."""
    beta, gamma, tolerated = 0.9, 0.2, 2
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 8, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(N, 8, generator=generator)
    model = eq.models.linear_regression(3, bias=False)

    clients = [(x[i], y[i]) for i in range(N)]
    # A batch of all examples, one step per round, and the same steps as with (1 - beta) g.
    trainer = eq.LocalSGD(
        model, mse_loss, clients, lr=gamma * (1 - beta), momentum=beta, batch_size=8
    )
    start = eq.flatten(model).expand(N, -1)
    run = eq.Simulator(trainer, GRAPH, eq.NNA(tolerated=tolerated), start)
    run.run(6)
    models = start.double()
    momenta = torch.zeros_like(models)
    for _ in range(6):
        residuals = (x.double() @ models[:, :, None])[..., 0] - y.double()
        gradients = 2 * (residuals[:, None] @ x.double())[:, 0] / 8
        momenta = beta * momenta + (1 - beta) * gradients
        half = models - gamma * momenta
        models = torch.stack([nearest_mean(half, i, tolerated) for i in range(N)])
    torch.testing.assert_close(run.models, models.float(), rtol=1e-5, atol=1e-6)


def nearest_mean(models: Tensor, i: int, tolerated: int) -> Tensor:
    """The mean of the n - f models nearest to model i among its neighbors and itself."""
    known = torch.cat([models[i : i + 1], models[GRAPH.neighbors(i)]])
    order = (known - models[i]).norm(dim=1).argsort()
    return known[order[: len(known) - tolerated]].mean(0)
