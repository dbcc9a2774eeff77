"""Texts that identify values."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise._utils.identity import identity

SETTING = {"lr": 0.1}

# Two modules of a user, which import each other.
settings: Any = ModuleType("settings")
further: Any = ModuleType("further")
settings.RATE = 0.1
settings.further = further
further.RATE = 0.1
further.settings = settings


def helper(x: float) -> float:
    return x * SETTING["lr"]


def user(x: float) -> float:
    return helper(x)


@functools.cache
def cached(x: float) -> float:
    return helper(x)


class Rule:
    """A class that is not installed."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: float) -> float:
        return helper(x) * self.factor


def metric() -> eq.metrics.ErrorRate:
    model = eq.models.cnn((1, 28, 28), 10)
    return eq.metrics.ErrorRate(model, torch.rand(3, 1, 28, 28), torch.zeros(3, dtype=torch.long))


SAME: list[tuple[Any, Any]] = [
    (1, np.int64(1)),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({3, 1}, {1, 3}),
    (torch.ones(2), torch.ones(4)[::2]),
    (eq.Topology.ring(4), eq.Topology.ring(4)),
    (Rule(2), Rule(2)),
    (Path("a"), "a"),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (1, 1.0),
    ("1", 1),
    ([1], (1,)),
    (torch.ones(2), torch.zeros(2)),
    (torch.ones(2), torch.ones(2, dtype=torch.bfloat16)),
    (torch.zeros(2, 1), torch.zeros(1, 2)),
    (np.ones(2), np.zeros(2)),
    (eq.Balance(), eq.Balance(kappa=0)),
    (eq.Balance(progress=lambda t, total: t), eq.Balance(progress=lambda t, total: t / total)),
    (eq.Topology.ring(4), eq.Topology.complete(4)),
    (nn.Linear(2, 1), nn.Linear(2, 1)),
    (functools.partial(helper, x=1), functools.partial(helper, x=2)),
    (Rule(2), Rule(3)),
    (Rule(2).__call__, Rule(3).__call__),
    (torch.relu, torch.abs),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_equal_values(first: Any, second: Any) -> None:
    assert identity(first) == identity(second)


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different_values(first: Any, second: Any) -> None:
    assert identity(first) != identity(second)


@pytest.mark.parametrize("function", [user, cached, Rule(1), Rule])
def test_helpers_and_settings_count(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(function)
    assert identity(function) == before
    monkeypatch.setitem(SETTING, "lr", 0.2)
    assert identity(function) != before


def rate_of_module() -> float:
    return settings.RATE * settings.further.RATE


def test_values_of_own_modules_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(rate_of_module)
    monkeypatch.setattr(settings, "RATE", 0.2)
    changed = identity(rate_of_module)
    assert changed != before
    monkeypatch.setattr(further, "RATE", 0.2)
    assert identity(rate_of_module) != changed
    monkeypatch.undo()
    assert identity(rate_of_module) == before


def test_closures_count() -> None:
    def scaled(factor: float) -> Any:
        return lambda x: factor * x

    assert identity(scaled(1)) == identity(scaled(1))
    assert identity(scaled(1)) != identity(scaled(2))


def test_code_without_source() -> None:
    def compiled(text: str) -> Any:
        names: dict[str, Any] = {}
        exec(text, names)
        return names["f"]

    assert identity(compiled("def f(): return 1")) == identity(compiled("def f(): return 1"))
    assert identity(compiled("def f(): return 1")) != identity(compiled("def f(): return 2"))


def test_use_changes_no_identity() -> None:
    """Of an object that keeps replicas for its threads."""
    error = metric()
    before = identity(error)
    model = eq.models.cnn((1, 28, 28), 10)
    error(eq.flatten(model).expand(2, -1))
    assert identity(error) == before


def test_functions_may_be_recursive() -> None:
    def down(n: int) -> int:
        return down(n - 1) if n else 0

    assert identity(down) == identity(down)


def test_globals_without_identity_are_ignored() -> None:
    lock = threading.Lock()

    def locked() -> bool:
        return lock.locked()

    assert identity(locked) == identity(locked)


@pytest.mark.parametrize("value", [object(), threading.Lock(), [object()]])
def test_addresses_are_no_identity(value: Any) -> None:
    with pytest.raises(ValueError, match="more than its address in memory identifies, found <"):
        identity(value)


def test_processes_agree() -> None:
    code = "from tests._utils.test_identity import *; print(identity((user, Rule(2), {'b', 'a'})))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    import importlib

    here = importlib.import_module("tests._utils.test_identity")
    assert found.stdout.strip() == identity((here.user, here.Rule(2), {"b", "a"}))
