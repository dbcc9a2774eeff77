"""Clients in blocks: those of a block are worked on in one operation, and blocks by several threads."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from equipoise.training._ensemble._stacked import Way
from equipoise.training._ensemble._threads import run_each
from equipoise.training._examples import Batch, Examples

AT_ONCE = 1 << 20  # elements of inputs and parameters that are worked on in one operation
MOST = 256  # clients that are trained together, so that several threads have something to do


def for_each_batch(
    work: Callable[[Batch], None],
    examples: Examples,
    positions: Tensor,
    clients: Tensor,
    *,
    way: Way,
    d: int,
    most: int = 1,
) -> None:
    """Hand to work the batches of clients, who may be named repeatedly; rows are places in ``clients``.

    Client i has the examples at ``positions[i]``, or all it has if these are fewer. Batches in one block are equally
    long; unless trained together, blocks have ``most`` clients. ``d`` is the number of parameters of a model.
    """
    lengths, features = examples.counts[clients].clamp_max(positions.shape[1]), examples.x[0].numel()

    def fitting(length: int) -> int:
        return max(1, AT_ONCE // max(length * features + d, AT_ONCE // MOST)) if way == "batched" else most

    blocks = _equally_long(lengths, fitting)

    def run(i: int) -> None:
        rows, length = blocks[i]
        x, y = examples.take(clients[rows], positions[clients[rows], :length])
        work(Batch(rows.to(x.device), x, y))

    run_each(run, len(blocks), threads=way != "loop" and examples.x.device.type == "cpu")


def _equally_long(lengths: Tensor, fitting: Callable[[int], int]) -> list[tuple[Tensor, int]]:
    """Blocks of clients with batches of one length, as many as fit."""
    return [
        (block, length)
        for length in lengths.unique().tolist()
        for block in (lengths == length).nonzero().flatten().split(fitting(length))
    ]
