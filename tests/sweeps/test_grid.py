"""Choices, their labels, and mistakes in a grid."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.sweeps._labels import labels_of
from tests.sweeps.small import make


def scaled(models: torch.Tensor, by: float) -> torch.Tensor:
    return by * models


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, np.int64(1), 0.5, True, "text", None], [0, 1, 0.5, True, "text", "none"]),
        ([eq.Balance(), eq.Median()], ["Balance", "Median"]),
        (
            [eq.Balance(gamma=0.1), eq.Balance(gamma=0.1, kappa=0), eq.Krum()],
            ["Balance(kappa=1.0)", "Balance(kappa=0)", "Krum"],
        ),
        ([scaled, functools.partial(scaled, by=2)], ["scaled", "scaled(by=2)"]),
        ([eq.Topology.ring(4), torch.ones(2)], ["Topology(n=4, k=2, e=8)", "tensor([1., 1.])"]),
        (
            [functools.partial(scaled, by=1), functools.partial(scaled, by=2)],
            ["scaled(by=1)", "scaled(by=2)"],
        ),
        ([1, "1"], ["1 #1", "1 #2"]),
        ([eq.attacks.Window(eq.attacks.Zero(), 0, 2)], ["Window"]),
        ([torch.nn.functional.relu], ["relu"]),
    ],
)
def test_labels(values: list[Any], labels: list[Any]) -> None:
    found = labels_of(values)
    assert found == labels
    assert list(map(type, found)) == list(map(type, labels))


def run(*arguments: Any, **options: Any) -> Any:
    return eq.sweep(*arguments, progress=False, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((None,), {"seed": [0]}, "make must be a function, found NoneType"),
        ((make,), {}, "a sweep must have a value for each axis, found none"),
        ((make,), {"seed": []}, "a sweep must have a value for each axis, found none"),
        ((make,), {"seed": 3}, "seed must be a list of values, or a dict .*, found 3"),
        ((make,), {"rule": "Median"}, "rule must be a list of values, .*, found 'Median'"),
        ((make,), {"seed": [1, 1]}, "seed must hold different values, found 1 #1 twice"),
        ((make,), {"rule": {"a": eq.Median(), "b": eq.Median()}}, "values, found a twice"),
        ((make, {"seed": [0]}), {}, "grid must be a list of dicts that have the same names"),
        ((make, [{"seed": 0}, {"total": 3}]), {}, "grid must be a list of dicts .*'total'"),
        ((make, []), {}, "grid must be a list of dicts that have the same names, found no dict"),
        ((make, [{"seed": 0}, {"seed": 0}]), {}, "grid must hold different choices, found one"),
        ((make, [{"seed": 0}]), {"seed": [1]}, "the axes must be new, found seed, which grid has"),
        ((make,), {"seed": [object()]}, "seed: expected a value .* found <object .* dataclass is"),
        ((make,), {"seed": [0], "workers": 0}, "workers must be an .* or -1 .*, found 0"),
        ((make,), {"seed": [0], "workers": -2}, "at least 1, or -1 for all cores, found -2"),
        ((make,), {"seed": [0], "workers": "4"}, "at least 1, or -1 for all cores, found '4'"),
        ((make,), {"seed": [0], "backend": "rai"}, "backend must be 'dask', .* or .*, found 'rai'"),
        ((lambda other: 3,), {"seed": [0]}, "of the sweep, seed: missing .* argument: 'other'"),
        ((lambda: 3,), {"seed": [0]}, "of the sweep, seed: got an unexpected .* 'seed'"),
        ((make, [{"sed": 0}]), {}, "make must accept the .*, sed: got an unexpected .* 'sed'"),
        ((make,), {"seed": [0], "threads": 0}, "threads must be an integer at least 1"),
        ((make,), {"seed": [0], "recompute": 1}, "recompute must be True or False, found 1"),
        ((make,), {"seed": [0], "measure": 1}, "measure must be a function, found int"),
        ((make,), {"seed": [0], "save_every": 0}, "save_every must be an integer at least 1"),
    ],
)
def test_mistakes(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(*arguments, **options)


def no_total(seed: int) -> eq.Simulator:
    return eq.Simulator(scaled, eq.Topology.ring(3), None, torch.ones(3, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda seed: 3, {}, "make must return a Simulator or a History, found int"),
        (no_total, {}, "make must return a Simulator(..., total=...), found one without total"),
        (make, {"measure": lambda simulator: 3}, "measure must return a dict, found int"),
        (make, {"measure": lambda simulator: {"x": simulator}}, "not JSON serializable"),
        (
            lambda seed: eq.History(1),
            {"measure": lambda simulator: {}},
            "make must return a Simulator, because of measure or on_round, found a History",
        ),
    ],
)
def test_mistakes_of_make_are_failures(
    function: Any, options: dict[str, Any], message: str
) -> None:
    (cell,) = run(function, seed=[0], **options)
    assert message in cell.failure
