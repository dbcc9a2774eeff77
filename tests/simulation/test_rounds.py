"""Rounds are those of Algorithm 3 of the BALANCE paper."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from equipoise._utils.rng import stream
from tests.simulation.small_runs import (
    DEGREE,
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


def slow_round(
    models: np.ndarray, t: int, graph: eq.Topology, aggregate: Callable[..., Any], alpha: float
) -> np.ndarray:
    """Train, send, aggregate, mix: client by client, as the paper writes it."""
    trained = np.stack(
        [w + 0.5 * (goal - w) for w, goal in zip(models, GOALS.numpy(), strict=True)]
    )
    after = []
    for i in range(len(models)):
        received = [trained[j] for j in graph.neighbors(i).tolist()]
        after.append(alpha * trained[i] + (1 - alpha) * aggregate(trained[i], received, t))
    return np.stack(after)


def accepted_mean(own: np.ndarray, received: list[np.ndarray], t: int) -> np.ndarray:
    limit = 0.3 * math.exp(-t / ROUNDS) * np.linalg.norm(own)
    accepted = [w for w in received if np.linalg.norm(own - w) <= limit]
    return np.mean(accepted, axis=0) if accepted else own


@pytest.mark.parametrize(
    ("rule", "aggregate"),
    [
        (eq.FedAvg(), lambda own, received, t: np.mean(received, axis=0)),
        (eq.Median(), lambda own, received, t: np.median(received, axis=0)),
        (eq.Balance(), accepted_mean),
    ],
    ids=["FedAvg", "Median", "Balance"],
)
@pytest.mark.parametrize("alpha", [0.5, 0.1])
def test_algorithm_3(rule: Any, aggregate: Any, alpha: float) -> None:
    models = np.ones((N, D))
    run = simulator(rule, alpha=alpha)
    for t in range(ROUNDS):
        models = slow_round(models, t, GRAPH, aggregate, alpha)
        run.step()
        np.testing.assert_allclose(run.models.numpy(), models, rtol=1e-12)


def test_only_malicious_lie() -> None:
    run = simulator(eq.FedAvg(), attack=attacks.Zero())
    run.step()
    trained = pull(torch.ones(N, D, dtype=torch.float64), 0)
    trained_lies = trained.clone()
    trained_lies[MALICIOUS] = 0
    for i in range(N):
        heard = trained_lies[GRAPH.neighbors(i)].mean(0)
        torch.testing.assert_close(run.models[i], 0.5 * trained[i] + 0.5 * heard)


def test_attack_without_attackers() -> None:
    quiet = simulator(eq.FedAvg(), malicious=None)
    attacked = simulator(eq.FedAvg(), malicious=[], attack=attacks.Gaussian())
    assert quiet.run() == attacked.run()


def test_lies_change_every_round() -> None:
    class Heard:
        def __init__(self) -> None:
            self.lies: list[Tensor] = []

        def forge(self, known: attacks.Knowledge) -> eq.Lies | None:
            lies = attacks.Gaussian().forge(known)
            assert lies is not None
            self.lies.append(lies.rows)
            return lies

    heard = Heard()
    simulator(eq.FedAvg(), attack=heard).run()
    assert len(heard.lies) == ROUNDS
    assert not torch.equal(heard.lies[0], heard.lies[1])


def test_attack_knows_round() -> None:
    class Spy:
        def forge(self, known: attacks.Knowledge) -> None:
            seen.append((known.inputs["t"], known.inputs["total"], known.rule))
            torch.testing.assert_close(known.models, pull(known.previous, 0))

    seen: list[Any] = []
    simulator(eq.Balance(), attack=Spy()).run()
    assert seen == [(t, ROUNDS, eq.Balance()) for t in range(ROUNDS)]


class Greedy:
    def forge(self, known: attacks.Knowledge) -> None:
        torch.rand(7, generator=known.inputs["generator"])


@pytest.mark.parametrize(
    "attack", [attacks.Zero(), attacks.Adaptive(), attacks.Adaptive("literal"), Greedy()]
)
def test_generators_are_protected(attack: Any) -> None:
    drawn: list[float] = []

    def drawing(
        own: Tensor, received: Any, *, generator: torch.Generator, **inputs: Any
    ) -> eq.Aggregated:
        drawn.append(float(torch.rand((), generator=generator)))
        return eq.FedAvg()(own, received)

    run = simulator(drawing, attack=attack)
    for t in range(ROUNDS):
        run.step()
        assert drawn[-1] == float(torch.rand((), generator=stream(0, "aggregation", t)))


def test_bytes_per_round() -> None:
    plain, talkative = simulator(eq.FedAvg()).run(), simulator(eq.LEARN()).run()
    assert plain.series("bytes")[1] == [DEGREE * D * 8] * ROUNDS
    assert talkative.series("bytes")[1] == [
        DEGREE * D * 8 * (math.ceil(math.log2(t + 1)) + 1) for t in range(ROUNDS)
    ]
    assert (
        simulator(eq.FedAvg(), topology=GRAPH.with_self_loops()).run().series("bytes")[1][0]
        == DEGREE * D * 8
    )
    star = eq.Topology.from_edges(N, [(0, i) for i in range(1, N)])
    values = simulator(eq.FedAvg(), topology=star).run()[0].values
    assert (values["bytes"], values["bytes_max"]) == (2 * (N - 1) / N * D * 8, (N - 1) * D * 8)


def test_acceptance_rates() -> None:
    history = noisy(eq.Balance(gamma=0.5)).run()
    assert history.series("accepted_benign")[1] == [1.0] * ROUNDS
    assert history.series("accepted_malicious")[1] == [0.0] * ROUNDS
    with pytest.raises(ValueError, match="accepted_benign"):
        noisy(eq.Median()).run().series("accepted_benign")


def test_phases_are_timed() -> None:
    seconds = noisy(eq.Balance()).run()[-1].seconds
    assert set(seconds) == {
        "train",
        "forge",
        "deliver",
        "aggregate",
        "mix",
        "bookkeeping",
        "measure",
    }
    assert all(value > 0 for value in seconds.values())


def test_aggregation_time() -> None:
    class Slow:
        def forge(self, known: attacks.Knowledge) -> None:
            time.sleep(0.05)

    rounds = [one.seconds for one in simulator(eq.FedAvg(), attack=Slow()).run()]
    assert min(seconds["forge"] for seconds in rounds) >= 0.05
    assert (
        min(seconds["aggregate"] for seconds in rounds) < 0.05
    )  # in one of them nothing else came between


@pytest.mark.parametrize("keeps", ["state", "function"])
def test_aggregates_may_be_kept(keeps: str) -> None:
    """Rules get memory to write to, which is mixed in place; what they keep must not change."""
    kept: list[Tensor] = []
    expected: list[Tensor] = []

    class Keeping(eq.rules.Rule):
        def aggregate(self, own: Tensor, inbox: eq.Inbox, **inputs: Any) -> eq.Aggregated:
            out = eq.FedAvg().aggregate(own, inbox, out=inputs.get("out"))
            expected.append(out.model.clone())
            return eq.Aggregated(out.model, None, state=out.model)

    def rule(own: Tensor, inbox: eq.Inbox, **inputs: Any) -> eq.Aggregated:
        out = eq.FedAvg()(own, inbox, **inputs)
        expected.append(out.model.clone())
        kept.append(out.model)
        return out

    run = simulator(Keeping() if keeps == "state" else rule)
    for _ in range(ROUNDS):
        run.step()
        if keeps == "state":
            kept.append(run.state.rule_state)
    for one, other in zip(kept, expected, strict=True):
        assert torch.equal(one, other)
