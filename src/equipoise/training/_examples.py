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

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise._utils.validation import describe

Pair = tuple[Tensor, Tensor]


class Batch(NamedTuple):
    """b examples for each of c rows of stacked models."""

    rows: Tensor | slice  # a slice if they follow each other: then models[rows] is a view
    x: Tensor  # (c, b, ...)
    y: Tensor  # (c, b, ...)

    @property
    def row(self) -> int:
        """The first row, which is the only one in a batch of one client."""
        return self.rows.start if isinstance(self.rows, slice) else int(self.rows[0])


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of n clients, client by client in one tensor: batches are one ``index_select``.

    Examples that follow each other in the caller's memory are not copied, and never written.

    Client i has ``counts[i]`` examples from row ``starts[i]`` on, unless ``replacements`` holds
    other ones for it, as its client ``replaced_by[i]``; -1 means none.

    >>> from equipoise.training._examples import Examples
    >>> first = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    >>> second = torch.ones(1, 2), torch.tensor([9])
    >>> examples = Examples.of([first, second])
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
    replacements: Examples | None = None
    replaced_by: Tensor | None = None

    @classmethod
    def of(cls, clients: Iterable[Pair], *, device: torch.device | str = "cpu") -> Examples:
        """The examples (x, y) of every client."""
        if not isinstance(clients, Iterable):
            expected = "a pair of tensors (x, y) for every client"
            found = f"{describe(clients)}; Dataset.split makes such pairs"
            raise ValueError(f"clients must be {expected}, found {found}")
        pairs = list(clients)
        if not pairs:
            expected = "the examples (x, y) of at least one client"
            raise ValueError(f"clients must hold {expected}, found none")
        for i, pair in enumerate(pairs):
            _check_client(pair, pairs[0], f"clients[{i}]")
        # Counts and rows stay on the CPU, where batches are drawn; only examples move.
        counts = torch.tensor([len(y) for _, y in pairs], device="cpu")
        x = _joined([pair[0].detach() for pair in pairs]).to(device)
        y = _joined([pair[1].detach() for pair in pairs]).to(device)
        return cls(x, y, counts.cumsum(0) - counts, counts)

    def with_channels_last(self) -> Examples:
        """The same images, stored and taken with their channels last in memory."""
        return replace(self, x=self.x.movedim(1, -1).contiguous(), channels_last=True)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.counts)

    @cached_property
    def digest(self) -> str:
        """A digest of all clients' examples, independent of their order in memory."""
        digest = hashlib.blake2b(digest_size=16)
        for client in range(self.n):
            self._add_to(digest, client)
        return digest.hexdigest()

    @cached_property
    def digests(self) -> Tensor:
        """(n, 16) uint8, a digest of the examples of each client."""
        found = []
        for client in range(self.n):
            digest = hashlib.blake2b(digest_size=16)
            self._add_to(digest, client)
            found.append(list(digest.digest()))
        return torch.tensor(found, dtype=torch.uint8, device="cpu")

    def _add_to(self, digest: hashlib.blake2b, client: int) -> None:
        for part in self.of_client(client):
            # Shape and dtype too: equal bytes may be other examples.
            digest.update(describe(part).encode())
            flat = part.cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data)  # numpy has no bfloat16

    def of_client(self, client: int) -> Pair:
        """The examples of one client: views."""
        start = int(self.starts[client])
        rows = slice(start, start + int(self.counts[client]))
        x = self.x[rows]
        return x.movedim(-1, 1) if self.channels_last else x, self.y[rows]

    def of_clients(self, clients: Tensor) -> Examples:
        """A copy of the examples of some clients, which become clients 0, 1, 2, ..."""
        pairs = [self.of_client(client) for client in clients.tolist()]
        # Copied: a view would keep the examples of all clients in memory.
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        counts = self.counts[clients]
        part = Examples(x, y, counts.cumsum(0) - counts, counts)
        return part.with_channels_last() if self.channels_last else part

    def replaced(self, others: Mapping[int, Pair]) -> Examples:
        """The same with other examples for some clients; no example is copied."""
        if not others:
            return self
        like = self.of_client(0)
        for client, pair in others.items():
            _check_client(pair, like, f"poisoned examples of client {client}")
        replacements = Examples.of(others.values(), device=self.x.device)
        if self.channels_last:
            replacements = replacements.with_channels_last()
        clients = torch.tensor(list(others), device="cpu")
        replaced_by = torch.full((self.n,), -1, device="cpu")
        replaced_by[clients] = torch.arange(len(others), device="cpu")
        return replace(
            self,
            counts=self.counts.index_copy(0, clients, replacements.counts),
            replacements=replacements,
            replaced_by=replaced_by,
        )

    def take(
        self, clients: Tensor, positions: Tensor, memory: RecycledMemory | None = None
    ) -> Pair:
        """The examples of c clients at ``positions (c, b)``: x and y, each ``(c, b, ...)``."""
        x, y = self._gather(clients, positions, memory or RecycledMemory())
        return x.movedim(-1, 2) if self.channels_last else x, y

    def _gather(self, clients: Tensor, positions: Tensor, memory: RecycledMemory) -> Pair:
        rows = self.starts[clients, None] + positions
        if self.replacements is None or self.replaced_by is None:
            return self._rows(rows, memory)
        replaced_by = self.replaced_by[clients]
        replaced = (replaced_by >= 0).nonzero().flatten()
        if not len(replaced):
            return self._rows(rows, memory)
        # Replaced clients may have more examples than before: their rows could be out of range.
        x, y = self._rows(rows.index_fill(0, replaced, 0), memory)
        others = self.replacements._gather(replaced_by[replaced], positions[replaced], memory)
        # `_rows` has returned new tensors, so they can be overwritten.
        chosen = replaced.to(x.device)
        return x.index_copy_(0, chosen, others[0]), y.index_copy_(0, chosen, others[1])

    def _rows(self, rows: Tensor, memory: RecycledMemory) -> Pair:
        index = rows.flatten().to(self.x.device)
        x = memory.take(self.x, len(index), *self.x.shape[1:])
        x = torch.index_select(self.x, 0, index, out=x).unflatten(0, rows.shape)
        y = self.y.index_select(0, index).unflatten(0, rows.shape)
        return x, y


def draw_positions(
    counts: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    rows: Tensor | None = None,
    n: int | None = None,
) -> Tensor:
    """(n, size) distinct positions below each of n counts; all subsets are equally likely.

    With ``rows``, the counts are those of some of ``n`` clients, which get the same positions as
    among all.

    At most as many as the largest count are drawn. A client with ``size`` examples or fewer gets
    0, 1, 2, ..., of which the first ``count`` are positions. The positions of a client depend on
    the generator, its row and its count, but not on the counts of others.

    R. Floyd's algorithm (Bentley and Floyd, *A sample of brilliance*, CACM 1987), for all clients
    at once.

    >>> from equipoise.training._examples import draw_positions
    >>> drawn = draw_positions(torch.tensor([5, 100, 2]), 3, torch.Generator().manual_seed(0))
    >>> drawn.shape, drawn[2]
    (torch.Size([3, 3]), tensor([0, 1, 2]))
    """
    if size >= counts.max():
        return torch.arange(int(counts.max()), device="cpu").expand(len(counts), -1)
    wanted = slice(None) if rows is None else rows
    # float64 has 53 bits: positions are uniform even among billions of examples. Row by row, so
    # that no more memory is needed than for the clients that are asked for.
    draws = [
        torch.rand(n or len(counts), generator=generator, dtype=torch.float64, device="cpu")[wanted]
        for _ in range(size)
    ]
    random = torch.stack(draws)
    # Step i picks among the positions up to `last`. If the pick is taken, it uses `last`, which no
    # earlier step could pick. With `size` examples or fewer, `last` is i: the picks are 0, 1, 2,
    # ...
    first = np.maximum(counts.numpy() - size, 0)
    last = first + np.arange(size)[:, None]
    picks = (random.numpy() * (last + 1)).astype(np.int64)
    is_taken = np.empty(len(counts), dtype=bool)
    for i, pick in enumerate(picks):
        np.any(picks[:i] == pick, axis=0, out=is_taken)
        np.copyto(pick, last[i], where=is_taken)
    return torch.from_numpy(picks.T.copy())


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """All rows of some tensors: a view if they follow each other in one memory, or a copy."""
    end = parts[0].data_ptr()
    storage = parts[0].untyped_storage().data_ptr()
    for part in parts:
        # Two allocations may be neighbors by chance: then no tensor can be a view of both.
        is_next = part.data_ptr() == end and part.untyped_storage().data_ptr() == storage
        if type(part) is not Tensor or not part.is_contiguous() or not is_next:
            return torch.cat(list(parts))
        end += part.nbytes
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return parts[0].as_strided(shape, torch.empty(shape, device="meta").stride())


def _check_client(pair: object, like: Sequence[Tensor], name: str) -> None:
    x, y = _as_pair(pair, name)
    # All clients share one tensor, so their examples must agree in all but their number.
    for part, first, letter in zip((x, y), like, "xy", strict=True):
        if part.dim() == 0 or part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            expected = f"like those of client 0, {letter} {describe(first)}"
            raise ValueError(f"{name} must look {expected}, found {describe(part)}")
    if len(x) != len(y):
        raise ValueError(f"{name} must have one y for every x, found {len(x)} x and {len(y)} y")
    if not len(x):
        raise ValueError(f"{name} must hold at least one example, found none")


def _as_pair(pair: object, name: str) -> Pair:
    if not isinstance(pair, tuple | list):
        raise ValueError(f"{name} must be a pair of tensors (x, y), found {describe(pair)}")
    if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        found = f"({', '.join(map(describe, pair))})"
        raise ValueError(f"{name} must be a pair of tensors (x, y), found {found}")
    return pair[0], pair[1]
