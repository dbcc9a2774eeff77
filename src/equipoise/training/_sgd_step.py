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
        before = [tensor[batch.rows] for tensor in self.before]
        after = [self._output(tensor, batch.rows) for tensor in self.after]
        if self.chain is None:
            self._train_by_autograd(before, after, batch)
        elif not self.momentum:
            models = after[0].copy_(before[0])
            parts = self.architecture.parts(models)
            self.chain.add_gradients(parts, -self.lr, parts, batch.x, batch.y, self.loss)
        else:
            # v <- mu v + gradient, w <- w - lr v
            velocity = torch.mul(before[1], self.momentum, out=after[1])
            to, at = (self.architecture.parts(stacked) for stacked in (velocity, before[0]))
            self.chain.add_gradients(to, 1.0, at, batch.x, batch.y, self.loss)
            torch.add(before[0], velocity, alpha=-self.lr, out=after[0])
        if not isinstance(batch.rows, slice):
            for tensor, block in zip(self.after, after, strict=True):
                tensor.index_copy_(0, batch.rows, block)

    def _output(self, after: Tensor, rows: Tensor | slice) -> Tensor:
        """Memory for rows of ``after``: the rows themselves if they are a slice."""
        if isinstance(rows, slice):
            return after[rows]
        return self.memory.take(after, len(rows), after.shape[1])

    def _train_by_autograd(self, before: list[Tensor], after: list[Tensor], batch: Batch) -> None:
        for old, new in zip(before, after, strict=True):
            new.copy_(old)
        # Detached views are leaves, so they can require gradients. Updating them updates `after`.
        parts = [part.detach() for part in self.architecture.parts(after[0])]
        trained = [parts[i] for i in self.architecture.trained]
        gradients = self._gradients(parts, trained, batch)
        self._update(trained, gradients, after[1] if self.momentum else None)

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
