"""Local training: against torch.optim.SGD on every client's own module, with every backend."""

from __future__ import annotations

import pickle
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, l1_loss, mse_loss

import equipoise as eq
from equipoise import LocalSGD
from equipoise._utils.rng import stream
from equipoise.attacks import Backdoor, EveryNth, FeatureNoise, Gaussian, LabelFlip, Only, Together, Window
from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Stacked, Backend, channels_last
from equipoise.training._ensemble._threads import run_each
from equipoise.training._examples import Examples, draw_positions
from equipoise.training._poisoning import Poisoning

BACKENDS: tuple[Backend, ...] = get_args(Backend)

every_way = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# The slow backend: a module and an optimizer for every client


class OneByOne:
    """Every client has its own module and its own torch.optim.SGD, kept from round to round."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        clients: list[tuple[Tensor, Tensor]],
        lr: float,
        momentum: float = 0.0,
        steps: int = 1,
        batch_size: int = 32,
        seed: int = 0,
        buffers: bool = False,
    ) -> None:
        self.loss, self.clients, self.steps, self.buffers = loss, clients, steps, buffers
        self.batch_size, self.seed = batch_size, seed
        self.modules = [deepcopy(model) for _ in clients]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr, momentum) for m in self.modules]

    def __call__(self, models: Tensor, t: int) -> Tensor:
        for module, row in zip(self.modules, models, strict=True):
            eq.unflatten(row, module, buffers=self.buffers)
        for step in range(self.steps):
            counts = torch.tensor([len(y) for _, y in self.clients])
            positions = draw_positions(counts, self.batch_size, stream(self.seed, "batch", t, step))
            for i, (x, y) in enumerate(self.clients):
                chosen = positions[i, : len(y)]
                self.optimizers[i].zero_grad()
                self.loss(self.modules[i](x[chosen]), y[chosen]).backward()
                self.optimizers[i].step()
        return eq.stack_models(self.modules, buffers=self.buffers)


class OwnClass(nn.Module):
    """A linear model as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


class ViewedConvolution(nn.Module):
    """Takes images only with their channels first: ``view`` demands it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 3), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().view(-1, 36))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gru(x)[0][:, -1])


class OftenUsed(nn.Module):
    """One layer twice, one not at all, and a weight that belongs to two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.last = nn.Linear(6, 6), nn.Linear(2, 2), nn.Linear(6, 3)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.tied(self.layer(self.layer(x).tanh())))


class Undecided(nn.Module):
    """What it does depends on the data, which vmap forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else self.fc(-x)


def tied_layers() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 3))


def partly_frozen() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(20, 3)),
    )


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    auto: Backend = "batched"
    batched: bool = True


CASES = {
    "logistic": Case(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (1, 2, 3)),
    "linear layer": Case(lambda: nn.Linear(6, 3)),
    "without bias": Case(lambda: nn.Linear(6, 3, bias=False)),
    "perceptron": Case(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))),
    "nested": Case(lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.GELU()), nn.Softmax(-1), nn.Linear(5, 3))),
    "sequences": Case(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)), (3, 2)),
    "own class": Case(OwnClass, (2, 3)),
    "undecided": Case(Undecided, auto="threads", batched=False),
    "tied": Case(tied_layers),
    "often used": Case(OftenUsed),
    "frozen": Case(partly_frozen),
    "normalised": Case(lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), auto="threads"),
    "convolutions": Case(convolutions, (2, 5, 5), auto="threads"),
    "viewed": Case(ViewedConvolution, (2, 5, 5), auto="threads"),
    "recurrent": Case(Recurrent, (3, 2), auto="threads", batched=False),
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def examples(shape: tuple[int, ...], counts: list[int], classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(count, *shape), torch.randint(classes, (count,))) for count in counts]


def start(model: nn.Module, n: int, **options: Any) -> Tensor:
    like = eq.flatten(model, **options)
    return like + 0.1 * torch.randn(n, len(like), dtype=like.dtype)


def logistic(n: int = 4, count: int = 10, **options: Any) -> tuple[LocalSGD, Tensor]:
    """A trainer and models, always of the same examples and numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, clients = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), examples((6,), [count] * n)
        models = start(model, n)
    return LocalSGD(model, cross_entropy, clients, **{"lr": 0.1, "batch_size": 4} | options), models


# Against torch.optim


@pytest.mark.parametrize(
    ("name", "backend"), [(name, backend) for name, case in CASES.items() for backend in BACKENDS if backend != "batched" or case.batched]
)
def test_equals_an_optimizer_for_every_client(name: str, backend: Backend):
    case = CASES[name]
    model, clients = case.model(), examples(case.shape, [9, 3, 20])
    models = start(model, 3)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5, steps=2, seed=7, backend=backend)
    slow = OneByOne(model, cross_entropy, clients, 0.1, steps=2, batch_size=5, seed=7)
    trained = trainer(models, 3)
    torch.testing.assert_close(trained, slow(models, 3), rtol=1e-4, atol=1e-6)
    assert (trained - models).abs().max() > 1e-3


@every_way
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_and_reduction_over_several_rounds(backend: Backend, reduction: Any, momentum: float):
    model, clients = partly_frozen(), examples((6,), [9, 3, 20])
    trainer = LocalSGD(
        model, cross_entropy, clients, lr=0.02, batch_size=5, steps=2, reduction=reduction, momentum=momentum, backend=backend
    )
    slow = OneByOne(
        model,
        lambda outputs, y: cross_entropy(outputs, y, reduction=reduction),
        clients,
        *(0.02, momentum, 2, 5),
    )
    fast_models = slow_models = start(model, 3)
    for t in range(4):
        fast_models, slow_models = trainer(fast_models, t), slow(slow_models, t)
    torch.testing.assert_close(fast_models, slow_models, rtol=1e-4, atol=1e-5)


def halved(t: int) -> float:
    return 0.1 * 0.5**t


@every_way
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_learning_rate_for_every_round(backend: Backend, momentum: float):
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3, 20])
    options: Any = {"batch_size": 5, "steps": 2, "momentum": momentum}
    trainer = LocalSGD(model, cross_entropy, clients, lr=halved, backend=backend, **options)
    slow = OneByOne(model, cross_entropy, clients, 0.1, **options)
    fast_models = slow_models = start(model, 3)
    for t in range(4):
        for optimizer in slow.optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 * 0.5**t
        fast_models, slow_models = trainer(fast_models, t), slow(slow_models, t)
    torch.testing.assert_close(fast_models, slow_models, rtol=1e-4, atol=1e-6)


@every_way
def test_a_function_that_is_constant_is_a_number_bit_by_bit(backend: Backend):
    trainer, models = logistic(backend=backend, lr=0.1, momentum=0.5)
    other, _ = logistic(backend=backend, lr=lambda t: np.float64(0.1), momentum=0.5)
    assert torch.equal(other(models, 3), trainer(models, 3))


def test_a_learning_rate_is_asked_for_once_a_round_and_shown_by_name():
    asked: list[int] = []

    def schedule(t: int) -> float:
        asked.append(t)
        return 0.1

    trainer, models = logistic(steps=3, lr=schedule)
    asked.clear()
    for t in (0, 7):
        trainer(models, t)
    assert asked == [0, 7]
    assert repr(logistic(lr=halved)[0]) == repr(logistic(lr=0.1)[0]).replace("lr=0.1", "lr=halved")


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), None, "fast"])
def test_a_learning_rate_that_is_none_is_named_with_its_round(rate: Any):
    trainer, models = logistic(lr=lambda t: rate if t == 2 else 0.1, momentum=0.9)
    models = trainer(models, 1)
    before = trainer.state_dict()["velocity"]
    message = f"lr must return a finite number >= 0 for every round, found {rate!r} for round 2"
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer(models, 2)
    assert torch.equal(trainer.state_dict()["velocity"], before)


@every_way
def test_one_step_by_hand(backend: Backend):
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [0.0]])
    model = nn.Linear(1, 1, bias=False)
    by_sum = LocalSGD(model, mse_loss, [(x, y)], lr=0.1, reduction="sum", backend=backend)
    by_mean = LocalSGD(model, mse_loss, [(x, y)], lr=0.1, reduction="mean", backend=backend)
    # derivative of (w - 3)^2 + (2 w)^2 at w = 1: -4 + 8
    assert by_sum(torch.ones(1, 1), 0).item() == pytest.approx(1 - 0.1 * 4)
    assert by_mean(torch.ones(1, 1), 0).item() == pytest.approx(1 - 0.1 * 2)


@every_way
@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.HuberLoss(reduction="sum"),
        lambda outputs, targets: (outputs - targets).abs().pow(3).mean(),
    ],
)
def test_a_loss_without_reduction(backend: Backend, loss: Any):
    model, clients = nn.Linear(6, 2), [(torch.randn(9, 6), torch.randn(9, 2)) for _ in range(3)]
    models = start(model, 3)
    trainer = LocalSGD(model, loss, clients, lr=0.1, batch_size=5, reduction=None, backend=backend)
    torch.testing.assert_close(trainer(models, 0), OneByOne(model, loss, clients, 0.1, batch_size=5)(models, 0))


@every_way
def test_double_precision_stays(backend: Backend):
    model = convolutions().double()
    clients = [(x.double(), y) for x, y in examples((2, 5, 5), [8, 8])]
    models = start(model, 2)
    trained = LocalSGD(model, cross_entropy, clients, lr=0.1, backend=backend)(models, 0)
    slow = OneByOne(model, cross_entropy, clients, 0.1)(models, 0)
    torch.testing.assert_close(trained, slow, rtol=1e-12, atol=1e-12)


def test_regression_with_the_models_of_the_package():
    model = eq.models.linear_regression(6)
    clients = [(torch.randn(20, 6), torch.randn(20)) for _ in range(3)]
    models = start(model, 3)
    trainer = LocalSGD(model, mse_loss, clients, lr=0.1, batch_size=8)
    assert trainer.backend == "batched"
    slow = OneByOne(model, mse_loss, clients, 0.1, batch_size=8)
    torch.testing.assert_close(trainer(models, 0), slow(models, 0))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropies_of_many_clients_are_those_of_each(reduction: Any):
    outputs, classes = torch.randn(4, 5, 3, requires_grad=True), torch.randint(3, (4, 5))
    classes[0, 2] = -100  # torch: no label
    loss = BatchLoss(cross_entropy, reduction)
    expected = torch.stack([loss(o, y) for o, y in zip(outputs, classes, strict=True)])
    found = loss.of_each(outputs, classes)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(losses.sum(), outputs)[0] for losses in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_cross_entropy_with_probabilities_as_targets():
    model, y = nn.Linear(6, 3), torch.randn(9, 3).softmax(-1)
    clients = [(torch.randn(9, 6), y), (torch.randn(9, 6), y)]
    models = start(model, 2)
    slow = OneByOne(model, cross_entropy, clients, 0.1)
    torch.testing.assert_close(LocalSGD(model, cross_entropy, clients, lr=0.1)(models, 0), slow(models, 0))


# What is promised besides


@every_way
def test_given_models_and_module_stay(backend: Backend):
    model, clients = partly_frozen(), examples((6,), [9, 3])
    before = deepcopy(model.state_dict())
    models = start(model, 2)
    kept = models.clone()
    trained = LocalSGD(model, cross_entropy, clients, lr=0.1, steps=3, momentum=0.9, backend=backend)(models, 0)
    assert torch.equal(models, kept)
    assert trained.data_ptr() != models.data_ptr()
    assert not trained.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@every_way
def test_frozen_parameters_stay_what_they_are_in_each_model(backend: Backend):
    model = partly_frozen()
    models = start(model, 2)
    trained = LocalSGD(model, cross_entropy, examples((6,), [9, 3]), lr=0.1, momentum=0.9, backend=backend)(models, 0)
    frozen = torch.cat([torch.full((p.numel(),), not p.requires_grad) for p in model.parameters()])
    assert torch.equal(trained[:, frozen], models[:, frozen])
    assert (trained[:, ~frozen] != models[:, ~frozen]).float().mean() > 0.9


@every_way
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("asks", [False, True])
def test_works_whatever_the_gradient_mode(backend: Backend, mode: Any, asks: bool):
    trainer, models = logistic(backend=backend)
    expected = trainer(models, 0)
    with mode():
        assert torch.equal(trainer(models.clone().requires_grad_(asks), 0), expected)


@every_way
def test_transposed_models(backend: Backend):
    trainer, models = logistic(backend=backend)
    assert torch.equal(trainer(models.T.contiguous().T, 0), trainer(models, 0))


@every_way
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_a_broken_model_goes_on_and_disturbs_nobody(backend: Backend, value: float):
    trainer, models = logistic(backend=backend, steps=2, momentum=0.5)
    fine = trainer(models, 0)
    broken = models.clone()
    broken[1] = value
    trainer.load_state_dict({})
    trained = trainer(broken, 0)
    others = torch.tensor([0, 2, 3])
    assert torch.equal(trained[others], fine[others])
    assert not trained[1].isfinite().all() or value == 3e38


@every_case
def test_broken_models_of_every_kind(case: Case):
    model = case.model()
    models = start(model, 3)
    trainer = LocalSGD(model, cross_entropy, examples(case.shape, [4, 4, 4]), lr=0.1)
    fine = trainer(models, 0)
    models[1] = torch.nan
    trained = trainer(models, 0)
    assert torch.equal(trained[[0, 2]], fine[[0, 2]])
    assert trained[1].isnan().any()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("backend", ["threads", "batched"])
@pytest.mark.parametrize("n", [1, 7])
def test_the_number_of_threads_changes_no_bit(backend: Backend, n: int):
    model, clients = convolutions(), examples((2, 5, 5), [8] * n)
    models = start(model, n)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, steps=2, backend=backend)
    two = trainer(models, 0)
    torch.set_num_threads(1)
    assert torch.equal(trainer(models, 0), two)


@pytest.mark.usefixtures("two_threads")
def test_one_client_is_trained_and_judged_by_one_thread():
    """Large enough for torch to share its sums between threads, which would change their last digits."""
    model, used = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4608, 10)), set()

    def loss(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        used.add(torch.get_num_threads())
        return cross_entropy(outputs, targets, reduction=reduction)

    trainer = LocalSGD(model, loss, examples((1, 28, 28), [32], classes=10), lr=0.1, steps=3, backend="threads")
    models = start(model, 1)
    used.clear()
    two = trainer(models, 0)
    trainer.loss_of(0)(models, torch.tensor([0]))
    assert used == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(trainer(models, 0), two)


@pytest.mark.usefixtures("two_threads")
def test_many_clients_in_several_blocks_and_threads(monkeypatch: pytest.MonkeyPatch):
    trainer, models = logistic(n=50)
    whole = trainer(models, 0)
    monkeypatch.setattr("equipoise.training._batching.BLOCK_ELEMENTS", 200)
    torch.testing.assert_close(trainer(models, 0), whole)


def test_same_seed_same_result_and_another_one_another():
    trainer, models = logistic(seed=1)
    again, _ = logistic(seed=1)
    other, _ = logistic(seed=2)
    assert torch.equal(trainer(models, 5), again(models, 5))
    assert not torch.equal(trainer(models, 5), trainer(models, 6))
    assert not torch.equal(trainer(models, 5), other(models, 5))


def test_torchs_global_generator_is_neither_used_nor_changed():
    trainer, models = logistic()
    expected = trainer(models, 0)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert torch.equal(trainer(models, 0), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_samples():
    trainer = LocalSGD(nn.Linear(6, 3), cross_entropy, examples((6,), [9, 3, 20]), lr=0.1)
    assert trainer.samples.tolist() == [9, 3, 20]


# The backend


@every_case
def test_auto_goes_by_structure(case: Case):
    trainer = LocalSGD(case.model(), cross_entropy, examples(case.shape, [4, 4]), lr=0.1)
    assert trainer.backend == case.auto


def test_auto_does_not_batch_a_loss_that_looks_at_values():
    def loss(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        value = cross_entropy(outputs, targets, reduction=reduction)
        return value if value > 1 else 2 * value

    trainer = LocalSGD(nn.Linear(6, 3), loss, examples((6,), [4, 4]), lr=0.1)
    assert trainer.backend == "threads"


@pytest.mark.parametrize(
    ("case", "backends"), [("logistic", set(BACKENDS)), ("convolutions", set(BACKENDS)), ("recurrent", {"loop", "threads"})]
)
def test_measure_times_every_possible_way_and_changes_nothing(case: str, backends: set[Backend]):
    model = CASES[case].model()
    trainer = LocalSGD(model, cross_entropy, examples(CASES[case].shape, [4, 4]), lr=0.1, momentum=0.9)
    models = start(model, 2)
    trainer(models, 0)
    state = trainer.state_dict()
    seconds = trainer.measure(models, repeats=1)
    assert seconds.keys() == backends
    assert all(value > 0 for value in seconds.values())
    assert torch.equal(trainer.state_dict()["velocity"], state["velocity"])
    assert trainer.backend == CASES[case].auto


@pytest.mark.parametrize("channels", [1, 3])
def test_images_reach_convolutions_with_channels_last(channels: int):
    strides = []

    class Spy(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            strides.append(x.stride())
            return super().forward(x)

    model = nn.Sequential(Spy(channels, 2, 3), nn.Flatten(), nn.Linear(2 * 3 * 4, 3))
    clients = examples((channels, 5, 6), [7])
    models = start(model, 1)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=4)
    strides.clear()
    trained = trainer(models, 0)
    assert strides == [(30 * channels, 1, 6 * channels, channels)]
    strides.clear()
    torch.testing.assert_close(trained, OneByOne(model, cross_entropy, clients, 0.1, batch_size=4)(models, 0))
    assert strides != [(30 * channels, 1, 6 * channels, channels)]


@pytest.mark.parametrize("shape", [(4, 1, 5, 6), (4, 3, 5, 6), (1, 1, 1, 1), (2, 3, 1, 1)])
def test_channels_last(shape: tuple[int, ...]):
    x = torch.randn(shape)
    moved = channels_last(x)
    b, c, h, w = shape
    assert torch.equal(moved, x)
    assert moved.stride() == (c * h * w, 1, w * c, c)
    assert moved.shape == (b, c, h, w)


# Batches


def floyd(count: int, size: int, uniform: list[float]) -> list[int]:
    """The textbook version, for one client."""
    chosen: list[int] = []
    for i, u in zip(range(count - size, count), uniform, strict=True):
        pick = int(u * (i + 1))
        chosen.append(i if pick in chosen else pick)
    return chosen


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 1000))
def test_positions_against_the_textbook(counts: list[int], size: int, seed: int):
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    drawn = draw_positions(torch.tensor(counts), size, seeded())
    uniform = torch.rand(size, len(counts), dtype=torch.float64, generator=seeded())
    for i, count in enumerate(counts):
        expected = floyd(count, size, uniform[:, i].tolist()) if count >= size else list(range(size))
        assert drawn[i].tolist() == expected[: max(counts)]
        used = drawn[i, :count].tolist()
        assert len(set(used)) == len(used)
        assert all(0 <= position < count for position in used)


def test_all_subsets_are_equally_likely():
    drawn = draw_positions(torch.full((20_000,), 5), 3, torch.Generator().manual_seed(0))
    seen = Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert len(seen) == 10
    for count in seen.values():
        assert count == pytest.approx(2000, abs=5 * 2000**0.5)


def test_a_client_draws_the_same_whatever_others_have():
    first, second = (
        draw_positions(torch.tensor(counts), 4, torch.Generator().manual_seed(0))
        for counts in ([9, 50, 7], [9, 3, 800])
    )
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[2], second[2])


def test_every_step_and_round_draws_afresh():
    seen = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(sorted(targets.flatten().tolist()))
        return (outputs * 0).sum()

    targets = torch.arange(40.0)[:, None]
    options: Any = {"lr": 0.1, "batch_size": 8, "steps": 2, "reduction": None, "backend": "loop"}
    trainer = LocalSGD(nn.Linear(1, 1), loss, [(targets, targets)], **options)
    seen.clear()
    for t in (0, 1, 0):
        trainer(torch.zeros(1, 2), t)
    assert len(seen) == 6
    assert all(len(set(batch)) == 8 for batch in seen)
    assert len({tuple(batch) for batch in seen[:4]}) == 4
    assert seen[4:] == seen[:2]


@every_way
def test_a_batch_size_without_end_means_all_examples(backend: Backend):
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3])
    models = start(model, 2)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=10**12, backend=backend)
    expected = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=9, backend=backend)(models, 0)
    assert torch.equal(trainer(models, 0), expected)


# Buffers and random models


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("backend", ["auto", "loop", "threads"])
def test_batch_norm_has_statistics_for_every_client(backend: Any):
    model, clients = normalised(), examples((6,), [9, 3, 20])
    models = start(model, 3, buffers=True).abs()
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5, steps=2, buffers=True, backend=backend)
    slow = OneByOne(model, cross_entropy, clients, 0.1, steps=2, batch_size=5, buffers=True)
    torch.testing.assert_close(trainer(models, 0), slow(models, 0), rtol=1e-4, atol=1e-5)
    loss_of = trainer.loss_of(0)
    kept = models.clone()
    assert loss_of(models, torch.arange(3)).shape == (3,)
    assert torch.equal(models, kept)


def test_batch_norm_without_buffers_is_an_error():
    with pytest.raises(ValueError, match=r"found that '1.running_mean' changes in training; with buffers=True"):
        LocalSGD(normalised(), cross_entropy, examples((6,), [9]), lr=0.1)


def test_batch_norm_in_evaluation_mode_changes_nothing_and_is_fine():
    model, clients = normalised(), examples((6,), [9, 3])
    model[1].eval()
    models = start(model, 2)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1)
    torch.testing.assert_close(trainer(models, 0), OneByOne(model, cross_entropy, clients, 0.1)(models, 0))


def with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3))


def test_dropout_is_decided_by_the_seed_and_differs_between_clients():
    x, y = examples((6,), [9])[0]
    model = with_dropout()
    models = eq.flatten(model).repeat(3, 1)
    trainer = LocalSGD(model, cross_entropy, [(x, y)] * 3, lr=0.1, batch_size=9)
    assert trainer.backend == "loop"
    first = trainer(models, 0)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert torch.equal(trainer(models, 0), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(trainer(models, 1), first)
    assert trainer.measure(models, repeats=1).keys() == {"loop"}


def test_dropout_is_off_when_losses_are_asked_for():
    trainer = LocalSGD(with_dropout(), cross_entropy, examples((6,), [9]), lr=0.1)
    models = start(with_dropout(), 1)
    assert torch.equal(*(trainer.loss_of(0)(models, torch.tensor([0])) for _ in range(2)))


def noisy(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return cross_entropy(outputs + 0.5 * torch.randn_like(outputs), targets, reduction=reduction)


class AlwaysDropping(nn.Module):
    """Drops inputs in evaluation mode too, as in Monte Carlo dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(dropout(x, 0.5, training=True))


class DroppingWhenJudged(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(dropout(x, 0.5, training=not self.training))


RANDOM: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "loss": (lambda: nn.Linear(6, 3), noisy),
    "dropout": (with_dropout, cross_entropy),
    "dropout in both modes": (AlwaysDropping, cross_entropy),
    "dropout when judged": (lambda: DroppingWhenJudged(6, 3), cross_entropy),
    "loss and dropout": (with_dropout, noisy),
}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("make", "loss"), RANDOM.values(), ids=RANDOM.keys())
def test_what_is_drawn_in_training_and_judging_depends_on_the_seed_and_on_nothing_else(
    make: Callable[[], nn.Module], loss: Any
):
    model, clients = make(), examples((6,), [9, 9, 5])
    models, judges = start(model, 3), torch.arange(3)

    def results(seed: int = 0) -> list[Tensor]:
        trainer = LocalSGD(model, loss, clients, lr=0.1, batch_size=4, seed=seed)
        one, together = models[:1].expand(3, -1), trainer.loss_of(2)(models, judges)
        return [trainer(models, 2), together, trainer.loss_of(2)(one, judges)]

    expected = results()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(results(), expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(torch.equal(a, b) for a, b in zip(results(seed=1), expected, strict=True))


def test_a_random_model_is_judged_the_same_whoever_else_is():
    model, clients = AlwaysDropping(), examples((6,), [9, 9, 9])
    loss_of = LocalSGD(model, cross_entropy, clients, lr=0.1).loss_of(0)
    models, judges = start(model, 4), torch.tensor([2, 0, 0, 1])
    losses = loss_of(models, judges)
    for i in range(4):
        assert torch.equal(loss_of(models[i : i + 1], judges[i : i + 1]), losses[i : i + 1])
    assert torch.equal(loss_of(models[:1].expand(2, -1), torch.tensor([0, 2]))[1], losses[0])


def test_models_that_draw_nothing_need_no_generator_of_their_own():
    trainer = LocalSGD(with_dropout(), cross_entropy, examples((6,), [9, 9]), lr=0.1)
    assert trainer._random
    assert not any(trainer._habits)


# State


@every_way
def test_momentum_is_taken_up_again(backend: Backend):
    trainer, models = logistic(backend=backend, momentum=0.9)
    assert trainer.state_dict() == {}
    middle = trainer(models, 0)
    state = trainer.state_dict()
    end = trainer(middle, 1)
    assert not torch.equal(trainer.state_dict()["velocity"], state["velocity"])
    other, _ = logistic(backend=backend, momentum=0.9)
    other.load_state_dict(state)
    assert torch.equal(other(middle, 1), end)
    other.load_state_dict({})
    assert torch.equal(other(models, 0), middle)


def test_without_momentum_there_is_no_state():
    trainer, models = logistic()
    trainer(models, 0)
    assert trainer.state_dict() == {}
    trainer.load_state_dict({})


def test_an_interrupted_round_leaves_no_trace():
    trainer, models = logistic(momentum=0.9, backend="loop", steps=3)
    trainer(models, 0)
    before = trainer.state_dict()["velocity"]
    calls = 0

    def interrupted(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return cross_entropy(outputs, targets, reduction=reduction)

    trainer.loss = BatchLoss(interrupted, "mean")
    with pytest.raises(KeyboardInterrupt):
        trainer(models, 1)
    assert torch.equal(trainer.state_dict()["velocity"], before)


@pytest.mark.parametrize(
    ("momentum", "state", "message"),
    [
        (0.0, {"velocity": torch.zeros(4, 21)}, r"state must have no keys but \[\], found \['velocity'\]"),
        (0.9, {"speed": 1, 2: 3}, r"no keys but \['velocity'\], found \[2, 'speed'\]"),
        (0.9, None, "state must be what state_dict returned, found NoneType"),
        (0.0, ["velocity"], "state must be what state_dict returned, found list"),
        (0.9, {"speed": torch.zeros(4, 21)}, r"no keys but \['velocity'\], found \['speed'\]"),
        (0.9, {"velocity": torch.zeros(4, 20)}, r"velocity in state must be float32 \(4, 21\)"),
        (0.9, {"velocity": torch.zeros(3, 21)}, r"velocity in state must be float32 \(4, 21\)"),
    ],
)
def test_a_state_that_does_not_fit(momentum: float, state: Any, message: str):
    with pytest.raises(ValueError, match=message):
        logistic(momentum=momentum)[0].load_state_dict(state)


# Poisoned data


def poisoned_by_hand(clients: list[tuple[Tensor, Tensor]], attack: Any, malicious: list[int], seed: int = 0) -> Any:
    return [
        attack.poison(x, y, generator=stream(seed, "poison", i)) if i in malicious else (x, y)
        for i, (x, y) in enumerate(clients)
    ]


ATTACKS = {
    "flip": LabelFlip({1: 2, 2: 0}),
    "noise": FeatureNoise(),
    "backdoor": Backdoor(EveryNth(2), target=1),
}


@every_way
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("shape", [(6,), (2, 5, 5)])
def test_poisoned_clients_train_on_poisoned_examples_and_others_as_before(
    backend: Backend, attack: Any, shape: tuple[int, ...]
):
    if len(shape) == 3 and isinstance(attack, Backdoor):
        attack = Backdoor(eq.attacks.ONE_PIXEL, target=1)
    model = convolutions() if len(shape) == 3 else nn.Linear(6, 3)
    clients, malicious = examples(shape, [9, 3, 20, 4, 8]), [1, 3]
    models = start(model, 5)
    options: Any = {"lr": 0.01, "batch_size": 5, "steps": 2, "seed": 3, "backend": backend}
    clean = LocalSGD(model, cross_entropy, clients, **options)
    expected = LocalSGD(model, cross_entropy, poisoned_by_hand(clients, attack, malicious, 3), **options)(models, 2)
    trained = clean.poisoned(attack, malicious)(models, 2)
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
    benign = [0, 2, 4]
    assert torch.equal(trained[benign], clean(models, 2)[benign])
    assert not torch.equal(trained[malicious], clean(models, 2)[malicious])


def test_benign_examples_are_shared_and_malicious_ones_untouched():
    clients = examples((6,), [9, 3, 20])
    clean = Examples.of(clients)
    poisoned = Poisoning(clean, FeatureNoise(), [1], seed=0).examples(0)
    assert poisoned.x.data_ptr() == clean.x.data_ptr()
    assert torch.equal(poisoned.x, torch.cat([x for x, _ in clients]))
    assert poisoned.replacements is not None
    assert len(poisoned.replacements.x) == 3


@pytest.mark.parametrize("shape", [(6,), (2, 5, 5)])
@pytest.mark.parametrize("in_other_order", [False, True])
def test_an_attack_that_writes_to_what_it_is_given_leaves_clean_examples_clean(shape, in_other_order: bool):
    def spoil(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.zero_(), y.fill_(2)

    clean = Examples.of(examples(shape, [9, 3, 20]))
    clean = clean.with_channels_last() if in_other_order and len(shape) == 3 else clean
    before = clean.x.clone(), clean.y.clone()
    poisoned = Poisoning(clean, Window(Bad(spoil), 1, 2), [1], seed=0)
    for t in range(3):
        x, _ = poisoned.examples(t).take(torch.tensor([1]), torch.arange(3)[None])
        assert bool((x == 0).all()) == (t == 1)
    assert torch.equal(clean.x, before[0])
    assert torch.equal(clean.y, before[1])


def test_a_window_poisons_in_its_rounds_only():
    trainer, models = logistic()
    attack = LabelFlip({0: 1, 1: 2, 2: 0})
    always, sometimes = trainer.poisoned(attack, [2]), trainer.poisoned(Window(attack, 2, 4), [2])
    for t in (0, 1, 2, 3, 4, 2, 7):
        expected = always if t in (2, 3) else trainer
        assert torch.equal(sometimes(models, t), expected(models, t))
    assert not torch.equal(always(models, 2), trainer(models, 2))


def test_only_and_together_poison_the_clients_they_name():
    trainer, models = logistic(n=6)
    flip, noise = LabelFlip({0: 1, 1: 2, 2: 0}), FeatureNoise()
    attack: Any = Together(Only(Window(flip, 0, 5), (1, 4)), Only(noise, (2,)), Gaussian())  # type: ignore[arg-type]
    poisoned = trainer.poisoned(attack, [1, 2, 3])  # 4 is named, but benign
    for t, flipped in ((0, True), (5, False)):
        trained = poisoned(models, t)
        clean, by_flip, by_noise = (
            trainer(models, t),
            trainer.poisoned(flip, [1])(models, t),
            trainer.poisoned(noise, [2])(models, t),
        )
        assert torch.equal(trained[[0, 3, 4, 5]], clean[[0, 3, 4, 5]])
        assert torch.equal(trained[1], (by_flip if flipped else clean)[1])
        assert torch.equal(trained[2], by_noise[2])
        assert not torch.equal(by_flip[1], clean[1])
        assert not torch.equal(by_noise[2], clean[2])


def test_several_attacks_on_one_client_follow_each_other():
    trainer, models = logistic()
    twice: Any = Together(LabelFlip({0: 1}), LabelFlip({1: 2}))  # type: ignore[arg-type]
    once = LabelFlip({0: 2, 1: 2})
    assert torch.equal(trainer.poisoned(twice, [0])(models, 0), trainer.poisoned(once, [0])(models, 0))


def test_several_attacks_on_one_client_draw_different_numbers():
    def noisy(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn.append(torch.randn(x.shape, generator=generator))
        return x + drawn[-1], y

    drawn: list[Tensor] = []
    three: Any = Together(Drawing(noisy), Together(Drawing(noisy), Drawing(noisy)))  # type: ignore[arg-type]
    Poisoning(Examples.of(examples((6,), [9, 3])), three, [1], seed=5)
    expected = [torch.randn(3, 6, generator=stream(5, "poison", 1, *later)) for later in ((), (1,), (2,))]
    assert all(map(torch.equal, drawn, expected))
    assert len({tuple(noise.flatten().tolist()) for noise in drawn}) == 3


def test_noise_is_the_same_in_every_round_and_differs_between_clients():
    poisoned = Poisoning(Examples.of(examples((6,), [9, 3])), Window(FeatureNoise(), 0, 2), [0, 1], seed=0)
    first = poisoned.examples(0).replacements
    poisoned.examples(5)
    again = poisoned.examples(1).replacements
    assert first is not None
    assert again is not None
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.of_client(0)[0], first.of_client(1)[0])


def test_poisoned_examples_are_kept_between_rounds():
    poisoned = Poisoning(Examples.of(examples((6,), [9, 3])), FeatureNoise(), [0], seed=0)
    assert poisoned.examples(0) is poisoned.examples(1)


def test_an_attack_on_messages_changes_no_data():
    trainer, models = logistic()
    assert torch.equal(trainer.poisoned(Gaussian(), [0])(models, 0), trainer(models, 0))


def test_poisoning_begins_with_fresh_momentum_and_leaves_the_other_trainer_alone():
    trainer, models = logistic(momentum=0.9)
    trainer(models, 0)
    state = trainer.state_dict()["velocity"]
    poisoned = trainer.poisoned(LabelFlip({0: 1}), [0])
    assert poisoned.state_dict() == {}
    poisoned(models, 0)
    assert torch.equal(trainer.state_dict()["velocity"], state)


def test_the_later_poisoning_counts():
    trainer, models = logistic()
    flip = LabelFlip({0: 1, 1: 2, 2: 0})
    twice = trainer.poisoned(FeatureNoise(), [0, 1]).poisoned(flip, [1])
    assert torch.equal(twice(models, 0), trainer.poisoned(flip, [1])(models, 0))


class Drawing:
    def __init__(self, make: Callable[[Tensor, Tensor, Any], Any]) -> None:
        self.make = make

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Any:
        return self.make(x, y, generator)


class Bad:
    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        self.make = make

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Any:
        return self.make(x, y)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("label flip", "attack must have poison(x, y) or forge(known), found str"),
        (Window(LabelFlip(offset=0.5), 1000, 2000), "offset must be a whole number for integer labels"),
        (Bad(lambda x, y: (x[:0], y[:0])), "poisoned examples of client 1 must hold at least one example, found none"),
        (Bad(lambda x, y: (x[:2], y)), "poisoned examples of client 1 must have one y for every x, found 2 x and 10 y"),
        (Bad(lambda x, y: (x[:, :2], y)), "poisoned examples of client 1 must look like those of client 0"),
        (Bad(lambda x, y: (x, y.float())), "poisoned examples of client 1 must look like those of client 0"),
    ],
)
def test_an_attack_that_does_not_suit_is_refused_at_once(attack: Any, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        logistic()[0].poisoned(attack, [1])


# Losses for UBAR


@every_way
@pytest.mark.parametrize("reduction", ["mean", "sum", None])
def test_losses_are_means_on_the_last_batch_of_the_round(backend: Backend, reduction: Any):
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3, 20])
    options: Any = {"lr": 0.1, "batch_size": 5, "steps": 3, "backend": backend, "reduction": reduction}
    trainer = LocalSGD(model, cross_entropy if reduction else nn.CrossEntropyLoss(), clients, **options)
    candidates, owners = start(model, 7), torch.tensor([2, 0, 0, 1, 2, 1, 0])
    kept = candidates.clone()
    losses = trainer.loss_of(4)(candidates, owners)
    positions = draw_positions(torch.tensor([9, 3, 20]), 5, stream(0, "batch", 4, 2))
    for row, owner, loss in zip(candidates, owners.tolist(), losses, strict=True):
        (x, y), module = clients[owner], eq.unflatten(row, nn.Linear(6, 3))
        chosen = positions[owner, : len(y)]
        torch.testing.assert_close(loss, cross_entropy(module(x[chosen]), y[chosen]).detach())
    assert torch.equal(candidates, kept)
    assert not losses.requires_grad
    assert torch.equal(trainer.loss_of(4)(candidates, owners.to(torch.uint8)), losses)


@every_way
@pytest.mark.parametrize("reduction", ["mean", "sum", None])
def test_one_model_can_be_judged_by_many(backend: Backend, reduction: Any):
    """As UBAR asks it, by rows that are the same memory."""
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3, 20, 9, 9, 9, 9])
    options: Any = {"lr": 0.1, "batch_size": 5, "backend": backend, "reduction": reduction}
    trainer = LocalSGD(model, cross_entropy if reduction else nn.CrossEntropyLoss(), clients, **options)
    judges = torch.tensor([2, 0, 3, 1, 4, 5, 0, 6])
    one = start(model, 1).expand(len(judges), -1)
    torch.testing.assert_close(trainer.loss_of(4)(one, judges), trainer.loss_of(4)(one.contiguous(), judges))


def zero_at_first() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))
    nn.init.zeros_(model[2].weight)
    return model


STATISTICS_OF_THE_BATCH: dict[str, Case] = {
    "vectors": Case(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False))),
    "images": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(36, 3)
        ),
        (2, 5, 5),
    ),
    "zero at first": Case(zero_at_first),
}


@pytest.mark.parametrize("case", STATISTICS_OF_THE_BATCH.values(), ids=STATISTICS_OF_THE_BATCH.keys())
@pytest.mark.parametrize("counts", [[9, 3, 20, 9, 9], [2, 2]])
def test_clients_that_judge_one_model_do_not_see_each_others_examples(case: Case, counts: list[int]):
    model, clients = case.model(), examples(case.shape, counts)
    trainer, judges = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5, backend="threads"), len(counts)
    one, who, loss_of = start(model, 1), torch.arange(judges), trainer.loss_of(0)
    alone = torch.cat([loss_of(one, who[i : i + 1]) for i in range(judges)])
    assert torch.equal(loss_of(one.expand(judges, -1), who), alone)


def test_models_that_do_not_look_at_their_batch_are_judged_by_several_clients_at_once():
    model, seen = convolutions(), []
    trainer = LocalSGD(model, cross_entropy, examples((2, 5, 5), [8] * 4), lr=0.1)
    trainer._evaluated.model.register_forward_hook(lambda module, inputs, outputs: seen.append(len(outputs)))
    trainer._evaluated._idle.clear()
    trainer.loss_of(0)(start(model, 1).expand(4, -1), torch.arange(4))
    assert seen == [32]


@every_way
def test_losses_of_broken_models_are_nan_and_of_poisoned_clients_on_poisoned_examples(backend: Backend):
    trainer, models = logistic(backend=backend)
    clean = trainer.loss_of(0)(models, torch.arange(4))
    models[2] = torch.nan
    poisoned = trainer.poisoned(LabelFlip({0: 1, 1: 2, 2: 0}), [1]).loss_of(0)(models, torch.arange(4))
    assert poisoned[2].isnan()
    assert torch.equal(poisoned[[0, 3]], clean[[0, 3]])
    assert poisoned[1] != clean[1]


@pytest.mark.parametrize("empty", ["best", "own"])
def test_ubar_judges_by_them(empty: Any):
    trainer, models = logistic(n=4)
    inbox = eq.Topology.complete(4).deliver(models)
    out = eq.UBAR(tolerated=0, empty=empty)(models, inbox, loss_of=trainer.loss_of(0))
    losses = trainer.loss_of(0)(models.repeat(4, 1), torch.arange(4).repeat_interleave(4)).view(4, 4)
    assert out.weights is not None
    for i in range(4):
        better = {j for j in range(4) if losses[i, j] < losses[i, i]}
        accepted = {j for j, w in zip(inbox.senders[i].tolist(), out.weights[i].tolist(), strict=True) if w > 0}
        assert accepted == better or (not better and len(accepted) == (empty == "best"))


def test_losses_need_as_many_clients_as_models():
    trainer, models = logistic()
    with pytest.raises(ValueError, match=r"models must be float32 \(3, 21\)"):
        trainer.loss_of(0)(models, torch.arange(3))


@every_way
@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (torch.tensor([0, 1, 2, 4]), "clients must be from 0 to 3, found 0 to 4"),
        (torch.tensor([0, 1, 2, -1]), "clients must be from 0 to 3, found -1 to 2"),
        ([0, 1, 2, 3], "clients must be ids, an integer tensor of shape (c,), found list"),
        (3, "clients must be ids, an integer tensor of shape (c,), found int"),
        (torch.tensor(3), "clients must be ids, an integer tensor of shape (c,), found int64 ()"),
        (torch.arange(4.0), "clients must be ids, an integer tensor of shape (c,), found float32 (4,)"),
        (torch.arange(4)[:, None], "clients must be ids, an integer tensor of shape (c,), found int64 (4, 1)"),
    ],
)
def test_losses_of_clients_that_there_are_not(backend: Backend, clients: Any, message: str):
    trainer, models = logistic(backend=backend)
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer.loss_of(0)(models, clients)


def test_losses_of_a_round_that_there_is_not():
    with pytest.raises(ValueError, match="t must be an integer at least 0, found None"):
        logistic()[0].loss_of(None)  # type: ignore[arg-type]


# Examples


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_taking_examples_against_indexing(counts: list[int], data: st.DataObject):
    pairs = examples((2,), counts)
    others = data.draw(st.sets(st.integers(0, len(counts) - 1)))
    replacements = {i: examples((2,), [data.draw(st.integers(1, 9))])[0] for i in others}
    everything = Examples.of(pairs).replaced(replacements)
    truth = [replacements.get(i, pair) for i, pair in enumerate(pairs)]
    assert everything.counts.tolist() == [len(y) for _, y in truth]
    clients = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=6))
    positions = [[data.draw(st.integers(0, len(truth[i][1]) - 1)) for _ in range(3)] for i in clients]
    x, y = everything.take(torch.tensor(clients), torch.tensor(positions))
    for j, (i, chosen) in enumerate(zip(clients, positions, strict=True)):
        assert torch.equal(x[j], truth[i][0][chosen])
        assert torch.equal(y[j], truth[i][1][chosen])


# Threads


@pytest.mark.usefixtures("two_threads")
def test_each_piece_is_done_by_one_thread_with_one_torch_thread():
    seen: list[tuple[int, int, int]] = []
    meeting = threading.Barrier(2, timeout=10)  # two pieces must be under way at the same time

    def work(i: int) -> None:
        if i < 2:
            meeting.wait()
        seen.append((i, threading.get_ident(), torch.get_num_threads()))

    run_each(work, 8)
    assert sorted(i for i, _, _ in seen) == list(range(8))
    assert {threads for _, _, threads in seen} == {1}
    assert len({thread for _, thread, _ in seen}) == 2
    assert torch.get_num_threads() == 2
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("count", "threads", "expected"), [(1, True, 1), (3, False, 2), (0, True, None)])
def test_where_there_is_nothing_to_share_the_caller_works(count: int, threads: bool, expected: int | None):
    seen = []
    run_each(lambda i: seen.append((threading.get_ident(), torch.get_num_threads())), count, threads=threads)
    assert seen == [(threading.get_ident(), expected)] * count
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_is_raised_and_stops_the_rest():
    done = []

    def work(i: int) -> None:
        if i == 3:
            raise ZeroDivisionError("piece 3")
        done.append(i)
        threading.Event().wait(0.005)

    with pytest.raises(ZeroDivisionError, match="piece 3"):
        run_each(work, 500)
    assert len(done) < 100
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_model_that_failed_is_not_used_again():
    architecture = Stacked(nn.Linear(2, 1))
    with pytest.raises(ZeroDivisionError), architecture.replica() as failed:
        raise ZeroDivisionError
    with architecture.replica() as first, architecture.replica() as second:
        assert first is not second
        assert failed not in (first, second)
    with architecture.replica() as again:
        assert again in (first, second)


# Errors


class Stepping(nn.Module):
    """Counts its steps in a buffer of whole numbers, which no client has for itself."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        outputs: Tensor = self.linear(x) / self.steps
        return outputs


X, Y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
GOOD: dict[str, Any] = {"model": nn.Linear(6, 3), "loss": cross_entropy, "clients": [(X, Y), (X, Y)], "lr": 0.1}


class Echo(nn.Module):
    """Returns something else than a module should."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.make = nn.Linear(6, 3), make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


def half_double() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3).double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": cross_entropy}, "module must be a torch.nn.Module, found function"),
        ({"model": half_double()}, "model must have parameters of one dtype, expected torch.float64, found parameter"),
        (
            {"model": nn.Linear(5, 3)},
            "model must take inputs like x, float32 (2, 6), found RuntimeError: mat1 and mat2",
        ),
        ({"model": Echo(lambda x: x.relu_())}, "model must not modify its inputs"),
        ({"model": Echo(lambda x: [x])}, "model must return one output per input, 2, found list"),
        ({"model": Echo(lambda x: x.sum())}, "model must return one output per input, 2, found float32 ()"),
        ({"model": Echo(lambda x: x)}, "loss must depend on a parameter that requires a gradient"),
        ({"model": nn.Linear(6, 3).requires_grad_(False)}, "loss must depend on a parameter that requires a gradient"),
        ({"model": normalised(), "buffers": True, "backend": "batched"}, "backend must be 'loop' or 'threads' for this model"),
        (
            {"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None)), "buffers": True},
            "no client has a count of its own; give '1' a momentum",
        ),
        ({"model": with_dropout(), "backend": "threads"}, "backend must be 'loop' for a model or a loss that draws random"),
        (
            {"model": Undecided(), "backend": "batched"},
            "backend must be 'loop' or 'threads' for this model, found 'batched': vmap",
        ),
        ({"loss": nn.CrossEntropyLoss()}, "reduction=None is for a loss without reduction"),
        ({"loss": mse_loss}, "loss must take outputs float32 (2, 3) and targets int64 (2,), found"),
        ({"loss": l1_loss, "reduction": None, "clients": [(X, X[:, :2])]}, "loss must take outputs float32 (2, 3)"),
        ({"loss": lambda o, y, reduction: o}, "loss must return one number for a batch, found float32 (2, 3)"),
        ({"loss": lambda o, y, reduction: 1.0}, "loss must return one number for a batch, found float"),
        ({"clients": []}, "clients must hold the examples (x, y) of at least one client, found none"),
        ({"clients": [(X, Y), (X[:0], Y[:0])]}, "clients[1] must hold at least one example, found none"),
        ({"clients": [(X, Y), (X, Y[:3])]}, "clients[1] must have one y for every x, found 4 x and 3 y"),
        ({"clients": [(X, Y), X]}, "clients[1] must be a pair of tensors (x, y), found float32 (4, 6)"),
        (
            {"clients": [(X, Y), (X, [0, 1, 2, 0])]},
            "clients[1] must be a pair of tensors (x, y), found (float32 (4, 6), list)",
        ),
        ({"clients": [(X, Y), (X[:, :5], Y)]}, "clients[1] must look like those of client 0, x float32 (4, 6), found"),
        ({"clients": [(X, Y), (X, Y.float())]}, "clients[1] must look like those of client 0, y int64 (4,), found"),
        ({"clients": [(X, Y), (X[0, 0], Y)]}, "clients[1] must look like those of client 0"),
        ({"lr": -0.1}, "lr must be a finite number >= 0, or a function of the round, found -0.1"),
        ({"lr": float("nan")}, "lr must be a finite number >= 0, or a function of the round, found nan"),
        ({"lr": "fast"}, "lr must be a finite number >= 0, or a function of the round, found 'fast'"),
        ({"lr": lambda t: None}, "lr must return a finite number >= 0 for every round, found None for round 0"),
        ({"momentum": None}, "momentum must be a finite number >= 0, found None"),
        (
            {"model": Stepping()},
            "model must not change buffers that are not part of a client's model, found that 'steps'",
        ),
        ({"momentum": -1.0}, "momentum must be a finite number >= 0, found -1.0"),
        ({"batch_size": 0}, "batch_size must be an integer at least 1, found 0"),
        ({"steps": 0}, "steps must be an integer at least 1, found 0"),
        ({"reduction": "none"}, "reduction must be 'mean', 'sum' or None, found 'none'"),
        ({"backend": "fast"}, "backend must be 'auto', 'loop', 'threads' or 'batched', found 'fast'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_does_not_fit_is_said_at_once(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalSGD(**GOOD | changes)


@pytest.mark.parametrize(
    ("models", "t", "message"),
    [
        (torch.zeros(3, 21), 0, "models must be float32 (2, 21) like flatten(model), found float32 (3, 21)"),
        (torch.zeros(2, 20), 0, "models must be float32 (2, 21) like flatten(model), found float32 (2, 20)"),
        (torch.zeros(2, 21).double(), 0, "models must be float32 (2, 21) like flatten(model), found float64 (2, 21)"),
        (torch.zeros(21), 0, "models must be float32 (2, 21) like flatten(model), found float32 (21,)"),
        (torch.tensor(0.0), 0, "models must be float32 (2, 21) like flatten(model), found float32 ()"),
        ([[0.0] * 21] * 2, 0, "models must be float32 (2, 21) like flatten(model), found list"),
        (torch.zeros(2, 21, device="meta"), 0, "models must be on the device of the model, cpu, found meta"),
        (torch.zeros(2, 21), -1, "t must be an integer at least 0, found -1"),
    ],
)
def test_models_that_do_not_fit(models: Any, t: int, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalSGD(**GOOD)(models, t)


def test_what_cannot_be_batched_for_a_client_that_is_alone_in_its_block_is_not_batched():
    """vmap takes images with their channels last into GroupNorm for two clients, but not for one."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    clients = examples((2, 5, 5), [5, 4])
    with pytest.raises(ValueError, match="backend must be 'loop' or 'threads' for this model, found 'batched'"):
        LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5, backend="batched")
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=5)
    assert trainer.measure(start(model, 2), repeats=1).keys() == {"loop", "threads"}


# Copies


@pytest.mark.parametrize("copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copied", "pickled"])
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_copies_train_and_judge_like_the_original(copied: Callable[[Any], Any], used: bool):
    """A convolution, whose modules are kept between calls; their parameters are views, which a copy would part."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(30, 1, 4, 4), torch.randint(0, 3, (30,))
    models = torch.randn(2, eq.flatten(model).numel())
    trainer, metric = LocalSGD(model, cross_entropy, [(x, y)] * 2, lr=0.1), eq.metrics.ErrorRate(model, x, y)
    clients = torch.arange(2)
    if used:
        trainer(models, 0), metric(models)
    other, measure = copied(trainer), copied(metric)
    assert torch.equal(other(models, 1), trainer(models, 1))
    assert torch.equal(other.loss_of(1)(models, clients), trainer.loss_of(1)(models, clients))
    assert torch.equal(measure(models), metric(models))


def test_trainers_and_metrics_can_be_made_in_inference_mode():
    model, models = GOOD["model"], torch.randn(2, 21)
    with torch.inference_mode():
        trainer, metric = LocalSGD(**GOOD), eq.metrics.ErrorRate(model, X, Y)
    assert torch.equal(trainer(models, 0), LocalSGD(**GOOD)(models, 0))
    assert torch.equal(metric(models), eq.metrics.ErrorRate(model, X, Y)(models))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("given", [Tensor.detach, Tensor.clone], ids=["normal", "inference"])
@pytest.mark.parametrize("name", ["logistic", "convolutions"])
def test_models_are_judged_and_measured_in_inference_mode_by_several_threads(
    name: str, given: Callable[[Tensor], Tensor]
):
    """Inference mode is a thread's own: another one may not write what was made in it."""
    case = CASES[name]
    model, clients = case.model(), examples(case.shape, [9, 9, 5])
    models, judges = start(model, 3), torch.arange(3)
    trainer, metric = LocalSGD(model, cross_entropy, clients, lr=0.1), eq.metrics.ErrorRate(model, *clients[0])
    expected = trainer.loss_of(0)(models, judges), metric(models)
    with torch.inference_mode():
        inside = given(models)
        found = trainer.loss_of(0)(inside, judges.clone()), metric(inside)
        one = trainer.loss_of(0)(inside[:1].expand(3, -1), judges)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    torch.testing.assert_close(one, trainer.loss_of(0)(models[:1].expand(3, -1), judges))
