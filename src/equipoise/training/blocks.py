"""Clients in blocks: those of a block are worked on in one operation, and blocks by several threads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.kernels.blocks import chunks
from equipoise.training.examples import Batch, Examples
from equipoise.training.parallel import run_each
from equipoise.training.stacked import Way

AT_ONCE = 1 << 20  # elements of inputs and parameters that are worked on in one operation
MOST = 256  # clients that are trained together, so that several threads have something to do


def for_each_batch(
    work: Callable[[Batch], None], examples: Examples, positions: Tensor, clients: Tensor, *, way: Way, d: int
) -> None:
    """Hand to work the batches of clients, who may be named repeatedly; rows are places in ``clients``.

    Client i has the examples at ``positions[i]``, or all it has if these are fewer. Batches in one block are equally
    long; unless trained together, every client is a block of its own. ``d`` is the number of parameters of a model.
    """
    lengths = examples.counts[clients].clamp_max(positions.shape[1])
    blocks = _equally_long(lengths, examples.x[0].numel(), d) if way == "batched" else _one_by_one(lengths)

    def run(i: int) -> None:
        rows, length = blocks[i]
        x, y = examples.take(clients[rows], positions[clients[rows], :length])
        work(Batch(rows.to(x.device), x, y))

    alone = way == "loop" or (way == "threads" and len(blocks) == 1)
    run_each(run, len(blocks), threads=not alone and examples.x.device.type == "cpu")


def _one_by_one(lengths: Tensor) -> list[tuple[Tensor, int]]:
    return list(zip(torch.arange(len(lengths)).split(1), lengths.tolist(), strict=True))


def _equally_long(lengths: Tensor, features: int, d: int) -> list[tuple[Tensor, int]]:
    """Blocks of clients with batches of one length, which fit into memory side by side."""
    return [
        (rows[block], length)
        for length in lengths.unique().tolist()
        for rows in [(lengths == length).nonzero().flatten()]
        for block in chunks(len(rows), max(length * features + d, AT_ONCE // MOST), AT_ONCE)
    ]
