"""What models cost on batches, for one client or for several at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Stacked
from equipoise.training._examples import Batch


@dataclass(frozen=True, eq=False)
class Judgement:
    """Stacked ``models (c, d)`` are read and ``losses (c,)`` are written, both in the rows of a batch only."""

    architecture: Stacked
    loss: BatchLoss
    models: Tensor
    losses: Tensor

    @torch.no_grad()
    def together(self, batch: Batch) -> None:
        """Judge all models of a batch in the same operations."""
        parts = self.architecture.parts(self.models.index_select(0, batch.rows))
        self.losses[batch.rows] = self.loss.of_each(self.architecture.apply(parts, batch.x), batch.y)

    @torch.no_grad()
    def alone(self, batch: Batch, seed: int | None = None) -> None:
        """Judge the one model of a batch; with a seed for torch's generators if random numbers are drawn."""
        if seed is not None:
            torch.manual_seed(seed)
        row = int(batch.rows)
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.models[row])
            self.losses[row] = self.loss(replica.module(batch.x[0]), batch.y[0])

    @torch.no_grad()
    def one_by_many(self, batch: Batch) -> None:
        """Judge one model, the same in all rows of a batch, by the examples of each."""
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.models[int(batch.rows[0])])
            outputs = replica.module(batch.x.flatten(0, 1)).unflatten(0, batch.x.shape[:2])
            for row, output, y in zip(batch.rows.tolist(), outputs, batch.y, strict=True):
                self.losses[row] = self.loss(output, y)
