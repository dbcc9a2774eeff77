"""Random rounds and random examples for the laws of attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise._utils.validation import describe
from equipoise.attacks import Knowledge

SINGLE_AND_DOUBLE = (torch.float32, torch.float64)
ALL_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def random_knowledge(
    n: int,
    d: int,
    malicious: list[int],
    *,
    p: float = 0.5,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Knowledge:
    """Return a round on a directed random graph, with models near a common one, under BALANCE."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        # In float64 for all dtypes, so that a seed gives the same round in each of them.
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    adjacency = torch.rand(n, n, generator=generator) < p
    topology = eq.Topology.from_adjacency(adjacency.fill_diagonal_(False))
    # Models differ by a fifth of their length, updates by a tenth of it.
    models = randn(d) + 0.2 * randn(n, d)
    previous = models - 0.1 * randn(n, d)
    known = Knowledge(models.to(dtype), topology, malicious, previous=previous.to(dtype))
    return with_rule(known, eq.Balance())


def with_rule(known: Knowledge, rule: Any) -> Knowledge:
    """Return the round with this rule; clients tolerate their number of malicious neighbors."""
    tolerated = known.topology.malicious_neighbors(known.malicious)
    # An early round: the radius of BALANCE has shrunk little.
    inputs: Any = {"t": 2, "total": 10, "tolerated": tolerated}
    return dataclasses.replace(known, rule=rule, inputs=inputs)


def with_seed(known: Knowledge, seed: int) -> Knowledge:
    """Return the round with its own generator."""
    return dataclasses.replace(known, generator=torch.Generator().manual_seed(seed))


def with_other_malicious_models(known: Knowledge) -> Iterator[Knowledge]:
    """Yield rounds in which only the vectors of malicious clients differ; all values are finite."""
    generator = torch.Generator().manual_seed(0)
    # Zeros, ordinary models, and huge ones: three quarters of the exponents of the dtype.
    for scale in (0.0, 1.0, torch.finfo(known.models.dtype).max ** 0.75):

        def other(vectors: Tensor | None, scale: float = scale) -> Tensor | None:
            if vectors is None:
                return None
            noise = torch.rand(vectors.shape, generator=generator, dtype=torch.float64) - 0.5
            noise = noise.mul_(scale).to(vectors)
            return torch.where(known.malicious_mask[:, None], noise, vectors)

        inputs: Any = dict(known.inputs)
        if "update" in inputs:
            inputs["update"] = other(inputs["update"])
        changed: Any = {
            name: other(getattr(known, name)) for name in ("models", "previous", "origin")
        }
        yield dataclasses.replace(known, inputs=inputs, **changed)


@st.composite
def attacked_rounds(
    draw: st.DrawFn, dtypes: Sequence[torch.dtype] = SINGLE_AND_DOUBLE
) -> Knowledge:
    """Draw a round on a random graph of up to nine clients, any of which may be malicious."""
    n = draw(st.integers(1, 9))
    mask = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    malicious = [i for i, is_malicious in enumerate(mask) if is_malicious]
    d = draw(st.integers(1, 6))
    # From complete graphs to graphs with isolated clients.
    p = draw(st.sampled_from([1.0, 0.6, 0.2]))
    seed = draw(st.integers(0, 999))
    dtype = draw(st.sampled_from(dtypes))
    return random_knowledge(n, d, malicious, p=p, seed=seed, dtype=dtype)


def delivered(known: Knowledge, lies: Any) -> dict[tuple[int, int], Tensor]:
    """Return the message along every edge (sender, receiver)."""
    # As in the simulator: lies in the name of benign clients are ignored.
    inbox = known.topology.deliver(known.models, lies, known.malicious)
    return {
        (int(inbox.senders[i, slot]), int(i)): inbox.bank[inbox.slots[i, slot]]
        for i, slot in inbox.mask.nonzero()
    }


class ClientExamples(NamedTuple):
    """A malicious client's examples and labels."""

    x: Tensor
    y: Tensor

    def __str__(self) -> str:
        return f"x {describe(self.x)}, y {self.y.tolist()}"


@st.composite
def examples(draw: st.DrawFn, features: Sequence[int] = (8,)) -> ClientExamples:
    """Draw up to twelve examples of ten classes, possibly none, in any floating-point dtype."""
    count = draw(st.integers(0, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    dtype = draw(st.sampled_from(ALL_DTYPES))
    labels = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    # From a seed, as single values hardly matter; hypothesis shrinks the labels.
    x = torch.randn(count, *features, generator=generator).to(dtype)
    return ClientExamples(x, torch.tensor(labels).long())
