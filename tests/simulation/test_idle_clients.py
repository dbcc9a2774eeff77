"""Malicious clients that no client hears are neither trained nor aggregated."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks

UNHEARD = [attacks.Gaussian(), attacks.Zero(), attacks.LIE(), attacks.MinMax(), attacks.Dissensus()]
RULES = [
    eq.FedAvg(),
    eq.Krum(),
    eq.TrimmedMean(),
    eq.Median(),
    eq.FLTrust(),
    eq.UBAR(),
    eq.LEARN(),
    eq.SCClip(),
    eq.Balance(gamma=3.0),
    eq.BalanceMedian(gamma=3.0),
]


def simulator(rule: Any, attack: Any, n: int = 8, **options: Any) -> eq.Simulator:
    generator = torch.Generator().manual_seed(n)
    clients = [
        (torch.randn(7, 4, generator=generator), torch.randint(3, (7,), generator=generator))
        for _ in range(n)
    ]
    model = options.pop("model", None) or eq.models.logistic_regression(4, 3, init="torch")
    malicious = options.pop("malicious", [1, 4])
    trainer = eq.LocalSGD(
        model,
        nn.functional.cross_entropy,
        clients,
        lr=0.1,
        batch_size=3,
        momentum=options.pop("momentum", 0.0),
    )
    chosen: dict[str, Any] = {
        "topology": eq.Topology.complete(n),
        "models": eq.flatten(model).repeat(n, 1),
        "metrics": {"size": lambda models: models.double().norm(dim=1)},
        "total": 4,
        "tolerated": 1,
    }
    return eq.Simulator(trainer, rule=rule, attack=attack, malicious=malicious, **chosen | options)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[eq.Topology, list[int]]:
    n = draw(st.integers(6, 30))
    seed = draw(st.integers(0, 99))
    malicious = eq.draw_malicious(n, draw(st.sampled_from([0.2, 0.4])), seed=seed).tolist()
    kind = draw(st.sampled_from(["complete", "random", "loops"]))
    if kind == "complete":
        return eq.Topology.complete(n), malicious
    graph = eq.Topology.erdos_renyi(n, 0.5, seed=seed, connected=False)
    return graph if kind == "random" else graph.with_self_loops(), malicious


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@settings(max_examples=12, deadline=None)
@given(drawn=graphs(), attack=st.sampled_from(UNHEARD), momentum=st.sampled_from([0.0, 0.9]))
@pytest.mark.filterwarnings("ignore:tolerated must be")
def test_benign_results_are_equal(
    rule: Any, drawn: tuple[eq.Topology, list[int]], attack: Any, momentum: float
) -> None:
    graph, malicious = drawn
    options = {"n": graph.n, "topology": graph, "malicious": malicious, "momentum": momentum}
    quick = simulator(rule, attack, **options)
    whole = simulator(rule, attack, **options, train_malicious=True)
    benign = list(quick.history.benign)
    for _ in range(4):
        quick.step()
        whole.step()
        if eq.native_available:
            assert torch.equal(quick.models[benign], whole.models[benign])
        else:
            # Matrix products of torch round differently for other numbers of rows.
            torch.testing.assert_close(quick.models[benign], whole.models[benign])
    for one, other in zip(quick.history, whole.history, strict=True):
        shared = {name: x for name, x in one.values.items() if name != "idle"}
        assert shared.keys() == other.values.keys()
        for name, value in shared.items():
            found = other.values[name]
            assert value == pytest.approx(
                found, rel=0 if eq.native_available else 1e-3, nan_ok=True
            )


def test_idle_clients_keep_their_models() -> None:
    run = simulator(eq.Median(), attacks.Gaussian())
    initial = run.models.clone()
    history = run.run()
    changed = (run.models != initial).any(1)
    assert changed.tolist() == [client not in (1, 4) for client in range(8)]
    assert history.summary()["idle"] == 2
    assert "2 malicious clients not trained: no client hears their models" in str(history)
    sizes = history.per_client("size")
    assert [client for client, size in enumerate(sizes) if math.isnan(size)] == [1, 4]
    assert math.isfinite(history.summary()["max_size"])


@pytest.mark.parametrize(
    "options",
    [
        {"train_malicious": True},
        {"attack": None},
        {"attack": attacks.LabelFlip({0: 1, 1: 2, 2: 0})},
        {"attack": attacks.Adaptive()},
        {"attack": attacks.Window(attacks.Zero(), start=1, stop=4)},
        {"attack": attacks.OnlyClients(attacks.Zero(), clients=[1])},
        {"malicious": []},
    ],
    ids=["by choice", "none", "data", "adaptive", "window", "some clients", "nobody"],
)
def test_heard_clients_are_trained(options: dict[str, Any]) -> None:
    run = simulator(eq.FedAvg(), **{"attack": attacks.Zero()} | options)
    initial = run.models.clone()
    assert "idle" not in run.run().summary()
    assert (run.models != initial).any(1).all()


def test_function_trains_everybody() -> None:
    """A function cannot be told to leave clients out."""
    run = eq.Simulator(
        lambda models, t: models + 1,
        eq.Topology.complete(3),
        eq.Median(),
        torch.zeros(3, 2),
        attack=attacks.Zero(),
        malicious=[2],
    )
    run.step()
    assert run.models[2].tolist() != [0, 0]


class Incomplete:
    """Declares that it replaces all messages, and does not."""

    uses_malicious_models = False

    def __init__(self, lies: Any) -> None:
        self._lies = lies

    def forge(self, known: attacks.Knowledge) -> eq.Lies | None:
        lies: eq.Lies | None = self._lies(known.models)
        return lies


@pytest.mark.parametrize(
    "lies",
    [lambda models: None, lambda models: eq.Lies.per_sender(models, only=[4])],
    ids=["none", "some"],
)
def test_incomplete_lies(lies: Any) -> None:
    run = simulator(eq.FedAvg(), Incomplete(lies))
    with pytest.raises(
        ValueError, match=r"attack must replace every .*found none from client 1 to 0; train_malic"
    ):
        run.step()
    assert run.t == 0
    simulator(eq.FedAvg(), Incomplete(lies), train_malicious=True).step()


def test_flag() -> None:
    with pytest.raises(ValueError, match="train_malicious must be True or False, found 1"):
        simulator(eq.FedAvg(), None, train_malicious=1)


def test_random_models_draw_the_same() -> None:
    """Dropout draws from a seed per client, so leaving clients out changes nothing."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))

    runs = [
        simulator(eq.Median(), attacks.Zero(), model=model(), train_malicious=choice)
        for choice in (False, True)
    ]
    for run in runs:
        run.run()
    benign = list(runs[0].history.benign)
    assert torch.equal(runs[0].models[benign], runs[1].models[benign])


def test_lies_that_change_their_addresses() -> None:
    """The routes of the last round serve only lies with the same addresses."""

    class Moving:
        uses_malicious_models = False

        def forge(self, known: attacks.Knowledge) -> eq.Lies:
            t = known.inputs["t"]
            rows = torch.arange(8.0)[:, None].expand(8, known.models.shape[1]) + 10 * (t + 1)
            some: Tensor = rows[: 1 + t % 2].contiguous()
            everyone = torch.full((len(some),), -1)
            return eq.Lies(some, everyone, everyone)

    received = []

    def rule(own: Tensor, inbox: eq.Inbox, **_: Any) -> eq.Aggregated:
        received.append(float(inbox.bank[inbox.slots[0]].max()))
        return eq.Aggregated(own)

    simulator(rule, Moving()).run()
    # Of equal addresses the last one counts.
    assert received == [10, 21, 30, 41]
