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
