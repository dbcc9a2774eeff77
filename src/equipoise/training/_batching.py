"""Mini-batches of many clients, grouped into blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.training._examples import Batch, Examples

# Elements of inputs and parameters of one block: 4 MiB of float32, so that a block and its
# activations stay in the caches of a core.
BLOCK_ELEMENTS = 1 << 20


class Batches:
    """The mini-batches of some clients, in blocks that are processed in one operation.

    A block holds clients with batches of equal length. Blocks depend on the numbers of examples
    only, so one object serves all rounds.

    Args:
        examples: the examples of all clients.
        clients: (c,) the clients, with repetitions.
        rows: (c,) the rows of stacked models that belong to them; by default 0 to c - 1.
        batch_size: examples in a batch. A client with fewer examples uses all it has.
        d: number of parameters of a model.
        most: clients in a block, unless they have too many elements.
    """

    def __init__(
        self,
        examples: Examples,
        clients: Tensor,
        rows: Tensor | None = None,
        *,
        batch_size: int,
        d: int,
        most: int,
    ) -> None:
        self._examples = examples
        self.blocks: list[tuple[Tensor, Tensor | slice, int]] = []
        rows = torch.arange(len(clients), device="cpu") if rows is None else rows
        features = examples.x[0].numel()
        lengths = examples.counts[clients].clamp_max(batch_size)
        # A stacked tensor has no ragged dimension, so each length gets blocks of its own.
        for length in lengths.unique().tolist():
            places = (lengths == length).nonzero().flatten()
            size = min(most, max(1, BLOCK_ELEMENTS // (length * features + d)))
            for block in places.split(size):
                self.blocks.append((clients[block], as_slice(rows[block], examples.x), length))

    def __len__(self) -> int:
        return len(self.blocks)

    def gather(self, i: int, positions: Tensor, memory: RecycledMemory) -> Batch:
        """The batch of block i, of the examples at ``positions (n, b)`` of all n clients.

        Called by the thread that processes the block: all batches at once could take more memory
        than the models.
        """
        clients, rows, length = self.blocks[i]
        return Batch(rows, *self._examples.take(clients, positions[clients, :length], memory))


def as_slice(rows: Tensor, like: Tensor) -> Tensor | slice:
    """Rows as a slice, with which tensors are views, or else on the device of the tensor."""
    ids = rows.tolist()
    span = slice(ids[0], ids[0] + len(ids)) if ids else slice(0, 0)
    return span if ids == list(range(span.start, span.stop)) else rows.to(like.device)
