"""The training data of all clients, and mini-batches of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.validation import describe

Pair = tuple[Tensor, Tensor]


class Batch(NamedTuple):
    """Equally many examples for each of c rows of stacked models."""

    rows: Tensor  # (c,)
    x: Tensor  # (c, b, ...)
    y: Tensor  # (c, b, ...)


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of n clients, one client after the other in one tensor, so that batches are one ``index_select``.

    Client i has ``counts[i]`` examples from row ``starts[i]`` on, unless ``instead`` holds other ones for it, as its
    client ``place[i]``; a place of -1 is nowhere.

    >>> from equipoise.training._examples import Examples
    >>> pairs = [(torch.zeros(3, 2), torch.tensor([0, 1, 2])), (torch.ones(1, 2), torch.tensor([9]))]
    >>> examples = Examples.of(pairs)
    >>> x, y = examples.take(torch.tensor([0, 1]), torch.tensor([[2], [0]]))
    >>> x.shape, y
    (torch.Size([2, 1, 2]), tensor([[2],
            [9]]))
    """

    x: Tensor
    y: Tensor
    starts: Tensor
    counts: Tensor
    channels_last: bool = False
    instead: Examples | None = None
    place: Tensor | None = None

    @classmethod
    def of(cls, clients: Iterable[Pair], *, device: torch.device | str = "cpu") -> Examples:
        """The examples (x, y) of every client."""
        if not isinstance(clients, Iterable):
            raise ValueError(
                f"clients must be a pair of tensors (x, y) for every client, found {describe(clients)}; "
                "Dataset.split makes such pairs"
            )
        pairs = list(clients)
        if not pairs:
            raise ValueError("clients must hold the examples (x, y) of at least one client, found none")
        for i, pair in enumerate(pairs):
            _check_pair(pair, pairs[0], f"clients[{i}]")
        counts = torch.tensor([len(y) for _, y in pairs], device="cpu")
        x, y = (torch.cat([pair[i].detach() for pair in pairs]).to(device) for i in (0, 1))
        return cls(x, y, counts.cumsum(0) - counts, counts)

    def with_channels_last(self) -> Examples:
        """The same images, kept in another order of memory, in which they are then taken."""
        return replace(self, x=self.x.movedim(1, -1).contiguous(), channels_last=True)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.counts)

    @cached_property
    def digest(self) -> str:
        """A digest of all clients' examples, whatever their order in memory; computed once."""
        found = hashlib.blake2b(digest_size=16)
        for client in range(self.n):
            for part in self.of_client(client):
                found.update(describe(part).encode())
                flat = part.cpu().contiguous().flatten()
                found.update(flat.view(torch.uint8).numpy().data)  # numpy has no bfloat16
        return found.hexdigest()

    def of_client(self, client: int) -> Pair:
        """The examples of one client: views."""
        start = int(self.starts[client])
        rows = slice(start, start + int(self.counts[client]))
        x = self.x[rows]
        return x.movedim(-1, 1) if self.channels_last else x, self.y[rows]

    def replaced(self, others: Mapping[int, Pair]) -> Examples:
        """Other examples for some clients; everybody else's stay where they are."""
        if not others:
            return self
        like = self.of_client(0)
        for client, pair in others.items():
            _check_pair(pair, like, f"poisoned examples of client {client}")
        instead = Examples.of(others.values(), device=self.x.device)
        instead = instead.with_channels_last() if self.channels_last else instead
        clients = torch.tensor(list(others), device="cpu")
        place = torch.full((self.n,), -1, device="cpu").index_copy(0, clients, torch.arange(len(others), device="cpu"))
        return replace(self, counts=self.counts.index_copy(0, clients, instead.counts), instead=instead, place=place)

    def take(self, clients: Tensor, positions: Tensor) -> Pair:
        """Examples of c clients: x ``(c, b, ...)`` and y ``(c, b, ...)`` at ``positions (c, b)`` of each one's own."""
        x, y = self._gather(clients, positions)
        return x.movedim(-1, 2) if self.channels_last else x, y

    def _gather(self, clients: Tensor, positions: Tensor) -> Pair:
        rows = self.starts[clients, None] + positions
        if self.instead is None or self.place is None:
            return self._rows(rows)
        place = self.place[clients]
        elsewhere = (place >= 0).nonzero().flatten()
        if not len(elsewhere):
            return self._rows(rows)
        x, y = self._rows(rows.index_fill(0, elsewhere, 0))
        others = self.instead._gather(place[elsewhere], positions[elsewhere])
        chosen = elsewhere.to(x.device)
        return x.index_copy_(0, chosen, others[0]), y.index_copy_(0, chosen, others[1])

    def _rows(self, rows: Tensor) -> Pair:
        index = rows.flatten().to(self.x.device)
        x, y = (stored.index_select(0, index) for stored in (self.x, self.y))
        return x.unflatten(0, rows.shape), y.unflatten(0, rows.shape)


def draw_positions(counts: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(n, size) different positions below each of n counts, all subsets being equally likely.

    No more than the largest count are drawn. A count of ``size`` or less gets 0, 1, 2, ..., and its first ``count``
    are positions. What is drawn for one client
    depends on the generator, on the client's place and on its count, but not on the counts of others.

    R. Floyd's algorithm (Bentley and Floyd, *A sample of brilliance*, CACM 1987), for all clients at once.

    >>> from equipoise.training._examples import draw_positions
    >>> drawn = draw_positions(torch.tensor([5, 100, 2]), 3, torch.Generator().manual_seed(0))
    >>> drawn.shape, drawn[2]
    (torch.Size([3, 3]), tensor([0, 1, 2]))
    """
    if size >= counts.max():
        return torch.arange(int(counts.max()), device="cpu").expand(len(counts), -1)
    uniform = torch.rand(size, len(counts), generator=generator, dtype=torch.float64, device="cpu").numpy()
    available = np.maximum(counts.numpy(), size)
    drawn = np.empty((size, len(counts)), dtype=np.int64)
    for i in range(size):
        last = available - size + i
        pick = (uniform[i] * (last + 1)).astype(np.int64)
        taken = (drawn[:i] == pick).any(0)
        drawn[i] = np.where(taken, last, pick)
    return torch.from_numpy(np.ascontiguousarray(drawn.T))


def _check_pair(pair: object, like: Sequence[Tensor], name: str) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        found = f"({', '.join(map(describe, pair))})" if isinstance(pair, tuple | list) else describe(pair)
        raise ValueError(f"{name} must be a pair of tensors (x, y), found {found}")
    for part, first, letter in zip(pair, like, "xy", strict=True):
        if part.dim() == 0 or part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise ValueError(
                f"{name} must look like those of client 0, {letter} {describe(first)}, found {describe(part)}"
            )
    if len(pair[0]) != len(pair[1]):
        raise ValueError(f"{name} must have one y for every x, found {len(pair[0])} x and {len(pair[1])} y")
    if not len(pair[0]):
        raise ValueError(f"{name} must hold at least one example, found none")
