"""Trainers with a memory that no checkpoint holds are reported, stateless ones are not."""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.simulation.hidden_state import HiddenState

N, D = 4, 3
GOALS = torch.arange(12.0).view(N, D)
CLIENTS = [(torch.ones(5, D) * i, torch.zeros(5, 1)) for i in range(N)]
MODEL = nn.Linear(D, 1, bias=False)
Train = Callable[[Tensor, int], Tensor]

parameter = nn.Parameter(torch.zeros(N, D))
optimizers = [torch.optim.Adam([parameter], lr=0.1)]
calls = 0


def simulator(trainer: Any) -> eq.Simulator:
    return eq.Simulator(trainer, eq.Topology.ring(N), eq.FedAvg(), torch.ones(N, D), total=10)


def pull(models: Tensor, goals: Tensor = GOALS) -> Tensor:
    return models + 0.1 * (goals - models)


# Trainers with a memory


def global_adam(models: Tensor, t: int) -> Tensor:
    parameter.data.copy_(models)
    optimizers[0].zero_grad()
    (parameter - GOALS).square().sum().backward()
    optimizers[0].step()
    return parameter.detach().clone()


def counting(models: Tensor, t: int) -> Tensor:
    global calls
    calls += 1
    return models / calls


def helped(models: Tensor, t: int) -> Tensor:
    return counting(models, t)


def closed_over_adam() -> Train:
    own = nn.Parameter(torch.zeros(N, D))
    optimizer = torch.optim.Adam([own], lr=0.1)

    def train(models: Tensor, t: int) -> Tensor:
        own.data.copy_(models)
        optimizer.zero_grad()
        (own - GOALS).square().sum().backward()
        optimizer.step()
        return own.detach().clone()

    return train


def momentum_in_place() -> Train:
    velocity = torch.zeros(N, D)

    def train(models: Tensor, t: int) -> Tensor:
        return models - 0.1 * velocity.mul_(0.9).add_(models - GOALS)

    return train


def momentum_rebound() -> Train:
    velocity = torch.zeros(N, D)

    def train(models: Tensor, t: int) -> Tensor:
        nonlocal velocity
        velocity = 0.9 * velocity + (models - GOALS)
        return models - 0.1 * velocity

    return train


def momentum_in_a_dict() -> Train:
    memory: dict[str, Tensor] = {}

    def train(models: Tensor, t: int) -> Tensor:
        memory["velocity"] = 0.9 * memory.get("velocity", torch.zeros(N, D)) + (models - GOALS)
        return models - 0.1 * memory["velocity"]

    return train


def momentum_in_numpy() -> Train:
    velocity = np.zeros((N, D), dtype=np.float32)

    def train(models: Tensor, t: int) -> Tensor:
        velocity[:] = 0.9 * velocity + (models - GOALS).numpy()
        return models - 0.1 * torch.from_numpy(velocity.copy())

    return train


def with_a_schedule() -> Train:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train(models: Tensor, t: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the optimizer makes no step
            schedule.step()
        return models + schedule.get_last_lr()[0] * (GOALS - models)

    return train


def drawing(draw: Callable[[], Any]) -> Train:
    return lambda models, t: models + draw()


def with_a_generator() -> Train:
    generator = torch.Generator().manual_seed(0)
    return lambda models, t: models + torch.randn((), generator=generator)


def with_a_numpy_generator() -> Train:
    generator = np.random.default_rng(0)
    return lambda models, t: models + generator.normal()


def with_an_iterator() -> Train:
    batches = itertools.cycle(CLIENTS)
    return lambda models, t: models + next(batches)[0].mean()


def with_running_statistics() -> Train:
    norm = nn.BatchNorm1d(D)

    def train(models: Tensor, t: int) -> Tensor:
        norm(models)
        return models + 0.1 * norm.running_mean

    return train


class Momentum:
    def __init__(self) -> None:
        self.velocity = torch.zeros(N, D)

    def __call__(self, models: Tensor, t: int) -> Tensor:
        self.velocity = 0.9 * self.velocity + (models - GOALS)
        return models - 0.1 * self.velocity

    def train(self, models: Tensor, t: int) -> Tensor:
        return self(models, t)


class Slotted:
    __slots__ = ("velocity",)

    def __init__(self) -> None:
        self.velocity = torch.zeros(N, D)

    __call__ = Momentum.__call__


def with_an_attribute() -> Train:
    def train(models: Tensor, t: int) -> Tensor:
        train.calls += 1  # type: ignore[attr-defined]
        return models / train.calls  # type: ignore[attr-defined]

    train.calls = 0  # type: ignore[attr-defined]
    return train


def with_a_default() -> Train:
    def train(models: Tensor, t: int, memory: list[int] = []) -> Tensor:  # noqa: B006
        memory.append(t)
        return models / len(memory)

    return train


def partial_momentum() -> Train:
    def train(velocity: Tensor, models: Tensor, t: int) -> Tensor:
        return models - 0.1 * velocity.mul_(0.9).add_(models - GOALS)

    return functools.partial(train, torch.zeros(N, D))


def without_gradients() -> Train:
    return torch.no_grad()(momentum_in_place())


REMEMBERING: dict[str, tuple[Callable[[], Train], str]] = {
    "Adam in a global list": (lambda: global_adam, r"trainer\.optimizers\[0\]\.state"),
    "a global count": (lambda: counting, r"trainer\.calls"),
    "a global count of another function": (lambda: helped, r"trainer\.counting\.calls"),
    "Adam in a closure": (closed_over_adam, r"trainer\.optimizer\.state"),
    "momentum in place": (momentum_in_place, r"trainer\.velocity"),
    "momentum rebound": (momentum_rebound, r"trainer\.velocity"),
    "momentum in a dict": (momentum_in_a_dict, r"trainer\.memory"),
    "momentum in numpy": (momentum_in_numpy, r"trainer\.velocity"),
    "a schedule": (with_a_schedule, r"trainer\.schedule"),
    "running statistics": (with_running_statistics, r"trainer\.norm\._buffers\[num_batches_tr"),
    "a generator": (with_a_generator, r"trainer\.generator"),
    "a generator of numpy": (with_a_numpy_generator, r"trainer\.generator"),
    "an iterator": (with_an_iterator, r"trainer\.batches"),
    "torch's own generator": (lambda: drawing(lambda: torch.randn(())), r"torch\.default_gene"),
    "numpy's own generator": (lambda: drawing(np.random.random), r"numpy\.random"),
    "Python's own generator": (lambda: drawing(random.random), "random"),
    "an object": (Momentum, r"trainer\.velocity"),
    "a method": (lambda: Momentum().train, r"trainer\.__self__\.velocity"),
    "an object with slots": (Slotted, r"trainer\.velocity"),
    "an attribute": (with_an_attribute, r"trainer\.__dict__\[calls\]"),
    "a default": (with_a_default, r"trainer\.__defaults__\[0\]"),
    "a partial function": (partial_momentum, r"trainer\.args\[0\]"),
    "a decorated function": (without_gradients, r"trainer\..*velocity"),
}


@pytest.mark.parametrize(("make", "name"), REMEMBERING.values(), ids=list(REMEMBERING))
def test_an_unsaved_memory_is_told(make: Callable[[], Train], name: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"and its first call changed .*{name}") as told:
        simulator(make()).run(3, checkpoint=tmp_path / "run")
    assert len(told) == 1
    assert "state_dict() and load_state_dict(state), or stateless = True" in str(told[0].message)
    assert told[0].filename == __file__


# Trainers without


def with_data(models: Tensor, t: int) -> Tensor:
    trained = []
    for model, (x, y) in zip(models, CLIENTS, strict=True):
        trained.append(model - 0.01 * (x.T @ (x @ model[:, None] - y)).flatten())
    return torch.stack(trained)


def with_a_template(models: Tensor, t: int) -> Tensor:
    trained = []
    for model, (x, y) in zip(models, CLIENTS, strict=True):
        client = eq.unflatten(model, MODEL)
        optimizer = torch.optim.Adam(client.parameters(), lr=0.1)
        optimizer.zero_grad()
        nn.functional.mse_loss(client(x), y).backward()
        optimizer.step()
        trained.append(eq.flatten(client))
    return torch.stack(trained)


def with_an_optimizer_without_memory() -> Train:
    own = nn.Parameter(torch.zeros(N, D))
    optimizer = torch.optim.SGD([own], lr=0.1)

    def train(models: Tensor, t: int) -> Tensor:
        own.data.copy_(models)
        optimizer.zero_grad()
        (own - GOALS).square().sum().backward()
        optimizer.step()
        return own.detach().clone()

    return train


def with_a_closure() -> Train:
    goals = [GOALS.clone()]
    settings = {"lr": 0.1, "factor": torch.nan}

    def train(models: Tensor, t: int) -> Tensor:
        noise = torch.randn(N, D, generator=torch.Generator().manual_seed(t))
        return models + settings["lr"] * (goals[0] - models) + noise

    return train


class Plain:
    def __init__(self) -> None:
        self.goals, self.clients, self.model = GOALS, CLIENTS, MODEL

    def __call__(self, models: Tensor, t: int) -> Tensor:
        return pull(models, self.goals)


@dataclass(frozen=True)
class Frozen:
    goals: Tensor = GOALS

    def __call__(self, models: Tensor, t: int) -> Tensor:
        return pull(models, self.goals)


class Shy:
    """An object that cannot be looked into."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


def with_a_shy_object() -> Train:
    shy = Shy()
    return lambda models, t: pull(models) if shy else models


def endless() -> Train:
    """Data that hold themselves."""
    data: list[Any] = [GOALS]
    data.append(data)
    return lambda models, t: pull(models, data[0])


STATELESS: dict[str, Callable[[], Train]] = {
    "a lambda": lambda: lambda models, t: models + 0.1 * (GOALS - models),
    "global data": lambda: with_data,
    "a template": lambda: with_a_template,
    "an optimizer without memory": with_an_optimizer_without_memory,
    "a closure": with_a_closure,
    "a partial function": lambda: functools.partial(lambda goals, models, t: goals * models, GOALS),
    "an object": Plain,
    "a frozen object": Frozen,
    "a built-in function": lambda: torch.mul,
    "a shy object": with_a_shy_object,
    "endless data": endless,
}


@pytest.mark.parametrize("make", STATELESS.values(), ids=list(STATELESS))
def test_a_stateless_trainer_resumes_in_silence(make: Callable[[], Train], tmp_path: Path) -> None:
    whole = simulator(make())
    whole.run(6)
    for rounds in (3, 6):
        part = simulator(make())
        part.run(rounds, checkpoint=tmp_path / "run")
    assert torch.equal(part.models, whole.models)


def test_what_cannot_matter_can_be_declared(tmp_path: Path) -> None:
    losses: list[float] = []

    def train(models: Tensor, t: int) -> Tensor:
        losses.append(float(models.norm()))
        return pull(models)

    with pytest.warns(UserWarning, match=r"its first call changed trainer\.losses"):
        simulator(train).run(2, checkpoint=tmp_path / "run")
    train.stateless = True  # type: ignore[attr-defined]
    simulator(train).run(4, checkpoint=tmp_path / "run")  # nor is what the file says of it
    assert len(losses) == 4
    simulator(train).run(6, checkpoint=tmp_path / "run")


def test_a_checkpoint_says_that_something_is_missing(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="cannot hold what the trainer remembers"):
        simulator(Momentum()).run(2, checkpoint=tmp_path / "run")
    message = r"run does not hold what its trainer remembered.*: trainer\.velocity"
    with pytest.warns(UserWarning, match=message) as told:
        simulator(Momentum()).run(4, checkpoint=tmp_path / "run")
    assert len(told) == 1
    again = simulator(Momentum())
    with pytest.warns(UserWarning, match=message):
        again.load(tmp_path / "run")
    again.save(tmp_path / "copy")
    with pytest.warns(UserWarning, match=message.replace("run", "copy")):
        simulator(Momentum()).load(tmp_path / "copy")


def test_going_back_does_not_bring_a_memory_back(tmp_path: Path) -> None:
    run = simulator(Momentum())
    run.save(tmp_path / "run")
    run.step()
    with pytest.warns(UserWarning, match=r"run does not hold .* remembered.*: trainer\.velocity"):
        run.load(tmp_path / "run")


def test_rounds_without_a_checkpoint_are_silent() -> None:
    simulator(Momentum()).run(3)


def test_a_round_that_fails_is_not_the_first() -> None:
    found = HiddenState()
    trainer = Momentum()
    with pytest.raises(ValueError, match="broken"), found.watched(trainer):
        raise ValueError("broken")
    with found.watched(trainer):
        trainer(torch.ones(N, D), 0)
    assert found.changed == ["trainer.velocity"]


# Adam, saved


class Adam:
    """All clients in one parameter: Adam works on every number for itself."""

    def __init__(self) -> None:
        self.parameter = nn.Parameter(torch.zeros(N, D))
        self.optimizer = torch.optim.Adam([self.parameter], lr=0.1)

    def __call__(self, models: Tensor, t: int) -> Tensor:
        self.parameter.data.copy_(models)
        self.optimizer.zero_grad()
        (self.parameter - GOALS).square().sum().backward()
        self.optimizer.step()
        return self.parameter.detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.optimizer.state[self.parameter])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.optimizer.state[self.parameter] = {name: x.clone() for name, x in state.items()}


class ForgetfulAdam(Adam):
    state_dict = None  # type: ignore[assignment]
    load_state_dict = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_adam_with_a_state_dict_resumes_bit_by_bit(tmp_path: Path) -> None:
    whole = simulator(Adam())
    whole.run(9)
    for rounds in (2, 3, 9):
        part = simulator(Adam())
        part.run(rounds, checkpoint=tmp_path / "run")
    assert torch.equal(part.models, whole.models)
    assert part.history == whole.history


def test_adam_without_a_state_dict_does_not_and_says_so(tmp_path: Path) -> None:
    whole = simulator(ForgetfulAdam())
    whole.run(9)
    with pytest.warns(UserWarning, match=r"its first call changed .*trainer\.optimizer\.state"):
        simulator(ForgetfulAdam()).run(2, checkpoint=tmp_path / "run")
    part = simulator(ForgetfulAdam())
    with pytest.warns(UserWarning, match="does not hold what its trainer remembered"):
        part.run(9, checkpoint=tmp_path / "run")
    assert not torch.equal(part.models, whole.models)


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_half_of_a_state_dict_is_an_error(method: str, tmp_path: Path) -> None:
    def train(models: Tensor, t: int) -> Tensor:
        return models

    setattr(train, method, dict)
    run = simulator(train)
    with pytest.raises(ValueError, match=f"must have both .*, or neither, found {method}"):
        run.run(3, checkpoint=tmp_path / "run")
    assert run.t == 0
    assert not (tmp_path / "run").exists()
