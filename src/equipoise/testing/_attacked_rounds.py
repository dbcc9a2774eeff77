"""Random rounds, and random examples, on which attacks are tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise._utils.validation import describe
from equipoise.attacks import Knowledge

BOTH_DTYPES = (torch.float32, torch.float64)


def a_round(
    n: int, d: int, malicious: list[int], *, p: float = 0.5, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Knowledge:
    """A directed random graph whose clients are near a common model, and follow BALANCE."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(n, n, generator=generator) < p
    topology = eq.Topology.from_adjacency(table.fill_diagonal_(False))
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    models = common + 0.2 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    previous = models - 0.1 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return following(Knowledge(models.to(dtype), topology, malicious, previous=previous.to(dtype)), eq.Balance())


def following(known: Knowledge, rule: Any) -> Knowledge:
    """The same round, in which everybody follows this rule and knows how many malicious neighbours it has."""
    tolerated = known.topology.malicious_neighbors(known.malicious)
    return dataclasses.replace(known, rule=rule, inputs={"t": 2, "total": 10, "tolerated": tolerated})


def seeded(known: Knowledge, seed: int) -> Knowledge:
    """The same round with a generator of its own."""
    return dataclasses.replace(known, generator=torch.Generator().manual_seed(seed))


@st.composite
def attacked_rounds(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = BOTH_DTYPES) -> Knowledge:
    """What the adversary knows about a random graph of up to nine clients, any of which may be malicious."""
    n = draw(st.integers(1, 9))
    malicious = [i for i, is_one in enumerate(draw(st.lists(st.booleans(), min_size=n, max_size=n))) if is_one]
    d, p = draw(st.integers(1, 6)), draw(st.sampled_from([1.0, 0.6, 0.2]))
    return a_round(n, d, malicious, p=p, seed=draw(st.integers(0, 999)), dtype=draw(st.sampled_from(dtypes)))


def heard(known: Knowledge, lies: Any) -> dict[tuple[int, int], Tensor]:
    """What travels along every edge (sender, receiver)."""
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    return {(int(inbox.senders[i, slot]), int(i)): inbox.bank[inbox.slots[i, slot]] for i, slot in inbox.mask.nonzero()}


class Examples(NamedTuple):
    """A malicious client's examples and labels."""

    x: Tensor
    y: Tensor

    def __str__(self) -> str:
        return f"x {describe(self.x)}, y {self.y.tolist()}"


@st.composite
def examples(draw: st.DrawFn, features: Sequence[int] = (8,)) -> Examples:
    """Up to twelve examples of ten classes, or none, in any floating-point dtype."""
    count = draw(st.integers(0, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    labels = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    return Examples(torch.randn(count, *features, generator=generator).to(dtype), torch.tensor(labels).long())
