"""All partitions: each example once, the common options, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data.partitions import Parts, by_classes, by_client, by_group, dirichlet, iid
from tests.data.parts import (
    LABEL_BASED,
    PARTITIONS,
    Partition,
    clients,
    dataset,
    every_partition,
    same,
    sizes,
)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Tensor, Callable[..., Parts]]:
    """Draw labels, and a partition of them that needs only the common options."""
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


@given(split=splits())
def test_each_example_once(split: tuple[Tensor, Callable[..., Parts]]):
    labels, partition = split
    before = labels.clone()
    parts = partition()
    assert isinstance(parts, tuple)
    assert all(part.dtype == torch.int64 and part.dim() == 1 for part in parts)
    assert all((part.diff() > 0).all() for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert torch.equal(labels, before)


@given(split=splits(), noise=st.integers(0, 100))
def test_deterministic(split: tuple[Tensor, Callable[..., Parts]], noise: int):
    _, partition = split
    first = partition()
    torch.manual_seed(noise)
    state = torch.get_rng_state()
    assert same(partition(), first)
    assert torch.equal(torch.get_rng_state(), state)


@every_partition
def test_other_seeds(partition: Partition):
    labels = torch.arange(600) % 20  # two clients hold a class, and two owners are merged
    results = [partition(labels, 10, seed=seed, minimum=0) for seed in range(5)]
    assert not any(same(results[i], results[j]) for i in range(5) for j in range(i))


@every_partition
def test_dataset_or_labels(partition: Partition):
    labels = torch.randperm(200) % 8
    data = dataset(labels, 8, owners=labels)
    assert same(partition(data, 6, minimum=0), partition(labels, 6, minimum=0))
    assert same(partition(labels.to(torch.uint8), 6, minimum=0), partition(labels, 6, minimum=0))
    assert [len(y) for _, y in data.split(partition(data, 6, minimum=0))] == sizes(
        partition(labels, 6, minimum=0)
    )


@every_partition
def test_one_client(partition: Partition):
    (part,) = partition(torch.tensor([0, 1, 2, 1]), 1)
    assert part.tolist() == [0, 1, 2, 3]


@every_partition
def test_speed(partition: Partition):
    labels = (
        torch.randint(2000, (60000,)) if partition is by_client else torch.randint(10, (60000,))
    )
    with torch.profiler.profile() as profile:
        partition(labels, 1000, too_little="top_up")
    assert (
        len(profile.events()) < 5000
    )  # most of them are the views that are the parts of 1,000 clients


@given(split=splits(), data=st.data())
def test_top_up_moves_few(split: tuple[Tensor, Callable[..., Parts]], data: st.DataObject):
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
    """Return the sizes after the largest client gave one example, ``total`` times in a row."""
    enough = [size for size in old.tolist() if size >= minimum]
    for _ in range(total):
        enough[enough.index(max(enough))] -= 1
    return sorted(enough)


def test_top_up_moves_random_ones():
    labels = torch.tensor([0] * 100 + [1] * 10)
    moved = torch.zeros(100)
    for seed in range(200):
        parts = by_client(labels, seed=seed, minimum=30, too_little="top_up")
        assert sizes(parts) == [80, 30]
        moved[parts[1][:20]] += 1
    # Each of 100 examples is among the 20 in a fifth of 200 draws; 5 standard deviations of 5.7.
    assert float((moved - 40).abs().max()) < 29
    assert float((moved - 40).square().mean()) == pytest.approx(200 * 0.2 * 0.8, rel=0.5)


def test_top_up_receivers_random():
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
def test_top_up_not_needed(partition: Partition):
    labels = torch.arange(400) % 4
    assert same(partition(labels, 4, minimum=5, too_little="top_up"), partition(labels, 4))


def test_too_little_error():
    owners = torch.tensor([0] * 9 + [1] * 2 + [2] * 1 + [3] * 9)
    message = (
        r"every client must have at least 3 examples \(minimum\), found 1 for client 2,"
        r" and too few for 2 of 4 clients;"
        r" ask for fewer clients, a smaller minimum, another seed, or too_little='top_up'"
    )
    with pytest.raises(ValueError, match=message):
        by_client(owners, minimum=3)
    assert sizes(by_client(owners, minimum=1)) == [9, 2, 1, 9]


@every_partition
@pytest.mark.parametrize("too_little", ["error", "top_up"])
def test_too_few_examples(partition: Partition, too_little: str):
    with pytest.raises(
        ValueError, match=r"data must have n \* minimum = 12 examples or more, found 11"
    ):
        partition(torch.arange(11) % 3, 3, minimum=4, too_little=too_little)


LABELS = torch.arange(20) % 4


@pytest.mark.parametrize("name", LABEL_BASED)
@pytest.mark.parametrize("wrapped", [True, False])
def test_regression_has_no_classes(name: str, wrapped: bool):
    targets = torch.randn(20)
    data = dataset(targets, None) if wrapped else targets
    advice = "by iid or, if the data have owners, by_client"
    message = rf"data must have classes for {name}, found float32 \(20,\); .* {advice}"
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
