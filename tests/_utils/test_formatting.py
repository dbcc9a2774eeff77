"""Objects are shown like the call that makes them: what is printed can be typed."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from benchmarks.paper.setting import Setting
from equipoise import attacks, rules
from equipoise.training._ensemble._losses import BatchLoss

NAMES = {**vars(eq), **vars(attacks), "Setting": Setting, "inf": math.inf} | {
    "Groups": eq.parameters.Groups
}
NEED_ARGUMENTS = [
    eq.Balance(gamma=0.5, kappa=0, progress=math.dist),
    eq.PerGroup(eq.groups(torch.nn.Linear(2, 1)), {"weight": eq.Median(), "bias": None}),
    eq.NNM(eq.Krum(tolerated=1)),
    eq.ARC(eq.Median()),
    eq.Bucketing(eq.GeometricMedian(), s=3),
    eq.StaticClip(eq.FedAvg(), radius=2.0),
    eq.PerClient([eq.Median(), eq.Balance(), eq.Krum(tolerated=1)]),
    attacks.Adaptive(rule=eq.Balance()),
    attacks.Backdoor(attacks.EveryNth(2), target=0),
    attacks.Chain((attacks.EveryNth(2), attacks.ONE_PIXEL)),
    attacks.LabelFlip({3: 5}),
    attacks.LabelFlip(offset=5.0),
    attacks.NonFinite(math.inf),  # NaN, its default, is not equal to itself
    attacks.InModelSpace(attacks.KrumAttack()),
    attacks.Tuned(attacks.Dissensus(), queries=3),
    attacks.OnlyClients(attacks.LabelFlip({3: 5}), clients=(0, 1)),
    attacks.Combined(attacks.Window(attacks.MinMax(), 1, 2), attacks.Zero()),
    attacks.Window(attacks.LIE(z=1.0), start=0, stop=5),
    Setting(rule="Krum", attack="TrimAttack"),
]


def made_without_arguments() -> list[Any]:
    """Every rule, attack and trigger that has a default for everything."""
    modules = [getattr(module, name) for module in (rules, attacks) for name in module.__all__]
    classes = [one for one in modules if inspect.isclass(one) and not inspect.isabstract(one)]
    classes = [one for one in classes if not getattr(one, "_is_protocol", False)]
    others = {type(made) for made in NEED_ARGUMENTS} | {attacks.Knowledge, rules.GuaranteeWarning}
    return [one() for one in classes if one not in others]


@pytest.mark.parametrize(
    "made", [*NEED_ARGUMENTS, *made_without_arguments()], ids=lambda made: type(made).__name__
)
def test_what_is_shown_makes_the_same(made: Any) -> None:
    assert eval(repr(made), NAMES | {"dist": math.dist}) == made


def test_nan_is_shown() -> None:
    assert repr(attacks.NonFinite()) == "NonFinite(value=nan)"


def test_a_function_is_shown_by_its_name() -> None:
    def half(t: int, generator: torch.Generator) -> float:
        return 0.5

    assert repr(eq.EachRound(half)).endswith(".half)")
    assert (
        repr(BatchLoss(cross_entropy, "mean"))
        == "BatchLoss(function=cross_entropy, reduction='mean')"
    )


def test_a_tensor_is_shown_by_dtype_and_shape() -> None:
    x, y = torch.rand(4, 2), torch.tensor([0, 1, 1, 0])
    graph = eq.Topology.ring(4)
    shown = {
        eq.data.Dataset(x, y, x, y, classes=2): "x=float32 (4, 2), y=int64 (4,)",
        graph.deliver(x): "Inbox(bank=float32 (4, 2), slots=int64 (4, 2)",
        eq.Lies.to_all(torch.ones(3)): "Lies(rows=float32 (1, 3), senders=int64 (1,)",
        attacks.Knowledge(
            x, graph, [0]
        ): "Knowledge(models=float32 (4, 2), topology=Topology(n=4, k=2, e=8)",
    }
    for made, part in shown.items():
        assert part in repr(made)
        assert "\n" not in repr(made)


def test_a_simulator_and_a_metric_are_shown_by_what_they_are_made_of() -> None:
    x, y = torch.rand(4, 2), torch.tensor([0, 1, 1, 0])
    model = torch.nn.Linear(2, 2)
    trainer = eq.LocalSGD(model, cross_entropy, [(x, y)] * 4, lr=0.1)
    simulator = eq.Simulator(
        trainer, eq.Topology.ring(4), eq.Median(), torch.zeros(4, 6), malicious=[3]
    )
    assert repr(simulator) == (
        f"Simulator(trainer={trainer!r}, topology=Topology(n=4, k=2, e=8), "
        "rule=Median(weighted=False, cap=2.0), models=float32 (4, 6), "
        "attack=None, malicious=[3], alpha=0.5, t=0, total=None)"
    )
    assert (
        repr(eq.metrics.ErrorRate(model, x, y)) == "ErrorRate(d=6, x=float32 (4, 2), y=int64 (4,))"
    )
