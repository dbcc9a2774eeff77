"""A trainer of some clients trains them as a trainer of all does, and holds nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.training import LazyClients

N, D = 7, 5 * 3 + 3
LOADED: list[int] = []


def load(client: int) -> tuple[Tensor, Tensor]:
    LOADED.append(client)
    generator = torch.Generator().manual_seed(client)
    count = 3 + client
    return torch.randn(count, 5, generator=generator), torch.arange(count) % 3


def trainer(*, lazy: bool = False, **options: Any) -> eq.LocalSGD:
    clients = LazyClients(N, load) if lazy else [load(client) for client in range(N)]
    settings = {"lr": 0.1, "batch_size": 4, "momentum": 0.9, "steps": 2}
    return eq.LocalSGD(nn.Linear(5, 3), cross_entropy, clients, **settings | options)


def models() -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("backend", ["loop", "threads", "batched"])
@pytest.mark.parametrize("chosen", [[0], [1, 2, 3], [0, 3, 6], [5, 6]])
def test_bits_of_a_trainer_of_all(backend: Any, chosen: list[int]) -> None:
    every = trainer(backend=backend)
    some = trainer(backend=backend).of_clients(chosen)
    mine = models()[chosen]
    theirs = models()
    for t in range(3):
        theirs = every(theirs, t)
        mine = some(mine, t)
        torch.testing.assert_close(mine, theirs[chosen], rtol=0, atol=0)
    assert torch.equal(some.state_dict()["velocity"], every.state_dict()["velocity"][chosen])


@pytest.mark.parametrize("backend", ["threads", "batched"])
def test_untrained_clients_of_others(backend: Any) -> None:
    # The blocks of a training depend on all clients that are trained, in every process.
    trained = torch.tensor([0, 2, 3, 5, 6])
    every, some = trainer(backend=backend), trainer(backend=backend).of_clients([2, 4, 5])
    before = models()
    theirs, mine = torch.zeros_like(before), torch.zeros(3, D)
    every.train_into(theirs, before, 0, clients=trained)
    some.train_into(mine, before[[2, 4, 5]], 0, clients=trained)
    torch.testing.assert_close(mine[[0, 2]], theirs[[2, 5]], rtol=0, atol=0)
    assert torch.equal(mine[1], before[4])  # untrained


def test_poison_depends_on_the_client() -> None:
    attack = eq.attacks.FeatureNoise(std=1.0)
    theirs = trainer().poisoned(attack, [1, 4])(models(), 0)
    for some in (
        trainer().of_clients([3, 4]).poisoned(attack, [1, 4]),
        trainer().poisoned(attack, [1, 4]).of_clients([3, 4]),
    ):
        torch.testing.assert_close(some(models()[[3, 4]], 0), theirs[[3, 4]], rtol=0, atol=0)


def test_lazy_clients_load_their_own() -> None:
    LOADED.clear()
    some = trainer(lazy=True).of_clients([2, 5], gather=lambda counts: torch.arange(3, 10))
    torch.testing.assert_close(some(models()[[2, 5]], 0), trainer()(models(), 0)[[2, 5]])
    assert LOADED[:3] == [0, 2, 5]  # client 0 to check the model
    assert some.samples.tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_lazy_clients_serve_one_process() -> None:
    assert torch.equal(trainer(lazy=True)(models(), 0), trainer()(models(), 0))


def test_examples_of_others_are_freed() -> None:
    x = torch.zeros(1000, 5)
    y = torch.zeros(1000, dtype=torch.int64)
    clients = list(zip(x.split(500), y.split(500), strict=True))
    some = eq.LocalSGD(nn.Linear(5, 3), cross_entropy, clients, lr=0.1).of_clients([1])
    assert some._clean.x.untyped_storage().nbytes() == 500 * 5 * 4


def test_errors() -> None:
    with pytest.raises(ValueError, match="clients must hold at least one client, found none"):
        trainer().of_clients([])
    with pytest.raises(ValueError, match="trainer must be of all clients to choose some"):
        trainer().of_clients([1]).of_clients([0])
    with pytest.raises(ValueError, match="n must be"):
        LazyClients(0, load)
    with pytest.raises(IndexError):
        LazyClients(2, load)[2]


def test_checking_models_loads_no_client() -> None:
    train = trainer(lazy=True)
    LOADED.clear()
    train.check_models(models())
    with pytest.raises(ValueError, match=r"models must be float32 \(7, 18\) .* found .*\(6, 18\)"):
        train.check_models(models()[1:])
    assert LOADED == []
    train.of_clients([1, 2]).check_models(models()[:2])
