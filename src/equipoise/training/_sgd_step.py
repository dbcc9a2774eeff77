"""One step of stochastic gradient descent for many clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.training._batching import Batches
from equipoise.training._ensemble import Backend, BatchLoss, Stacked, run_each
from equipoise.training._examples import Batch
from equipoise.training._linear_networks import LinearNetwork


@dataclass(frozen=True, eq=False)
class SGDStep:
    """Stochastic gradient descent with classical momentum, as in :class:`torch.optim.SGD`.

    Reads ``before`` and writes ``after``, which may be the same: stacked models ``(n, d)`` and,
    with momentum, velocities ``(n, d)``.
    """

    architecture: Stacked
    network: LinearNetwork | None
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

    def train_together(self, batch: Batch) -> None:
        """Train all clients of a batch in the same operations."""
        pairs = zip(self.before, self.after, strict=True)
        blocks = [self._begin(before, after, batch.rows) for before, after in pairs]
        models = blocks[0]
        velocity = blocks[1] if self.momentum else None
        # Detached views are leaves, so they can require gradients. Updating them updates `models`.
        parts = [part.detach() for part in self.architecture.parts(models)]
        if self.network is not None:
            velocities = None if velocity is None else self.architecture.parts(velocity)
            self.network.descend(
                parts, batch.x, batch.y, self.loss, self.lr, velocities, self.momentum
            )
        else:
            trained = [parts[i] for i in self.architecture.trained]
            self._update(trained, self._gradients(parts, trained, batch), velocity)
        if not isinstance(batch.rows, slice):
            for after, block in zip(self.after, blocks, strict=True):
                after.index_copy_(0, batch.rows, block)

    def _begin(self, before: Tensor, after: Tensor, rows: Tensor | slice) -> Tensor:
        """Rows of ``before``, to be updated in place: a view of ``after`` if they are a slice."""
        if isinstance(rows, slice):
            return after[rows] if before is after else after[rows].copy_(before[rows])
        block = self.memory.take(before, len(rows), before.shape[1])
        return torch.index_select(before, 0, rows, out=block)

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
        velocity = self.after[1][row].copy_(self.before[1][row]) if self.momentum else None
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.before[0][row])
            loss = self.loss(replica.module(batch.x[0]), batch.y[0])
            gradients = torch.autograd.grad(loss, replica.trained, allow_unused=True)
            self._update(replica.trained, gradients, velocity)
            self.after[0][row] = replica.vector

    @torch.no_grad()
    def _update(
        self,
        trained: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        velocity: Tensor | None,
    ) -> None:
        velocities = None if velocity is None else self.architecture.parts(velocity)
        for i, parameter, gradient in zip(
            self.architecture.trained, trained, gradients, strict=True
        ):
            # The loss does not depend on such a parameter: it stays, as in torch.optim.
            if gradient is None:
                continue
            change = gradient
            if velocities is not None:
                # v <- mu v + gradient, without dampening. Velocities start at 0: the first is the
                # gradient.
                change = velocities[i].mul_(self.momentum).add_(gradient)
            parameter.add_(change, alpha=-self.lr)
