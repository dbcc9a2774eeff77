"""Mini-batches of many clients, grouped into blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.training._ensemble import Backend
from equipoise.training._examples import Batch, Examples

# Elements of inputs and parameters of one block: 4 MiB of float32, so that a block and its
# activations stay in the caches of a core.
BLOCK_ELEMENTS = 1 << 20
BLOCK_CLIENTS = 256  # the most clients in a block: of 1,000 small ones, several threads get some


class Batches:
    """The mini-batches of some clients, in blocks that are processed in one operation.

    A block holds clients with batches of equal length. Blocks depend on the numbers of examples
    only, so one object serves all rounds.

    Args:
        examples: the examples of all clients.
        clients: (c,) the clients, with repetitions.
        rows: (c,) the rows of stacked models that belong to them; by default 0 to c - 1.
        batch_size: examples in a batch. A client with fewer examples uses all it has.
        backend: how blocks are processed; ``"batched"`` makes them as large as useful.
        d: number of parameters of a model.
        most: clients per block for the other backends.
    """

    def __init__(
        self,
        examples: Examples,
        clients: Tensor,
        rows: Tensor | None = None,
        *,
        batch_size: int,
        backend: Backend,
        d: int,
        most: int = 1,
    ) -> None:
        self._examples = examples
        self.blocks: list[tuple[Tensor, Tensor | slice, int]] = []
        rows = torch.arange(len(clients), device="cpu") if rows is None else rows
        features = examples.x[0].numel()
        lengths = examples.counts[clients].clamp_max(batch_size)
        # A stacked tensor has no ragged dimension, so each length gets blocks of its own.
        for length in lengths.unique().tolist():
            places = (lengths == length).nonzero().flatten()
            size = most
            if backend == "batched":
                # The second term limits a block to BLOCK_CLIENTS, even if the clients are tiny.
                elements = max(length * features + d, BLOCK_ELEMENTS // BLOCK_CLIENTS)
                size = max(1, BLOCK_ELEMENTS // elements)
            for block in places.split(size):
                self.blocks.append((clients[block], _compact(rows[block], examples.x), length))

    def __len__(self) -> int:
        return len(self.blocks)

    def gather(self, i: int, positions: Tensor, memory: RecycledMemory) -> Batch:
        """The batch of block i, of the examples at ``positions (n, b)`` of all n clients.

        Called by the thread that processes the block: all batches at once could take more memory
        than the models.
        """
        clients, rows, length = self.blocks[i]
        return Batch(rows, *self._examples.take(clients, positions[clients, :length], memory))


def _compact(rows: Tensor, like: Tensor) -> Tensor | slice:
    """Rows as a slice, whose tensors are views, or as an index on a device."""
    ids = rows.tolist()
    span = slice(ids[0], ids[0] + len(ids))
    return span if ids == list(range(span.start, span.stop)) else rows.to(like.device)
