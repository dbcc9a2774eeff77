"""Mini-batches of many clients, grouped into blocks."""

from __future__ import annotations

from torch import Tensor

from equipoise.training._ensemble._stacked import Backend
from equipoise.training._examples import Batch, Examples

# Elements of inputs and parameters of one block: 4 MiB of float32, so that a block and its
# activations stay in the caches of a core.
BLOCK_ELEMENTS = 1 << 20
BLOCK_CLIENTS = 256  # the most clients in a block: of 1,000 small ones, several threads get some


class Batches:
    """The mini-batches of some clients, in blocks that are processed in one operation.

    A block holds clients with batches of equal length. Its batch is gathered on access, by the
    thread that processes it: all batches at once could take more memory than the models.

    Args:
        examples: the examples of all clients.
        positions: (n, b) the examples of each client's batch. A client with fewer than b examples
            uses all it has.
        clients: (c,) the client of each row, with repetitions.
        backend: how blocks are processed; ``"batched"`` makes them as large as useful.
        d: number of parameters of a model.
        most: clients per block for the other backends.
    """

    def __init__(
        self,
        examples: Examples,
        positions: Tensor,
        clients: Tensor,
        *,
        backend: Backend,
        d: int,
        most: int = 1,
    ) -> None:
        self._examples = examples
        self._positions = positions
        self._clients = clients
        self._blocks: list[tuple[Tensor, int]] = []
        features = examples.x[0].numel()
        lengths = examples.counts[clients].clamp_max(positions.shape[1])
        # A stacked tensor has no ragged dimension, so each length gets blocks of its own.
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().flatten()
            size = most
            if backend == "batched":
                # The second term limits a block to BLOCK_CLIENTS, even if the clients are tiny.
                elements = max(length * features + d, BLOCK_ELEMENTS // BLOCK_CLIENTS)
                size = max(1, BLOCK_ELEMENTS // elements)
            self._blocks += [(block, length) for block in rows.split(size)]

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, i: int) -> Batch:
        rows, length = self._blocks[i]
        clients = self._clients[rows]
        x, y = self._examples.take(clients, self._positions[clients, :length])
        return Batch(rows.to(x.device), x, y)
