"""The settings of sections 6 and 7 of the BALANCE paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise._utils.rng import stream
from tests.simulation.small_runs import (
    GOALS,
    GRAPH,
    MALICIOUS,
    ROUNDS,
    D,
    N,
    noisy,
    pull,
    simulator,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def test_alpha_per_client() -> None:
    """Case I."""
    alpha = torch.linspace(0, 1, N, dtype=torch.float64)
    run = simulator(eq.FedAvg(), alpha=alpha)
    run.step()
    trained = pull(torch.ones(N, D, dtype=torch.float64), 0)
    heard = torch.stack([trained[GRAPH.neighbors(i)].mean(0) for i in range(N)])
    torch.testing.assert_close(run.models, alpha[:, None] * trained + (1 - alpha[:, None]) * heard)


def test_alpha_redrawn_each_round() -> None:
    """Case II."""
    drawn: list[Tensor] = []

    def draw(t: int, generator: torch.Generator) -> Tensor:
        drawn.append(torch.rand(N, generator=generator))
        return drawn[-1]

    history = simulator(eq.FedAvg(), alpha=eq.EachRound(draw)).run()
    assert len(drawn) == ROUNDS
    assert not torch.equal(drawn[0], drawn[1])
    assert history == simulator(eq.FedAvg(), alpha=lambda t: drawn[t]).run()


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
def test_a_rule_per_client() -> None:
    """Case III: with equal rules it is that rule, and every client follows its own."""
    assert noisy(eq.PerClient([eq.Median()] * N)).run().worst("distance") == noisy(
        eq.Median()
    ).run().worst("distance")
    mixed = eq.PerClient.drawn(
        [eq.Median(), eq.Balance(), eq.Krum(), eq.UBAR()], N, stream(0, "rules")
    )
    assert len(set(mixed.rules)) > 1
    assert noisy(mixed).run().worst("distance")[1][-1] < 1


def test_rule_redrawn_each_round() -> None:
    """Case IV."""
    rules: list[eq.PerClient] = []

    def draw(t: int, generator: torch.Generator) -> eq.PerClient:
        rules.append(
            eq.PerClient.drawn([eq.Median(), eq.Balance(), eq.TrimmedMean()], N, generator)
        )
        return rules[-1]

    history = noisy(eq.EachRound(draw)).run()
    assert len(set(rules)) == ROUNDS
    assert history.worst("distance")[1][-1] < 1


def test_self_loops() -> None:
    """Instead of alpha, as Pasquini et al. do."""
    run = simulator(eq.FedAvg(), topology=GRAPH.with_self_loops(), alpha=0.0)
    run.step()
    trained = pull(torch.ones(N, D, dtype=torch.float64), 0)
    for i in range(N):
        torch.testing.assert_close(
            run.models[i], trained[[i, *GRAPH.neighbors(i).tolist()]].mean(0)
        )


def test_different_initial_models() -> None:
    """Each its own: BALANCE accepts nobody, and everybody trains alone, as its inequality says."""
    start = torch.randn(N, D, generator=stream(0, "start"), dtype=torch.float64)
    start = 100 * start / start.norm(dim=1, keepdim=True)
    run, alone = (simulator(rule, models=start, total=3) for rule in (eq.Balance(gamma=0.01), None))
    assert run.run().series("accepted_benign")[1][0] == 0
    alone.run()
    torch.testing.assert_close(run.models, alone.models)


@pytest.mark.parametrize("p", [0.2, 1.0])
def test_clients_that_disconnect(p: float) -> None:
    run = noisy(eq.Balance(), topology=eq.EachRound(lambda t, generator: GRAPH.drop(p, generator)))
    history = run.run()
    if p == 1:
        alone = simulator(None)
        alone.run()
        torch.testing.assert_close(run.models, alone.models)
        assert history.series("bytes")[1] == [0] * ROUNDS
    else:
        assert len(set(history.series("bytes")[1])) > 1


def test_graph_of_the_round() -> None:
    graphs = [eq.Topology.ring(N), eq.Topology.complete(N)]
    history = simulator(eq.FedAvg(), topology=lambda t: graphs[t % 2]).run()
    assert history.series("bytes")[1] == [
        (2 if t % 2 == 0 else N - 1) * D * 8 for t in range(ROUNDS)
    ]


@pytest.mark.parametrize("half", ["first", "second"])
def test_attack_in_half_of_rounds(half: str) -> None:
    window = attacks.Window(attacks.Gaussian(std=1e3), *((0, 3) if half == "first" else (3, 6)))
    history = simulator(eq.FedAvg(), attack=window, total=6).run()
    hurt = [error > 10 for error in history.worst("distance")[1]]
    assert hurt[:3] == [half == "first"] * 3
    assert hurt[3:] == [True] * 3  # what the first half did is not undone in three rounds


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_malicious_fractions(share: float) -> None:
    malicious = eq.draw_malicious(N, share, seed=3)
    assert len(malicious) == round(share * N)
    history = noisy(eq.Balance(), malicious=malicious, topology=eq.Topology.complete(N)).run()
    assert history.malicious == tuple(malicious.tolist())
    assert history.worst("distance")[1][-1] < 1


def test_local_training_only() -> None:
    run = simulator(None)
    history = run.run()
    torch.testing.assert_close(run.models, GOALS + (1 - GOALS) * 0.5**ROUNDS)
    assert "bytes" not in history[0].values


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize(
    "rule", [eq.LEARN(), eq.UBAR(), eq.FLTrust(), eq.SCClip(), eq.BalanceMedian(), eq.Krum()]
)
@pytest.mark.parametrize(
    "attack", [attacks.Gaussian(), attacks.LIE(), attacks.SignFlip(), attacks.Dissensus()]
)
def test_rules_under_attacks(rule: Any, attack: Any) -> None:
    history = simulator(rule, attack=attack).run()
    assert len(history) == ROUNDS
    assert history.worst("distance")[1][-1] < 2


def test_true_tolerated() -> None:
    def tolerated(**options: Any) -> Any:
        class Asked:
            def __call__(self, own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
                seen.append(inputs["tolerated"])
                return eq.FedAvg()(own, received)

        seen: list[Any] = []
        simulator(Asked(), total=1, **options).run()
        return seen[0]

    assert tolerated().tolist() == [0] * N
    assert (
        tolerated(attack=attacks.Zero()).tolist() == GRAPH.malicious_neighbors(MALICIOUS).tolist()
    )
    assert tolerated(attack=attacks.Zero(), tolerated=3) == 3
    ring = eq.Topology.ring(N)
    assert (
        tolerated(attack=attacks.Zero(), topology=lambda t: ring).tolist()
        == ring.malicious_neighbors(MALICIOUS).tolist()
    )


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("attack", [None, attacks.Zero()], ids=["no attack", "Zero"])
@pytest.mark.parametrize("rule", [eq.Krum, eq.TrimmedMean], ids=lambda rule: rule.__name__)
def test_rule_sets_tolerated(rule: Any, attack: Any) -> None:
    def models(rule: Any, **options: Any) -> Tensor:
        run = simulator(rule, attack=attack, total=3, **options)
        run.run()
        return run.models

    expected = models(rule(), tolerated=1)
    assert torch.equal(models(rule(tolerated=1)), expected)
    assert not torch.equal(models(rule()), expected)
    assert torch.equal(models(rule(tolerated=3), tolerated=1), expected)
    assert torch.equal(models(eq.PerClient([rule(tolerated=1)] * N)), expected)


@pytest.mark.parametrize("each", [False, True], ids=["one rule", "PerClient"])
def test_custom_rule_gets_update(each: bool) -> None:
    def halved(own: Tensor, received: eq.Inbox, *, update: Tensor, **_: Any) -> eq.Aggregated:
        return eq.Aggregated(own - update / 2)

    run = simulator(eq.PerClient([halved] * N) if each else halved, alpha=0.0)
    before = run.models
    run.step()
    torch.testing.assert_close(run.models, (before + pull(before, 0)) / 2)
