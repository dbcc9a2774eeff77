"""Torch's default dtype and device are for who makes tensors, and change nothing for models that are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import attacks, data, metrics, models
from tests import test_data_celeba, test_data_har, test_data_idx
from tests.cases import RULES
from tests.graphs import deliver, models_of, regular, round_inputs

GRAPHS = {"sparse": regular(10, 4), "complete": regular(8, 7)}
OTHERS = [("cpu", torch.float64), ("cpu", torch.float16)]

every_default = pytest.mark.parametrize(("device", "dtype"), OTHERS, ids=str)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device("cpu")


def arguments(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """Models, inbox and round inputs of a graph, made while the defaults are what they were."""
    graph = GRAPHS[name]
    models = models_of(graph, 300, dtype, 0)
    return models, deliver(graph, models), round_inputs(graph, models)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_default_device(rule: Any, graph: str) -> None:
    """The device meta stands for any other than the one that models are on."""
    models, inbox, inputs = arguments(graph, torch.float32)
    expected = rule(models, inbox, **inputs).model
    torch.set_default_device("meta")
    assert torch.equal(rule(models, inbox, **inputs).model, expected)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_default_dtype(rule: Any, dtype: torch.dtype, default: torch.dtype) -> None:
    models, inbox, inputs = arguments("sparse", dtype)
    expected = rule(models, inbox, **inputs).model
    torch.set_default_dtype(default)
    assert torch.equal(rule(models, inbox, **inputs).model, expected)


# What is made while the defaults are others


def same(found: Any, expected: Any) -> bool:
    """Whether two results are equal bit by bit, of one dtype and on one device."""
    if isinstance(expected, torch.Tensor):
        return (found.dtype, found.device) == (expected.dtype, expected.device) and torch.equal(found, expected)
    if is_dataclass(expected):
        return same(asdict(found), asdict(expected))
    if isinstance(expected, dict):
        return same(list(found), list(expected)) and same([*found.values()], [*expected.values()])
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def made_alike(make: Callable[[], Any], device: str, dtype: torch.dtype) -> bool:
    """Whether the same is made under other defaults; the expected comes first."""
    expected = make()
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    return same(make(), expected)


def source() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(0)


GRAPH, LABELS, SIX = eq.Topology.complete(6), torch.arange(90) % 5, list(range(6))

MADE: dict[str, Callable[[], Any]] = {
    "drop": lambda: GRAPH.drop(0.4, source()),
    "cnn": lambda: eq.flatten(models.cnn()),
    "cnn of torch": lambda: eq.flatten(models.cnn(init="torch")),
    "linear regression": lambda: eq.flatten(models.linear_regression(3, init="torch")),
    "logistic regression": lambda: eq.flatten(models.logistic_regression(3, 2)),
    "initial models": lambda: models.initial_models(lambda seed: models.linear_regression(3, seed=seed), 2, same=False),
    "synthetic regression": lambda: data.synthetic_regression(n_train=5, n_test=2, features=3),
    "digits": data.digits,
}


@every_default
@pytest.mark.parametrize("name", MADE)
def test_what_is_made(name: str, device: str, dtype: torch.dtype) -> None:
    assert made_alike(MADE[name], device, dtype)


@every_default
@pytest.mark.parametrize("name", ["celeba", "har", "mnist"])
def test_what_is_read(name: str, device: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if name == "celeba":
        test_data_celeba.write(tmp_path)
        assert made_alike(lambda: data.celeba(tmp_path, size=8, limit=18, progress=False), device, dtype)
    elif name == "har":
        test_data_har.write(tmp_path, test_data_har.files())
        assert made_alike(lambda: data.har(tmp_path), device, dtype)
    else:
        test_data_idx.write(tmp_path)
        assert made_alike(lambda: data.mnist(tmp_path), device, dtype)


# Whole runs

IMAGES, CLASSES = torch.rand(60, 1, 4, 4, generator=source()), torch.arange(60) % 3
SMALL = data.Dataset(IMAGES[:48], CLASSES[:48], IMAGES[48:], CLASSES[48:], classes=3)
MODEL, START = models.logistic_regression(16, 3), torch.randn(6, 51, generator=source())
TRIGGER = attacks.PixelPattern(((0, 0),))
WORST = {"Zero": attacks.Zero(), "Gaussian": attacks.Gaussian()}
ATTACKS: dict[str, Any] = WORST | {
    "Adaptive": attacks.Adaptive(),
    "Adaptive, literal": attacks.Adaptive("literal", perturbation="std"),
    "Backdoor": attacks.Backdoor(TRIGGER),
    "Dissensus": attacks.Dissensus(),
    "Dissensus, metropolis": attacks.Dissensus(weights="metropolis"),
    "FeatureNoise": attacks.FeatureNoise(),
    "IPM": attacks.IPM(),
    "Isolation": attacks.Isolation(),
    "KrumAttack": attacks.KrumAttack(),
    "KrumAttack, fang": attacks.KrumAttack(form="fang", scope="global"),
    "LIE": attacks.LIE(),
    "LabelFlip": attacks.LabelFlip({0: 1}),
    "Mimic": attacks.Mimic(),
    "MinMax": attacks.MinMax(),
    "MinMax, std": attacks.MinMax(perturbation="std", scope="global"),
    "MinSum": attacks.MinSum(perturbation="sign"),
    "NonFinite": attacks.NonFinite(),
    "OnModels": attacks.OnModels(attacks.Gaussian()),
    "SignFlip": attacks.SignFlip(),
    "Spectral": attacks.Spectral(),
    "TrimAttack": attacks.TrimAttack(),
    "TrimAttack, fang": attacks.TrimAttack(form="fang", scope="global"),
    "Window": attacks.Window(attacks.LabelFlip({0: 1}), 1, 2),
}


def run(attack: Any, rule: Any, clients: Any = None, **options: Any) -> list[Any]:
    """Models and what was measured of two rounds with ids of malicious clients."""
    pairs = SMALL.split(data.iid(SMALL, 6)) if clients is None else clients
    measured = {
        "error": metrics.ErrorRate(MODEL, SMALL.test_x, SMALL.test_y),
        "success": metrics.AttackSuccess(MODEL, SMALL.test_x, SMALL.test_y, TRIGGER, 0),
    }
    trainer = eq.LocalSGD(MODEL, cross_entropy, pairs, lr=0.1, batch_size=4, momentum=0.5)
    simulator = eq.Simulator(trainer, GRAPH, rule, START, attack=attack, malicious=[0, 3], metrics=measured, **options)
    simulator.run(2)
    return [simulator.models, [(one.clients, one.values) for one in simulator.history]]


@every_default
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_run_with_every_attack(attack: Any, device: str, dtype: torch.dtype) -> None:
    clients = SMALL.split(data.iid(SMALL, 6))
    assert made_alike(lambda: run(attack, eq.FedAvg(), clients), device, dtype)


def test_every_attack_is_run() -> None:
    public = (getattr(attacks, name) for name in attacks.__all__)
    known = {thing for thing in public if isinstance(thing, type) and {"forge", "poison"} & set(dir(thing))}
    assert known - {attacks.Only, attacks.Together} == set(map(type, ATTACKS.values()))
