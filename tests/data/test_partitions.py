"""Partitions: every example once, as the seed says, in the proportions that each one promises."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data.dataset import Dataset
from equipoise.data.partitions import Parts, by_classes, by_client, by_group, dirichlet, iid

Partition = Callable[..., Parts]

PARTITIONS: dict[str, Partition] = {
    "iid": iid,
    "by_group": by_group,
    "by_classes": by_classes,
    "dirichlet": dirichlet,
    "by_client": by_client,
}
LABEL_BASED = ["by_group", "by_classes", "dirichlet"]

every_partition = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS.keys())


def dataset(y: Tensor, classes: int | None, owners: Tensor | None = None) -> Dataset:
    return Dataset(torch.zeros(len(y), 1), y, torch.zeros(1, 1), y[:1], classes, owners, "made-up")


def table(labels: Tensor, parts: Parts, classes: int) -> Tensor:
    """Examples of class y at client k, (classes, n)."""
    return torch.stack([labels[part].bincount(minlength=classes) for part in parts], dim=1)


def sizes(parts: Parts) -> list[int]:
    return [len(part) for part in parts]


def clients(parts: Parts) -> Tensor:
    """The client of every example."""
    owner = torch.full((sum(sizes(parts)),), -1)
    for k, part in enumerate(parts):
        owner[part] = k
    return owner


def same(a: Parts, b: Parts) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def surprise(found: Tensor, expected: Tensor, freedom: int) -> float:
    """Pearson's chi-squared, in standard deviations from its mean."""
    chi_squared = ((found - expected).square() / expected).sum()
    return (float(chi_squared) - freedom) / math.sqrt(2 * freedom)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Tensor, Callable[..., Parts]]:
    """Labels, and a partition of them into any number of clients that needs only the common options."""
    z = draw(st.integers(1, 7))
    labels = torch.tensor(draw(st.lists(st.integers(0, z - 1), min_size=1, max_size=60)))
    z = int(labels.max()) + 1
    n, seed = draw(st.integers(1, 15)), draw(st.integers(0, 2**32))
    name = draw(st.sampled_from(list(PARTITIONS)))
    if name == "by_group":
        arguments: dict[str, Any] = {"p": draw(st.floats(0, 1))}
    elif name == "by_classes":
        each = draw(st.integers(1, z))
        n, arguments = max(n, math.ceil(z / each)), {"classes_each": each}
    elif name == "dirichlet":
        arguments = {"concentration": draw(st.sampled_from([1e-9, 0.01, 0.5, 3, 1e9]))}
    elif name == "by_client":
        labels = labels.unique(return_inverse=True)[1]
        n, arguments = min(n, int(labels.max()) + 1), {}
    else:
        arguments = {}
    return labels, lambda **options: PARTITIONS[name](
        labels, n, **{"seed": seed, "minimum": 0, **arguments, **options}
    )


# What all of them promise


@given(split=splits())
def test_every_example_once_and_in_order(split: tuple[Tensor, Callable[..., Parts]]):
    labels, partition = split
    before = labels.clone()
    parts = partition()
    assert isinstance(parts, tuple)
    assert all(part.dtype == torch.int64 and part.dim() == 1 for part in parts)
    assert all((part.diff() > 0).all() for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert torch.equal(labels, before)


@given(split=splits(), noise=st.integers(0, 100))
def test_the_seed_decides_and_nothing_else(split: tuple[Tensor, Callable[..., Parts]], noise: int):
    _, partition = split
    first = partition()
    torch.manual_seed(noise)
    state = torch.get_rng_state()
    assert same(partition(), first)
    assert torch.equal(torch.get_rng_state(), state)


@every_partition
def test_other_seeds_give_other_parts(partition: Partition):
    labels = torch.arange(600) % 20  # two clients hold a class, and two owners are merged
    results = [partition(labels, 10, seed=seed, minimum=0) for seed in range(5)]
    assert not any(same(results[i], results[j]) for i in range(5) for j in range(i))


@every_partition
def test_a_dataset_and_its_labels_give_the_same_parts(partition: Partition):
    labels = torch.randperm(200) % 8
    data = dataset(labels, 8, owners=labels)
    assert same(partition(data, 6, minimum=0), partition(labels, 6, minimum=0))
    assert same(partition(labels.to(torch.uint8), 6, minimum=0), partition(labels, 6, minimum=0))
    assert [len(y) for _, y in data.split(partition(data, 6, minimum=0))] == sizes(
        partition(labels, 6, minimum=0)
    )


@every_partition
def test_one_client_has_everything(partition: Partition):
    (part,) = partition(torch.tensor([0, 1, 2, 1]), 1)
    assert part.tolist() == [0, 1, 2, 3]


@every_partition
def test_60000_examples_are_divided_without_a_loop_over_them(partition: Partition):
    labels = (
        torch.randint(2000, (60000,)) if partition is by_client else torch.randint(10, (60000,))
    )
    with torch.profiler.profile() as profile:
        partition(labels, 1000, too_little="top_up")
    assert (
        len(profile.events()) < 5000
    )  # most of them are the views that are the parts of 1,000 clients


# Too little


@given(split=splits(), data=st.data())
def test_a_top_up_moves_as_few_as_possible_from_the_largest(
    split: tuple[Tensor, Callable[..., Parts]], data: st.DataObject
):
    labels, partition = split
    before = partition()
    minimum = data.draw(st.integers(0, len(labels) // len(before)))
    after = partition(minimum=minimum, too_little="top_up")
    old, new = torch.tensor(sizes(before)), torch.tensor(sizes(after))
    lacking = (minimum - old).clamp(min=0)
    assert torch.equal(torch.cat(after).sort().values, torch.arange(len(labels)))
    assert int((clients(before) != clients(after)).sum()) == int(lacking.sum())
    assert torch.equal(new[old < minimum], old[old < minimum] + lacking[old < minimum])
    assert new[old >= minimum].sort().values.tolist() == largest_gave(
        old, int(lacking.sum()), minimum
    )


def largest_gave(old: Tensor, total: int, minimum: int) -> list[int]:
    """Sizes of those that have enough, ascending, after the largest one gave one example, ``total`` times over."""
    enough = [size for size in old.tolist() if size >= minimum]
    for _ in range(total):
        enough[enough.index(max(enough))] -= 1
    return sorted(enough)


def test_what_is_moved_is_random():
    labels = torch.tensor([0] * 100 + [1] * 10)
    moved = torch.zeros(100)
    for seed in range(200):
        parts = by_client(labels, seed=seed, minimum=30, too_little="top_up")
        assert sizes(parts) == [80, 30]
        moved[parts[1][:20]] += 1
    # Each of 100 examples is among the 20 in a fifth of 200 draws; 5 standard deviations of 5.7.
    assert float((moved - 40).abs().max()) < 29
    assert float((moved - 40).square().mean()) == pytest.approx(200 * 0.2 * 0.8, rel=0.5)


def test_who_gets_what_is_random():
    labels = torch.tensor([0] * 100 + [1, 2])
    first = [
        int(by_client(labels, seed=seed, minimum=2, too_little="top_up")[1][0])
        for seed in range(60)
    ]
    second = [
        int(by_client(labels, seed=seed, minimum=2, too_little="top_up")[2][0])
        for seed in range(60)
    ]
    ascending = sum(a < b for a, b in zip(first, second, strict=True))
    assert 15 < ascending < 45


@every_partition
def test_nothing_is_moved_if_nobody_lacks(partition: Partition):
    labels = torch.arange(400) % 4
    assert same(partition(labels, 4, minimum=5, too_little="top_up"), partition(labels, 4))


def test_a_client_with_too_little_is_an_error_that_says_what_to_do():
    owners = torch.tensor([0] * 9 + [1] * 2 + [2] * 1 + [3] * 9)
    message = (
        r"every client must have at least 3 examples \(minimum\), found 1 for client 2, and too few for 2 of 4 clients;"
        r" ask for fewer clients, a smaller minimum, another seed, or too_little='top_up'"
    )
    with pytest.raises(ValueError, match=message):
        by_client(owners, minimum=3)
    assert sizes(by_client(owners, minimum=1)) == [9, 2, 1, 9]


@every_partition
@pytest.mark.parametrize("too_little", ["error", "top_up"])
def test_too_few_examples_for_everybody(partition: Partition, too_little: str):
    with pytest.raises(
        ValueError, match=r"data must have n \* minimum = 12 examples or more, found 11"
    ):
        partition(torch.arange(11) % 3, 3, minimum=4, too_little=too_little)


# iid


@given(count=st.integers(1, 200), n=st.integers(1, 30), floats=st.booleans())
def test_iid_parts_have_equal_sizes(count: int, n: int, floats: bool):
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


def test_the_papers_regression_gives_400_examples_to_each_of_20_clients():
    data = dataset(torch.randn(8000), None)
    assert sizes(iid(data, 20)) == [400] * 20


# by_group


def by_group_in_slow_motion(
    labels: list[int], n: int, p: float, z: int, rng: random.Random
) -> list[list[int]]:
    """Fang et al. 2020, one example after the other, from one random number; groups of consecutive clients."""
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
    """Examples of class y in group g, (z, z), if clients have more of their group's class than of any other."""
    z = len(counts)
    return torch.zeros(z, z).index_add_(1, counts.argmax(0), counts.float())


@pytest.mark.parametrize(("p", "seed"), [(0.8, 0), (0.8, 1), (0.5, 2), (0.3, 3), (0.95, 4)])
@pytest.mark.parametrize("slow", [True, False])
def test_the_group_of_a_class_gets_p_of_it(p: float, seed: int, slow: bool):
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


def test_the_paper_has_two_clients_a_group_with_3000_examples_each():
    labels = torch.arange(60000) % 10
    parts = by_group(labels, 20)
    assert table(labels, parts, 10).argmax(0).bincount().tolist() == [2] * 10
    assert all(2800 < size < 3200 for size in sizes(parts))


@settings(max_examples=40)
@given(z=st.integers(2, 6), n=st.integers(1, 20), seed=st.integers(0, 1000))
def test_with_p_1_all_examples_of_a_class_are_in_its_group(z: int, n: int, seed: int):
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
def test_sizes_inside_a_group_differ_by_at_most_one(z: int, multiple: int, p: float, seed: int):
    labels = torch.randperm(z * 30) % z
    ordered = sorted(sizes(by_group(labels, z * multiple, p, seed=seed, minimum=0)))
    # The groups in order of their sizes are runs of the sorted sizes of clients.
    assert all(
        max(ordered[i : i + multiple]) - min(ordered[i : i + multiple]) <= 1
        for i in range(0, len(ordered), multiple)
    )


@pytest.mark.parametrize(("n", "z"), [(20, 10), (7, 10), (23, 10), (5, 2)])
def test_p_of_one_over_the_classes_is_iid(n: int, z: int):
    labels = torch.arange(30000) % z
    counts = table(labels, by_group(labels, n, 1 / z, seed=5), z)
    expected = counts.sum(0, keepdim=True) / z
    assert abs(surprise(counts, expected.expand(z, n), freedom=(z - 1) * n)) < 4


def test_p_of_0_keeps_every_class_out_of_its_group():
    labels = torch.arange(3000) % 10
    counts = table(labels, by_group(labels, 10, 0.0), 10)
    assert ((counts == 0).sum(0) == 1).all()
    assert ((counts == 0).sum(1) == 1).all()


def test_clients_are_renumbered_at_random():
    labels = torch.arange(200) % 10
    classes = torch.tensor(
        [
            table(labels, by_group(labels, 10, 1.0, seed=seed), 10).argmax(0).tolist()
            for seed in range(300)
        ]
    )
    counts = torch.stack([classes[:, k].bincount(minlength=10) for k in range(10)])
    assert surprise(counts, torch.full((10, 10), 30.0), freedom=81) < 4


def test_a_dataset_knows_classes_without_examples():
    labels = torch.zeros(1000, dtype=torch.int64)
    assert sorted(sizes(by_group(dataset(labels, 2), 2, 1.0, minimum=0))) == [0, 1000]
    assert sorted(sizes(by_group(labels, 2, 1.0))) == [500, 500]


# by_classes


@settings(max_examples=50)
@given(z=st.integers(1, 12), n=st.integers(1, 25), data=st.data())
def test_a_client_holds_consecutive_classes_and_each_is_divided_evenly(
    z: int, n: int, data: st.DataObject
):
    each = data.draw(st.integers(math.ceil(z / n), z))
    labels = torch.randperm(z * 40) % z
    counts = table(labels, by_classes(labels, n, each, seed=n), z)
    for k in range(n):
        held = {(each * k + offset) % z for offset in range(each)}
        assert set(counts[:, k].nonzero().flatten().tolist()) == held
    for row in counts:
        assert int(row[row > 0].max() - row[row > 0].min()) <= 1


def test_the_papers_three_classes():
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
def test_a_class_that_nobody_would_hold(n: int, each: int, needed: int):
    labels = torch.arange(100) % 10
    message = f"n must be at least {needed} for 10 classes, {each} of them each, found {n}: no client .* class {n * each}"
    with pytest.raises(ValueError, match=message):
        by_classes(labels, n, each)
    assert len(by_classes(labels, needed, each)) == needed


# dirichlet


def test_a_large_concentration_is_even():
    labels = torch.arange(6000) % 10
    counts = table(labels, dirichlet(labels, 20, 1e9), 10)
    assert int((counts - 30).abs().max()) <= 1


@pytest.mark.parametrize("concentration", [1e-4, 1e-9, 1e-300])
def test_a_small_concentration_gives_a_class_to_one_client(concentration: float):
    labels = torch.arange(30000) % 300
    counts = table(labels, dirichlet(labels, 10, concentration, minimum=0), 300)
    assert (
        int((counts == 100).sum()) >= 298
    )  # each class has two clients with probability 1e-3 at most
    assert surprise((counts > 50).sum(0), torch.full((10,), 30.0), freedom=9) < 4


@pytest.mark.parametrize("concentration", [0.1, 0.5, 2.0, 20.0])
def test_the_concentration_decides_how_uneven(concentration: float):
    n, z, each = 5, 400, 1000
    labels = torch.arange(z * each) % z
    shares = table(labels, dirichlet(labels, n, concentration, seed=2, minimum=0), z) / each
    assert torch.allclose(shares.mean(1), torch.tensor(1 / n))
    assert torch.allclose(shares.mean(0), torch.tensor(1 / n), atol=0.1)
    expected = (concentration + 1) / (n * concentration + 1)  # of the sum of squares
    assert float(shares.square().sum(1).mean()) == pytest.approx(expected, rel=0.06)


def test_many_classes_and_a_large_one_do_not_run_into_each_other():
    # In single precision, 2999 + 0.9999975 is 3000: the last examples of a class would go to a client of the next one.
    labels = torch.cat([torch.arange(3000), torch.full((200000,), 2999)])
    parts = dirichlet(labels, 3, 1e9)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert table(labels, parts, 3000)[-1].sub(200001 // 3).abs().max() <= 20


@pytest.mark.parametrize(("n", "concentration"), [(7, 1e2), (20, 1e6), (30, 1.0)])
def test_nobody_gains_by_rounding_in_small_classes(n: int, concentration: float):
    labels, seeds = torch.arange(100) % 10, 400
    found = torch.tensor(
        [sizes(dirichlet(labels, n, concentration, seed=seed, minimum=0)) for seed in range(seeds)]
    )
    error = found.double().std(0) / math.sqrt(seeds)
    assert ((found.double().mean(0) - 100 / n).abs() <= 4 * error + 1e-9).all()


def test_rounding_evens_out_over_the_classes():
    labels = torch.arange(100) % 10
    assert all(set(sizes(dirichlet(labels, 20, 1e9, seed=seed))) == {5} for seed in range(20))


def test_a_share_of_a_class_is_rounded_up_or_down():
    labels = torch.arange(50) % 5
    counts = torch.cat(
        [table(labels, dirichlet(labels, 4, 1e9, seed=seed), 5) for seed in range(50)]
    )
    assert counts.unique().tolist() == [2, 3]


def test_classes_are_divided_independently():
    labels = torch.arange(200000) % 400
    shares = table(labels, dirichlet(labels, 4, minimum=0), 400) / 500
    correlation = torch.corrcoef(torch.stack([shares[::2, 0], shares[1::2, 0]]))[0, 1]
    assert abs(float(correlation)) < 0.3


# by_client


def test_owners_keep_their_examples():
    owners = torch.tensor([2, 0, 1, 1, 2, 2])
    assert [part.tolist() for part in by_client(owners)] == [[1], [2, 3], [0, 4, 5]]
    assert same(by_client(owners, 3, seed=8), by_client(owners))
    assert same(by_client(dataset(torch.randn(6), None, owners)), by_client(owners))


@given(count=st.integers(1, 20), n=st.integers(1, 20), seed=st.integers(0, 100))
def test_owners_are_merged_whole_and_evenly(count: int, n: int, seed: int):
    n = min(n, count)
    owners = torch.randperm(count * 5) % count
    counts = table(owners, by_client(owners, n, seed=seed), count)
    assert ((counts == 0) | (counts == 5)).all()
    merged = (counts > 0).sum(0)
    assert int(merged.max() - merged.min()) <= 1
    assert len(merged) == n


# Bad input

LABELS = torch.arange(20) % 4


@pytest.mark.parametrize("name", LABEL_BASED)
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_regression_has_no_classes(name: str, wrapped: bool):
    targets = torch.randn(20)
    data = dataset(targets, None) if wrapped else targets
    message = rf"data must have classes for {name}, found float32 \(20,\); .* by iid or, if the data have owners, by_client"
    with pytest.raises(ValueError, match=message):
        PARTITIONS[name](data, 4)
    assert sizes(iid(data, 4)) == [5] * 4


@every_partition
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LABELS, 0), "n must be an integer at least 1, found 0"),
        ((LABELS, 2.0), "n must be an integer at least 1, found 2.0"),
        (
            (LABELS[:0], 2),
            r"data must be a Dataset, or .* of shape \(N,\) with N > 0, found int64 \(0,\)",
        ),
        (
            (LABELS[:, None], 2),
            r"data must be a Dataset, or .* of shape \(N,\) with N > 0, found int64 \(20, 1\)",
        ),
        (
            (LABELS.tolist(), 2),
            r"data must be a Dataset, or .* of shape \(N,\) with N > 0, found list",
        ),
    ],
)
def test_bad_arguments(partition: Partition, arguments: tuple[Any, ...], message: str):
    with pytest.raises(ValueError, match=message):
        partition(*arguments)


@every_partition
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be an integer >= 0, found -1"),
        ({"minimum": -1}, "minimum must be an integer at least 0, found -1"),
        ({"too_little": "ignore"}, "too_little must be 'error' or 'top_up', found 'ignore'"),
    ],
)
def test_bad_options(partition: Partition, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        partition(LABELS, 4, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: by_group(LABELS, 4, 1.1), "p must be a number from 0 to 1, found 1.1"),
        (lambda: by_group(LABELS, 4, math.nan), "p must be a number from 0 to 1, found nan"),
        (lambda: by_group(LABELS - 1, 4), "data must have labels from 0, found -1"),
        (lambda: by_classes(LABELS, 4, 5), "classes_each must be an integer from 1 to 4, found 5"),
        (lambda: by_classes(LABELS, 4, 0), "classes_each must be an integer from 1 to 4, found 0"),
        (
            lambda: dirichlet(LABELS, 4, 0.0),
            "concentration must be above 0 and at most 1e100, found 0.0",
        ),
        (
            lambda: dirichlet(LABELS, 4, math.inf),
            "concentration must be above 0 and at most 1e100, found inf",
        ),
        (
            lambda: dirichlet(LABELS, 4, math.nan),
            "concentration must be above 0 and at most 1e100, found nan",
        ),
        (
            lambda: dirichlet(LABELS, 4, "x"),
            "concentration must be above 0 and at most 1e100, found 'x'",
        ),
        (
            lambda: dirichlet(LABELS, 4, None),
            "concentration must be above 0 and at most 1e100, found None",
        ),
        (
            lambda: by_client(LABELS, 5),
            "n must be at most the number of owners, 4, found 5; other partitions, such as iid",
        ),
        (
            lambda: by_client(LABELS + 1),
            "data must number the owners from 0 without gaps, found no example of 0",
        ),
        (lambda: by_client(LABELS - 1), "data must have owners from 0, found -1"),
        (
            lambda: by_client(LABELS.float()),
            r"integer owners of shape \(N,\) with N > 0, found float32 \(20,\)",
        ),
        (
            lambda: by_client(dataset(LABELS, 4)),
            "data must have owners for by_client, found none in made-up; har and",
        ),
    ],
)
def test_bad_values(call: Callable[[], Parts], message: str):
    with pytest.raises(ValueError, match=message):
        call()
