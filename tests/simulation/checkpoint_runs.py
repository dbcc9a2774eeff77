"""Runs of every kind, to be saved, resumed, interrupted and damaged."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks
from equipoise._utils.rng import stream

N, D, ROUNDS = 6, 5, 5


MALICIOUS = [0, 3]


GRAPH = eq.Topology.regular(N, 4, seed=1, malicious=MALICIOUS)


GOALS = 1 + 0.1 * torch.randn(N, D, generator=stream(0, "goals"), dtype=torch.float64)


X, Y = (
    torch.randn(N, 9, 4, generator=stream(0, "x")),
    torch.randint(3, (N, 9), generator=stream(0, "y")),
)


linux = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes")


def pull(models: Tensor, t: int) -> Tensor:
    """Local training on a quadratic loss."""
    return models + 0.5 * (GOALS[: len(models), : models.shape[1]].to(models.dtype) - models)


class Size:
    """A metric."""

    def __call__(self, models: Tensor) -> Tensor:
        return models.double().norm(dim=1)


def simulator(rule: Any = eq.Balance(), **options: Any) -> eq.Simulator:  # noqa: B008
    settings: dict[str, Any] = {
        "trainer": pull,
        "topology": GRAPH,
        "models": torch.ones(N, D, dtype=torch.float64),
        "attack": attacks.Gaussian(),
        "malicious": MALICIOUS,
        "metrics": {"size": Size()},
        "total": ROUNDS,
    }
    return eq.Simulator(rule=rule, **settings | options)


def sgd(momentum: float = 0.9, data: tuple[Tensor, Tensor] = (X, Y), **options: Any) -> eq.LocalSGD:
    clients = list(zip(*data, strict=True))
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "momentum": momentum}
    return eq.LocalSGD(
        eq.models.logistic_regression(4, 3),
        nn.functional.cross_entropy,
        clients,
        **settings | options,
    )


def trained(rule: Any = eq.FedAvg(), **options: Any) -> eq.Simulator:  # noqa: B008
    """With real training, momentum and data that are poisoned for a while."""
    start = torch.randn(15, generator=stream(0, "start")).expand(N, -1)
    window = attacks.Window(attacks.LabelFlip({0: 1, 1: 2, 2: 0}), 1, 3)
    return simulator(rule, **{"trainer": sgd(), "models": start, "attack": window} | options)


class Remembering:
    """A rule with a state: the mean of all aggregates so far."""

    def __call__(self, own: Tensor, received: Any, *, state: Any = None, **_: Any) -> eq.Aggregated:
        before = state or {"sum": torch.zeros_like(own), "count": torch.tensor(0)}
        now = {
            "sum": before["sum"] + eq.Median()(own, received).model,
            "count": before["count"] + 1,
        }
        return eq.Aggregated(now["sum"] / now["count"], None, now)


class Wandering:
    """A trainer of one's own, with a state."""

    def __init__(self) -> None:
        self.places = torch.zeros(N, D, dtype=torch.bfloat16)

    def __call__(self, models: Tensor, t: int) -> Tensor:
        self.places = self.places + torch.randn(N, D, generator=stream(0, "wander", t)).bfloat16()
        return models + self.places

    def state_dict(self) -> dict[str, Tensor]:
        return {"places": self.places}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.places = state["places"].clone()


def everything_redrawn(**options: Any) -> eq.Simulator:
    """Cases II and IV of the paper, and clients that disconnect."""
    rules = [eq.Median(), eq.Balance(), eq.Krum(), eq.TrimmedMean()]
    return simulator(
        eq.EachRound(lambda t, generator: eq.PerClient.drawn(rules, N, generator)),
        topology=eq.EachRound(lambda t, generator: GRAPH.drop(0.3, generator)),
        alpha=eq.EachRound(lambda t, generator: torch.rand(N, generator=generator)),
        **options,
    )


RUNS: dict[str, Callable[[], eq.Simulator]] = {
    "plain": simulator,
    "momentum, and poison for a while": trained,
    "a learning rate for every round": lambda: trained(trainer=sgd(lr=lambda t: 0.1 * 0.5**t)),
    "losses": lambda: trained(eq.UBAR()),
    "several exchanges": lambda: trained(eq.LEARN()),
    "everything redrawn": everything_redrawn,
    "a rule with a state": lambda: simulator(Remembering()),
    "a trainer of one's own": lambda: simulator(trainer=Wandering()),
    "local training only": lambda: simulator(None),
    "measured now and then": lambda: simulator(
        evaluate_every=2, metrics={"a": Size(), "b": lambda models: models[:, 0].double()}
    ),
    "not measured": lambda: simulator(metrics=None),
    "one client": lambda: simulator(
        topology=eq.Topology.complete(1), models=torch.ones(1, D), malicious=None, attack=None
    ),
    "NaN": lambda: simulator(eq.FedAvg(), attack=attacks.NonFinite(), keep_nonfinite=True),
    "bfloat16": lambda: simulator(models=torch.ones(N, D, dtype=torch.bfloat16)),
    "float16": lambda: simulator(models=torch.ones(N, D, dtype=torch.float16)),
}


every_kind = pytest.mark.parametrize("make", RUNS.values(), ids=list(RUNS))


@cache
def undisturbed(make: Callable[[], eq.Simulator]) -> dict[str, Any]:
    return ended(make())


def everything(run: eq.Simulator, *, seconds: bool = False) -> dict[str, Any]:
    """All that changes from round to round, bit by bit."""
    history = run.history.to_dict()
    rounds = [one if seconds else one | {"seconds": None} for one in history["rounds"]]
    trainer = run.trainer.state_dict() if hasattr(run.trainer, "state_dict") else None
    rule_state = run.state.rule_state
    return {
        "models": bits(run.models),
        "t": run.t,
        "total": run.total,
        "state": rule_state and {name: bits(x) for name, x in rule_state.items()},
        "trainer": trainer and {name: bits(x) for name, x in trainer.items()},
        "history": json.dumps(history | {"rounds": rounds}),  # as text, so that order counts
        "diverged": run.history.diverged,
    }


def bits(x: Tensor) -> tuple[Any, ...]:
    return (
        str(x.dtype),
        tuple(x.shape),
        x.contiguous().view(torch.uint8 if x.dim() else x.dtype).numpy().tobytes(),
    )


def ended(run: eq.Simulator, **options: Any) -> dict[str, Any]:
    run.run(**options)
    return everything(run)


def leftovers(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.part"))


def refused(path: Path, match: str) -> None:
    """Neither loading nor running changes anything, or starts over."""
    run, content = trained(), path.read_bytes()
    run.step()
    before = everything(run, seconds=True)
    for attempt in (run.load, lambda path: run.run(checkpoint=path)):
        with pytest.raises(ValueError, match=f"{path.name} must be a checkpoint.*{match}"):
            attempt(path)
        assert everything(run, seconds=True) == before
        assert path.read_bytes() == content


def edited(path: Path, **members: Any) -> None:
    """The same archive, with some members replaced; its checksums are right."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for name, new in members.items():
        content |= (
            {f"{name}.npy": new}
            if name != "about"
            else {"about.json": new(json.loads(content["about.json"]))}
        )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data if isinstance(data, bytes) else json.dumps(data))


def saved_array(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
