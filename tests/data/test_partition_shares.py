"""The shares of classes and owners that each partition gives to its clients."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data.partitions import by_classes, by_client, by_group, dirichlet, iid
from tests.data.parts import dataset, same, sizes, surprise, table


@given(count=st.integers(1, 200), n=st.integers(1, 30), floats=st.booleans())
def test_iid_sizes(count: int, n: int, floats: bool):
    parts = iid(
        torch.zeros(count) if floats else torch.zeros(count, dtype=torch.int64), n, minimum=0
    )
    assert len(parts) == n
    assert max(sizes(parts)) - min(sizes(parts)) <= 1


def test_iid_ignores_labels():
    labels = torch.arange(20000) % 10
    counts = table(labels, iid(labels, 20, seed=3), 10)
    assert surprise(counts, torch.full((10, 20), 100.0), freedom=9 * 19) < 4
    assert (
        float(counts.double().std()) > 5
    )  # but is not stratified: random counts have a deviation of 9


def test_iid_of_the_paper():
    data = dataset(torch.randn(8000), None)
    assert sizes(iid(data, 20)) == [400] * 20


def by_group_in_slow_motion(
    labels: list[int], n: int, p: float, z: int, rng: random.Random
) -> list[list[int]]:
    """Fang et al. 2020, example by example; groups of consecutive clients."""
    parts: list[list[int]] = [[] for _ in range(n)]
    for example, y in enumerate(labels):
        r, rest = rng.random(), (1 - p) / (z - 1)
        lower = y * rest
        upper = lower + p
        if r > upper:
            group = min(int((r - upper) / rest) + y + 1, z - 1)
        elif r < lower:
            group = int(r / rest)
        else:
            group = y
        parts[group * n // z + int(rng.random() * n / z)].append(example)
    return parts


def group_proportions(p: float, z: int) -> Tensor:
    return torch.full((z, z), (1 - p) / (z - 1)).fill_diagonal_(p)


def groups_of(counts: Tensor) -> Tensor:
    """Count examples of class y in group g, (z, z); a client's group is its largest class."""
    z = len(counts)
    return torch.zeros(z, z).index_add_(1, counts.argmax(0), counts.float())


@pytest.mark.parametrize(("p", "seed"), [(0.8, 0), (0.8, 1), (0.5, 2), (0.3, 3), (0.95, 4)])
@pytest.mark.parametrize("slow", [True, False])
def test_by_group_gives_p(p: float, seed: int, slow: bool):
    labels, z, n = torch.arange(20000) % 10, 10, 20
    if slow:
        listed = by_group_in_slow_motion(labels.tolist(), n, p, z, random.Random(seed))
        parts = tuple(torch.tensor(part) for part in listed)
    else:
        parts = by_group(labels, n, p, seed=seed)
    found = groups_of(table(labels, parts, z))
    expected = 2000 * group_proportions(p, z)
    freedom = z * (z - 1)
    assert abs(surprise(found, expected, freedom)) < 4
    # A p that is off by 0.05 would be noticed.
    assert surprise(found, 2000 * group_proportions(p - 0.05, z), freedom) > 4


def test_by_group_of_the_paper():
    labels = torch.arange(60000) % 10
    parts = by_group(labels, 20)
    assert table(labels, parts, 10).argmax(0).bincount().tolist() == [2] * 10
    assert all(2800 < size < 3200 for size in sizes(parts))


@settings(max_examples=40)
@given(z=st.integers(2, 6), n=st.integers(1, 20), seed=st.integers(0, 1000))
def test_by_group_p_1(z: int, n: int, seed: int):
    labels = torch.randperm(z * 30) % z
    counts = table(labels, by_group(labels, n, 1.0, seed=seed, minimum=0), z)
    groups = [set(row.nonzero().flatten().tolist()) for row in counts]
    if n >= z:
        assert sorted(k for group in groups for k in group) == list(range(n))
        assert sorted(len(group) for group in groups) == sorted(
            len(range(g, n, z)) for g in range(z)
        )
        assert all(max(row[row > 0]) - min(row[row > 0]) <= 1 for row in counts)
    else:
        assert all(len(group) == 1 for group in groups)
        assert sorted((counts > 0).sum(0).tolist()) == sorted(len(range(k, z, n)) for k in range(n))


@settings(max_examples=30)
@given(
    z=st.integers(2, 6), multiple=st.integers(1, 4), p=st.floats(0, 1), seed=st.integers(0, 1000)
)
def test_by_group_sizes(z: int, multiple: int, p: float, seed: int):
    labels = torch.randperm(z * 30) % z
    ordered = sorted(sizes(by_group(labels, z * multiple, p, seed=seed, minimum=0)))
    # The groups in order of their sizes are runs of the sorted sizes of clients.
    assert all(
        max(ordered[i : i + multiple]) - min(ordered[i : i + multiple]) <= 1
        for i in range(0, len(ordered), multiple)
    )


@pytest.mark.parametrize(("n", "z"), [(20, 10), (7, 10), (23, 10), (5, 2)])
def test_by_group_iid(n: int, z: int):
    labels = torch.arange(30000) % z
    counts = table(labels, by_group(labels, n, 1 / z, seed=5), z)
    expected = counts.sum(0, keepdim=True) / z
    assert abs(surprise(counts, expected.expand(z, n), freedom=(z - 1) * n)) < 4


def test_by_group_p_0():
    labels = torch.arange(3000) % 10
    counts = table(labels, by_group(labels, 10, 0.0), 10)
    assert ((counts == 0).sum(0) == 1).all()
    assert ((counts == 0).sum(1) == 1).all()


def test_by_group_renumbers():
    labels = torch.arange(200) % 10
    classes = torch.tensor(
        [
            table(labels, by_group(labels, 10, 1.0, seed=seed), 10).argmax(0).tolist()
            for seed in range(300)
        ]
    )
    counts = torch.stack([classes[:, k].bincount(minlength=10) for k in range(10)])
    assert surprise(counts, torch.full((10, 10), 30.0), freedom=81) < 4


def test_classes_without_examples():
    labels = torch.zeros(1000, dtype=torch.int64)
    assert sorted(sizes(by_group(dataset(labels, 2), 2, 1.0, minimum=0))) == [0, 1000]
    assert sorted(sizes(by_group(labels, 2, 1.0))) == [500, 500]


@settings(max_examples=50)
@given(z=st.integers(1, 12), n=st.integers(1, 25), data=st.data())
def test_by_classes_consecutive(z: int, n: int, data: st.DataObject):
    each = data.draw(st.integers(math.ceil(z / n), z))
    labels = torch.randperm(z * 40) % z
    counts = table(labels, by_classes(labels, n, each, seed=n), z)
    for k in range(n):
        held = {(each * k + offset) % z for offset in range(each)}
        assert set(counts[:, k].nonzero().flatten().tolist()) == held
    for row in counts:
        assert int(row[row > 0].max() - row[row > 0].min()) <= 1


def test_by_classes_of_the_paper():
    labels = torch.arange(60000) % 10
    parts = by_classes(labels, 20)
    assert [labels[part].unique().tolist() for part in parts[:4]] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [0, 1, 9],
    ]
    counts = table(labels, parts, 10)
    assert ((counts == 0) | (counts == 1000)).all()
    assert ((counts > 0).sum(1) == 6).all()


@pytest.mark.parametrize(("n", "each", "needed"), [(3, 3, 4), (9, 1, 10), (1, 9, 2), (2, 4, 3)])
def test_by_classes_too_few_clients(n: int, each: int, needed: int):
    labels = torch.arange(100) % 10
    expected = f"n must be at least {needed} for 10 classes, {each} of them each"
    message = f"{expected}, found {n}: no client .* class {n * each}"
    with pytest.raises(ValueError, match=message):
        by_classes(labels, n, each)
    assert len(by_classes(labels, needed, each)) == needed


def test_dirichlet_even():
    labels = torch.arange(6000) % 10
    counts = table(labels, dirichlet(labels, 20, 1e9), 10)
    assert int((counts - 30).abs().max()) <= 1


@pytest.mark.parametrize("concentration", [1e-4, 1e-9, 1e-300])
def test_dirichlet_uneven(concentration: float):
    labels = torch.arange(30000) % 300
    counts = table(labels, dirichlet(labels, 10, concentration, minimum=0), 300)
    assert (
        int((counts == 100).sum()) >= 298
    )  # each class has two clients with probability 1e-3 at most
    assert surprise((counts > 50).sum(0), torch.full((10,), 30.0), freedom=9) < 4


@pytest.mark.parametrize("concentration", [0.1, 0.5, 2.0, 20.0])
def test_dirichlet_concentration(concentration: float):
    n, z, each = 5, 400, 1000
    labels = torch.arange(z * each) % z
    shares = table(labels, dirichlet(labels, n, concentration, seed=2, minimum=0), z) / each
    assert torch.allclose(shares.mean(1), torch.tensor(1 / n))
    assert torch.allclose(shares.mean(0), torch.tensor(1 / n), atol=0.1)
    expected = (concentration + 1) / (n * concentration + 1)  # of the sum of squares
    assert float(shares.square().sum(1).mean()) == pytest.approx(expected, rel=0.06)


def test_dirichlet_many_classes():
    # In single precision, 2999 + 0.9999975 is 3000: the last examples of a class would go to a
    # client of the next one.
    labels = torch.cat([torch.arange(3000), torch.full((200000,), 2999)])
    parts = dirichlet(labels, 3, 1e9)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert table(labels, parts, 3000)[-1].sub(200001 // 3).abs().max() <= 20


@pytest.mark.parametrize(("n", "concentration"), [(7, 1e2), (20, 1e6), (30, 1.0)])
def test_dirichlet_unbiased(n: int, concentration: float):
    labels, seeds = torch.arange(100) % 10, 400
    found = torch.tensor(
        [sizes(dirichlet(labels, n, concentration, seed=seed, minimum=0)) for seed in range(seeds)]
    )
    error = found.double().std(0) / math.sqrt(seeds)
    assert ((found.double().mean(0) - 100 / n).abs() <= 4 * error + 1e-9).all()


def test_dirichlet_rounding():
    labels = torch.arange(100) % 10
    assert all(set(sizes(dirichlet(labels, 20, 1e9, seed=seed))) == {5} for seed in range(20))


def test_dirichlet_rounds_shares():
    labels = torch.arange(50) % 5
    counts = torch.cat(
        [table(labels, dirichlet(labels, 4, 1e9, seed=seed), 5) for seed in range(50)]
    )
    assert counts.unique().tolist() == [2, 3]


def test_dirichlet_independent():
    labels = torch.arange(200000) % 400
    shares = table(labels, dirichlet(labels, 4, minimum=0), 400) / 500
    correlation = torch.corrcoef(torch.stack([shares[::2, 0], shares[1::2, 0]]))[0, 1]
    assert abs(float(correlation)) < 0.3


def test_by_client_keeps_owners():
    owners = torch.tensor([2, 0, 1, 1, 2, 2])
    assert [part.tolist() for part in by_client(owners)] == [[1], [2, 3], [0, 4, 5]]
    assert same(by_client(owners, 3, seed=8), by_client(owners))
    assert same(by_client(dataset(torch.randn(6), None, owners)), by_client(owners))


@given(count=st.integers(1, 20), n=st.integers(1, 20), seed=st.integers(0, 100))
def test_by_client_merges_evenly(count: int, n: int, seed: int):
    n = min(n, count)
    owners = torch.randperm(count * 5) % count
    counts = table(owners, by_client(owners, n, seed=seed), count)
    assert ((counts == 0) | (counts == 5)).all()
    merged = (counts > 0).sum(0)
    assert int(merged.max() - merged.min()) <= 1
    assert len(merged) == n
