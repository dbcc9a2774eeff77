"""Mini-batches and examples."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import LocalSGD
from equipoise.training._ensemble._stacked import Backend
from equipoise.training._examples import Examples, draw_positions
from tests.training.trainers import (
    every_way,
    examples,
    start,
)


def floyd(count: int, size: int, uniform: list[float]) -> list[int]:
    """The textbook version, for one client."""
    chosen: list[int] = []
    for i, u in zip(range(count - size, count), uniform, strict=True):
        pick = int(u * (i + 1))
        chosen.append(i if pick in chosen else pick)
    return chosen


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 1000)
)
def test_positions_match_textbook(counts: list[int], size: int, seed: int):
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    drawn = draw_positions(torch.tensor(counts), size, seeded())
    uniform = torch.rand(size, len(counts), dtype=torch.float64, generator=seeded())
    for i, count in enumerate(counts):
        expected = (
            floyd(count, size, uniform[:, i].tolist()) if count >= size else list(range(size))
        )
        assert drawn[i].tolist() == expected[: max(counts)]
        used = drawn[i, :count].tolist()
        assert len(set(used)) == len(used)
        assert all(0 <= position < count for position in used)


def test_adjacent_examples_are_shared():
    x = torch.rand(3, 4, 2)
    y = torch.arange(12).view(3, 4)
    shared = Examples.of(list(zip(x, y, strict=True)))
    assert shared.x.data_ptr() == x.data_ptr()
    assert torch.equal(shared.x, x.flatten(0, 1))
    assert torch.equal(shared.y, y.flatten())


@pytest.mark.parametrize("order", [[2, 1, 0], [0, 2, 1], [0, 0, 1]])
def test_other_orders_are_copied(order: list[int]):
    x = torch.rand(3, 4, 2)
    y = torch.arange(12).view(3, 4)
    copied = Examples.of([(x[i], y[i]) for i in order])
    assert copied.x.data_ptr() != x.data_ptr()
    assert torch.equal(copied.x, x[order].flatten(0, 1))
    assert torch.equal(copied.y, y[order].flatten())


@pytest.mark.parametrize("shape", [(6,), (1, 5, 6), (3, 5, 6)])
def test_shared_examples_are_never_written(shape: tuple[int, ...]):
    class Overwriting(nn.Module):
        """In evaluation mode only, where the checks of training do not see it."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
            self.layers(torch.zeros(1, *shape))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x if self.training else x.mul_(2))

    x = torch.rand(2, 8, *shape)
    y = torch.randint(3, (2, 8))
    before = x.clone()
    trainer = LocalSGD(Overwriting(), cross_entropy, list(zip(x, y, strict=True)), lr=0.1)
    models = start(trainer._trained.model, 2)
    trainer(models, 0)
    trainer.loss_of(0)(models, torch.tensor([0, 1]))
    attacked = trainer.poisoned(eq.attacks.FeatureNoise(std=1.0), malicious=[1])
    attacked(models, 0)
    assert torch.equal(x, before)


def test_uniform_subsets():
    drawn = draw_positions(torch.full((20_000,), 5), 3, torch.Generator().manual_seed(0))
    seen = Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert len(seen) == 10
    for count in seen.values():
        assert count == pytest.approx(2000, abs=5 * 2000**0.5)


def test_draws_ignore_other_clients():
    first, second = (
        draw_positions(torch.tensor(counts), 4, torch.Generator().manual_seed(0))
        for counts in ([9, 50, 7], [9, 3, 800])
    )
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[2], second[2])


def test_new_batches_every_step():
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
def test_huge_batch_size(backend: Backend):
    model, clients = nn.Linear(6, 3), examples((6,), [9, 3])
    models = start(model, 2)
    trainer = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=10**12, backend=backend)
    expected = LocalSGD(model, cross_entropy, clients, lr=0.1, batch_size=9, backend=backend)(
        models, 0
    )
    assert torch.equal(trainer(models, 0), expected)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_take_matches_indexing(counts: list[int], data: st.DataObject):
    pairs = examples((2,), counts)
    others = data.draw(st.sets(st.integers(0, len(counts) - 1)))
    replacements = {i: examples((2,), [data.draw(st.integers(1, 9))])[0] for i in others}
    everything = Examples.of(pairs).replaced(replacements)
    truth = [replacements.get(i, pair) for i, pair in enumerate(pairs)]
    assert everything.counts.tolist() == [len(y) for _, y in truth]
    clients = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=6))
    positions = [
        [data.draw(st.integers(0, len(truth[i][1]) - 1)) for _ in range(3)] for i in clients
    ]
    x, y = everything.take(torch.tensor(clients), torch.tensor(positions))
    for j, (i, chosen) in enumerate(zip(clients, positions, strict=True)):
        assert torch.equal(x[j], truth[i][0][chosen])
        assert torch.equal(y[j], truth[i][1][chosen])
