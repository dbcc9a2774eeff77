"""Training of some of the clients, as one of several processes does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.training._batching import Batches
from equipoise.training._ensemble import run_each
from equipoise.training._examples import Batch, Examples
from equipoise.training._sgd_step import SGDStep

# Products of matrices depend on the addresses of their rows, modulo 16 bytes, in the last digits.
ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class PartOfClients:
    """Some of ``n`` clients: row i of their models is of client ``ids[i]``, ascending."""

    ids: Tensor  # (b,)
    counts: Tensor  # (n,) numbers of examples of all clients, before poisoning
    gather: Callable[[Tensor], Tensor]  # turns numbers of these clients (b,) into those of all

    @property
    def n(self) -> int:
        """Number of all clients."""
        return len(self.counts)

    @cached_property
    def rows(self) -> Tensor:
        """(n,) the row of each client, -1 for the clients of other processes."""
        rows = torch.full((self.n,), -1, device="cpu")
        rows[self.ids] = torch.arange(len(self.ids), device="cpu")
        return rows


class PartialBlocks:
    """Trains clients in the blocks that a training of all clients has.

    The last digits of a product of matrices depend on the shapes of all, on the place of a client
    in the block and on alignment. So that a client gets the same bits whoever trains it, a block
    that several processes share is computed by each of them, with zeros for the models of others.

    Args:
        examples: the examples of the clients of this part, by row.
        part: the clients of this process.
        counts: (n,) the numbers of examples of all clients in this round.
        trained: (c,) the ids of all clients that are trained, in all processes.
        batch_size: examples in a batch.
        d: number of parameters of a model.
        most: clients in a block, unless they have too many elements.
    """

    def __init__(
        self,
        examples: Examples,
        part: PartOfClients,
        counts: Tensor,
        trained: Tensor,
        *,
        batch_size: int,
        d: int,
        most: int,
    ) -> None:
        self._examples = examples
        self._rows = part.rows
        whole = Batches(
            replace(examples, counts=counts, replacements=None, replaced_by=None),
            trained,
            trained,
            batch_size=batch_size,
            d=d,
            most=most,
        )
        self._blocks = [block for block in whole.blocks if bool((self._rows[block[0]] >= 0).any())]

    def run(self, step: SGDStep, positions: Tensor) -> None:
        """One step of training for the clients of this part."""
        run_each(lambda i: self._train(step, positions, i), len(self._blocks))

    def _train(self, step: SGDStep, positions: Tensor, i: int) -> None:
        clients, ids, length = self._blocks[i]
        rows = self._rows[clients]
        places = (rows >= 0).nonzero().flatten()
        mine = rows[places]
        # Models of others get the examples of a client of this process: any will do.
        examples = torch.where(rows >= 0, rows, mine[0])
        x, y = self._examples.take(examples, positions[examples, :length], step.memory)
        first = ids.start if isinstance(ids, slice) else 0
        blocks = [self._block(step.memory, x, len(rows), first, places, mine) for x in step.before]
        inner = replace(step, before=blocks, after=blocks)
        inner.train_together(Batch(slice(0, len(rows)), x, y))
        for after, block in zip(step.after, blocks, strict=True):
            after.index_copy_(0, mine.to(after.device), block[places.to(after.device)])

    def _block(
        self,
        memory: RecycledMemory,
        models: Tensor,
        size: int,
        first: int,
        places: Tensor,
        mine: Tensor,
    ) -> Tensor:
        """(size, d) models of a block, aligned as the rows from ``first`` on of all models."""
        d = models.shape[1]
        per_unit = ALIGNMENT // models.element_size()
        start = first * d % per_unit
        flat = memory.take(models, size * d + per_unit)
        block = flat[start : start + size * d].view(size, d).zero_()
        return block.index_copy_(
            0, places.to(models.device), models.index_select(0, mine.to(models.device))
        )
