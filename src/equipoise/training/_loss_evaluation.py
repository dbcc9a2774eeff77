"""Losses of many models on the mini-batches of clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.training._batching import Batches
from equipoise.training._ensemble import Backend, BatchLoss, Stacked, run_each
from equipoise.training._examples import Batch
from equipoise.training._layer_chains import LayerChain


@dataclass(frozen=True, eq=False)
class LossEvaluation:
    """Reads stacked ``models (c, d)`` and writes ``losses (c,)``."""

    architecture: Stacked
    chain: LayerChain | None
    loss: BatchLoss
    models: Tensor
    losses: Tensor

    def run(
        self,
        batches: Batches,
        positions: Tensor,
        memory: RecycledMemory,
        backend: Backend,
        *,
        same: bool,
        seeds: list[int] | None,
    ) -> None:
        """Evaluate all models, one per row.

        ``same`` says that all rows hold the same model. ``seeds``, one per row, are given if the
        model or the loss is random.
        """

        def evaluate(i: int) -> None:
            batch = batches.gather(i, positions, memory)
            if backend == "batched":
                self._evaluate_together(batch)
            elif same:
                self._evaluate_one_model(batch)
            else:
                self._evaluate_alone(batch, None if seeds is None else seeds[batch.row])

        with self.architecture.forked_generators(enabled=seeds is not None):
            # On other devices one thread suffices: operations return before the device completes
            # them.
            threads = backend != "loop" and self.models.device.type == "cpu"
            run_each(evaluate, len(batches), threads=threads)

    @torch.no_grad()
    def _evaluate_together(self, batch: Batch) -> None:
        """Evaluate all models of a batch in the same operations."""
        parts = self.architecture.parts(self.models[batch.rows])
        if self.chain is None:
            outputs = self.architecture.apply(parts, batch.x)
        else:
            outputs = self.chain.outputs(parts, batch.x)
        self.losses[batch.rows] = self.loss.of_each(outputs, batch.y)

    @torch.no_grad()
    def _evaluate_alone(self, batch: Batch, seed: int | None) -> None:
        """Evaluate the one model of a batch."""
        # All models of a client get the same seed, so they are compared on equal random numbers.
        if seed is not None:
            torch.manual_seed(seed)
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.models[batch.row])
            self.losses[batch.row] = self.loss(replica.module(batch.x[0]), batch.y[0])

    @torch.no_grad()
    def _evaluate_one_model(self, batch: Batch) -> None:
        """Evaluate one model on the examples of several clients, in one forward pass."""
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.models[batch.row])
            # (c, b, ...) becomes (c * b, ...) and back: correct only if outputs do not depend on
            # the batch, which the caller has checked.
            outputs = replica.module(batch.x.flatten(0, 1)).unflatten(0, batch.x.shape[:2])
            # One loss per client: a mean over all examples would mix the clients.
            pairs = zip(outputs, batch.y, strict=True)
            self.losses[batch.rows] = torch.stack([self.loss(output, y) for output, y in pairs])
