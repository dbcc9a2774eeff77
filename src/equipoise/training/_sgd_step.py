"""One step of stochastic gradient descent for many clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.training._batching import Batches
from equipoise.training._descent import Descent
from equipoise.training._ensemble import Backend, BatchLoss, Stacked, run_each
from equipoise.training._examples import Batch
from equipoise.training._layer_chains import LayerChain


@dataclass(frozen=True, eq=False)
class SGDStep:
    """Stochastic gradient descent with classical momentum, as in :class:`torch.optim.SGD`.

    Reads ``before`` and writes ``after``, which may be the same: stacked models ``(n, d)`` and,
    with momentum, velocities ``(n, d)``.
    """

    architecture: Stacked
    chain: LayerChain | None
    memory: RecycledMemory
    loss: BatchLoss
    lr: float
    momentum: float
    before: Sequence[Tensor]
    after: Sequence[Tensor]

    def run(
        self, batches: Batches, positions: Tensor, backend: Backend, seeds: list[int] | None
    ) -> None:
        """Train the clients of the batches; with seeds, if the model or the loss is random."""

        def train(i: int) -> None:
            batch = batches.gather(i, positions, self.memory)
            if backend == "batched":
                self.train_together(batch)
            else:
                self._train_alone(batch, None if seeds is None else seeds[batch.row])

        with self.architecture.forked_generators(enabled=seeds is not None):
            # On other devices one thread suffices: operations return before the device completes
            # them.
            threads = backend != "loop" and self.architecture.device.type == "cpu"
            run_each(train, len(batches), threads=threads)

    @torch.no_grad()
    def train_together(self, batch: Batch) -> None:
        """Train all clients of a batch in the same operations."""
        before = [self._rows(tensor, batch.rows) for tensor in self.before]
        after = before
        if isinstance(batch.rows, slice):
            after = [tensor[batch.rows] for tensor in self.after]
        if self.chain is not None:
            self.chain.descend(self._descent(before, after), batch.x, batch.y, self.loss)
        else:
            # Detached views are leaves, so they can require gradients.
            parts = [part.detach() for part in self.architecture.parts(before[0])]
            trained = [parts[i] for i in self.architecture.trained]
            self._update(before, after, self._gradients(parts, trained, batch))
        if not isinstance(batch.rows, slice):
            for tensor, rows in zip(self.after, after, strict=True):
                tensor.index_copy_(0, batch.rows, rows)

    def _rows(self, tensor: Tensor, rows: Tensor | slice) -> Tensor:
        """A view of some rows if they are a slice, otherwise a copy."""
        if isinstance(rows, slice):
            return tensor[rows]
        block = self.memory.take(tensor, len(rows), tensor.shape[1])
        return torch.index_select(tensor, 0, rows, out=block)

    def _descent(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Descent:
        return Descent(self.architecture, before, after, lr=self.lr, momentum=self.momentum)

    @torch.enable_grad()
    def _gradients(
        self, parts: list[Tensor], trained: list[Tensor], batch: Batch
    ) -> Sequence[Tensor | None]:
        for part in trained:
            part.requires_grad_()
        losses = self.loss.of_each(self.architecture.apply(parts, batch.x), batch.y)
        # Each loss depends on one client only: the gradient of the sum holds all gradients.
        return torch.autograd.grad(losses.sum(), trained, allow_unused=True)

    @torch.enable_grad()
    def _train_alone(self, batch: Batch, seed: int | None) -> None:
        """Train the one client of a batch."""
        # Layers such as dropout draw from torch's global generator; `run` restores it afterwards.
        if seed is not None:
            torch.manual_seed(seed)
        row = batch.row
        after = [tensor[row] for tensor in self.after]
        for velocities, velocity in zip(self.before[1:], after[1:], strict=True):
            velocity.copy_(velocities[row])
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.before[0][row])
            loss = self.loss(replica.module(batch.x[0]), batch.y[0])
            gradients = torch.autograd.grad(loss, replica.trained, allow_unused=True)
            # The module may have changed its buffers.
            after[0].copy_(replica.vector)
        self._update(after, after, gradients)

    @torch.no_grad()
    def _update(
        self,
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
    ) -> None:
        descent = self._descent(before, after)
        found = dict(zip(self.architecture.trained, gradients, strict=True))
        for place in range(len(descent.parameters)):
            gradient = found.get(place)
            # A parameter that the loss does not depend on stays, as in torch.optim.
            if gradient is None:
                descent.keep(place)
            else:
                descent.step(place, gradient)
