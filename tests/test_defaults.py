"""Torch's default dtype and device change no result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from benchmarks.paper import run as trials
from benchmarks.paper import tasks
from benchmarks.paper.setting import Setting
from equipoise import attacks, data, metrics, models
from equipoise._utils.rng import draw_uniform, stream
from tests.cases import RULES
from tests.data import test_celeba, test_har, test_mnist
from tests.graphs import deliver, models_of, regular, round_inputs

GRAPHS = {"sparse": regular(10, 4), "complete": regular(8, 7)}
OTHERS = [
    ("meta", torch.float64),
    ("cpu", torch.float16),
]  # meta stands for any device but that of the models

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


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_default_device(rule: Any, graph: str) -> None:
    """The device meta stands for any other than the one that models are on."""
    models, inbox, inputs = arguments(graph, torch.float32)
    expected = rule(models, inbox, **inputs).model
    torch.set_default_device("meta")
    assert torch.equal(rule(models, inbox, **inputs).model, expected)


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_default_dtype(rule: Any, dtype: torch.dtype, default: torch.dtype) -> None:
    models, inbox, inputs = arguments("sparse", dtype)
    expected = rule(models, inbox, **inputs).model
    torch.set_default_dtype(default)
    assert torch.equal(rule(models, inbox, **inputs).model, expected)


# Objects made under other defaults


def same(found: Any, expected: Any) -> bool:
    """Whether two results are equal bit by bit, of one dtype and on one device."""
    if isinstance(expected, torch.Tensor):
        return (found.dtype, found.device) == (expected.dtype, expected.device) and torch.equal(
            found, expected
        )
    if is_dataclass(expected):
        return same(asdict(found), asdict(expected))
    if isinstance(expected, dict):
        return same(list(found), list(expected)) and same([*found.values()], [*expected.values()])
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected or (found != found and expected != expected))  # NaN


def made_alike(make: Callable[[], Any], device: str, dtype: torch.dtype) -> bool:
    """Whether the same is made under other defaults; the expected comes first."""
    expected = make()
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    return same(make(), expected)


def source() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(0)


GRAPH, LABELS = eq.Topology.complete(6), torch.arange(90) % 5

MADE: dict[str, Callable[[], Any]] = {
    "lies": lambda: eq.Lies.join(eq.Lies.per_sender(START), eq.Lies.to_all(START[0])),
    "lies, of a tensor": lambda: GRAPH.deliver(START, -START, malicious=[0, 3]).bank,
    "ring": lambda: eq.Topology.ring(5),
    "complete": lambda: eq.Topology.complete(5),
    "regular": lambda: eq.Topology.regular(8, 4, seed=0, malicious=[0, 1]),
    "erdos_renyi": lambda: eq.Topology.erdos_renyi(8, 0.5, seed=0),
    "small_world": lambda: eq.Topology.small_world(8, 4, 0.3, seed=0),
    "random_with_femb": lambda: eq.Topology.random_with_femb(8, 0.3, [0, 1], seed=0),
    "from_edges": lambda: eq.Topology.from_edges(3, [(0, 1), (2, 1)], directed=True),
    "from no edges": lambda: eq.Topology.from_edges(3, []),
    "from_adjacency": lambda: eq.Topology.from_adjacency([[0, 1], [1, 0]]),
    "from_networkx": lambda: eq.Topology.from_networkx(GRAPH.to_networkx()),
    "without a seed": lambda: torch.manual_seed(0) and eq.Topology.regular(8, 4),
    "drop": lambda: GRAPH.drop(0.4, source()),
    "drop without a generator": lambda: torch.manual_seed(0) and GRAPH.drop(0.4),
    "self-loops": GRAPH.with_self_loops,
    "malicious neighbors": lambda: [
        GRAPH.malicious_neighbors([0, 3]),
        GRAPH.femb([0]),
        GRAPH.is_connected([0]),
    ],
    "draw_malicious": lambda: eq.draw_malicious(20, 0.2),
    "stream": lambda: torch.rand(3, generator=stream(0, "x"), dtype=torch.float32, device="cpu"),
    "draw_uniform": lambda: draw_uniform(3, generator=source()),
    "rules drawn": lambda: eq.PerClient.drawn([eq.Median(), eq.FedAvg()], 9, source()).rules,
    "iid": lambda: data.iid(LABELS, 4),
    "by_group": lambda: data.by_group(LABELS, 7),
    "by_classes": lambda: data.by_classes(LABELS, 4),
    "dirichlet": lambda: data.dirichlet(LABELS, 7, 0.1, too_little="top_up"),
    "by_client": lambda: data.by_client(LABELS),
    "by fewer clients": lambda: data.by_client(LABELS, 3, minimum=20, too_little="top_up"),
    "cnn": lambda: eq.flatten(models.cnn()),
    "cnn of torch": lambda: eq.flatten(models.cnn(init="torch")),
    "linear regression": lambda: eq.flatten(models.linear_regression(3, init="torch")),
    "logistic regression": lambda: eq.flatten(models.logistic_regression(3, 2)),
    "initial models": lambda: models.initial_models(
        lambda seed: models.linear_regression(3, seed=seed), 2, same=False
    ),
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
        test_celeba.write(tmp_path)
        assert made_alike(
            lambda: data.celeba(tmp_path, size=8, limit=18, progress=False), device, dtype
        )
    elif name == "har":
        test_har.write(tmp_path, test_har.files())
        assert made_alike(lambda: data.har(tmp_path), device, dtype)
    else:
        test_mnist.write(tmp_path)
        assert made_alike(lambda: data.mnist(tmp_path), device, dtype)


# Whole runs

IMAGES, CLASSES = torch.rand(60, 1, 4, 4, generator=source()), torch.arange(60) % 3
SMALL = data.Dataset(IMAGES[:48], CLASSES[:48], IMAGES[48:], CLASSES[48:], classes=3)
MODEL, START = models.logistic_regression(16, 3), torch.randn(6, 51, generator=source())
TRIGGER = attacks.PixelPattern(((0, 0),))
MIXED = [eq.Median(), eq.FedAvg(), eq.Balance()]
ATTACKS: dict[str, Any] = {
    "Gaussian": attacks.Gaussian(),
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
    "InModelSpace": attacks.InModelSpace(attacks.Gaussian()),
    "OnlyClients": attacks.OnlyClients(attacks.Zero(), [0]),
    "SignFlip": attacks.SignFlip(),
    "Spectral": attacks.Spectral(),
    "Combined": attacks.Combined(
        attacks.OnlyClients(attacks.Zero(), [0]), attacks.OnlyClients(attacks.Gaussian(), [3])
    ),
    "TrimAttack": attacks.TrimAttack(),
    "Tuned": attacks.Tuned(attacks.LIE(), queries=3),
    "TrimAttack, fang": attacks.TrimAttack(form="fang", scope="global"),
    "Zero": attacks.Zero(),
    "Window": attacks.Window(attacks.LabelFlip({0: 1}), 1, 2),
}


RUNS: dict[str, dict[str, Any]] = {
    "UBAR": {"rule": eq.UBAR()},
    "LEARN": {"rule": eq.LEARN()},
    "Krum, of a bool mask": {"rule": eq.Krum(), "malicious": torch.arange(6) < 2},
    "a rule for every client": {
        "rule": eq.EachRound(lambda t, generator: eq.PerClient.drawn(MIXED, 6, generator))
    },
    "a graph for every round": {
        "topology": eq.EachRound(lambda t, generator: GRAPH.drop(0.3, generator))
    },
    "alpha for every client": {"alpha": torch.linspace(0, 1, 6)},
    "tolerated": {"rule": eq.TrimmedMean(), "tolerated": torch.tensor([0, 1, 2, 2, 1, 0])},
    "nobody malicious": {"attack": None, "malicious": None},
}


def trainer(model: torch.nn.Module = MODEL, **options: Any) -> eq.LocalSGD:
    clients = SMALL.split(data.iid(SMALL, 6))
    return eq.LocalSGD(
        model, cross_entropy, clients, **{"lr": 0.1, "batch_size": 4, "momentum": 0.5} | options
    )


def simulator(**options: Any) -> eq.Simulator:
    measured = {
        "error": metrics.ErrorRate(MODEL, SMALL.test_x, SMALL.test_y),
        "success": metrics.AttackSuccess(MODEL, SMALL.test_x, SMALL.test_y, TRIGGER, 0),
    }
    usual = {
        "topology": GRAPH,
        "rule": eq.FedAvg(),
        "malicious": [0, 3],
        "attack": attacks.Gaussian(),
    }
    return eq.Simulator(trainer(), models=START, metrics=measured, total=2, **usual | options)


def run(**options: Any) -> list[Any]:
    """Models and what was measured, round by round."""
    one = simulator(**options)
    one.run()
    return [one.models, [(record.clients, record.values) for record in one.history]]


@every_default
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_run_with_attack(attack: Any, device: str, dtype: torch.dtype) -> None:
    assert made_alike(lambda: run(attack=attack), device, dtype)


def test_all_attacks_are_run() -> None:
    public = (getattr(attacks, name) for name in attacks.__all__)
    kinds = {
        thing
        for thing in public
        if isinstance(thing, type) and {"forge", "poison"} & set(dir(thing))
    }
    assert kinds - {attacks.DataAttack, attacks.MessageAttack} == set(map(type, ATTACKS.values()))


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@every_default
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_run_with_option(options: dict[str, Any], device: str, dtype: torch.dtype) -> None:
    assert made_alike(lambda: run(**options), device, dtype)


@every_default
@pytest.mark.parametrize("backend", ["loop", "threads", "batched"])
def test_training_every_way(backend: Any, device: str, dtype: torch.dtype) -> None:
    def train() -> list[torch.Tensor]:
        large = trainer(backend=backend, batch_size=99)
        return [
            trainer(backend=backend)(START, 3),
            large(START, 3),
            large.loss_of(3)(START, LABELS[:6]),
        ]

    assert made_alike(train, device, dtype)


@every_default
def test_random_model(device: str, dtype: torch.dtype) -> None:
    drops = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(16, 3))
    assert made_alike(lambda: trainer(drops)(START, 3), device, dtype)


@every_default
def test_a_run_that_is_resumed(device: str, dtype: torch.dtype, tmp_path: Path) -> None:
    file, whole = tmp_path / "run", simulator()
    whole.run(2)
    simulator().run(1, checkpoint=file)
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    resumed = simulator()
    resumed.run(2, checkpoint=file)
    assert same(resumed.models, whole.models)


@every_default
def test_a_run_with_progress(
    device: str, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    simulator().run(progress=True)
    assert "worst error" in capsys.readouterr().err


EXPERIMENTS = [
    {},
    {"alpha": "per-client"},
    {"alpha": "each-round", "disconnect": 0.3},
    {"rule": "EachRound(PerClient)", "attack": "TrimAttack"},
]


@every_default
@pytest.mark.parametrize("changes", EXPERIMENTS, ids=str)
def test_an_experiment(changes: dict[str, Any], device: str, dtype: torch.dtype) -> None:
    setting = Setting(**{"data": "synthetic", "attack": "Gaussian", "rounds": 3} | changes)

    def experiment() -> list[Any]:
        tasks.load.cache_clear()
        found, history = trials.run(setting, 0, ".")
        return [found["max_MSE"], found["norm"], [(one.clients, one.values) for one in history]]

    assert made_alike(experiment, device, dtype)
