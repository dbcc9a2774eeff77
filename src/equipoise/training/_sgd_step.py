"""One step of gradient descent, for one client or for several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Stacked
from equipoise.training._examples import Batch


@dataclass(frozen=True, eq=False)
class Descent:
    """Stochastic gradient descent with classical momentum, as in :class:`torch.optim.SGD`.

    Stacked models ``before (n, d)`` are read, ``after (n, d)`` is written, and ``velocity (n, d)``, if there is
    momentum, is both, all in the rows of a batch only. ``before`` and ``after`` may be the same.
    """

    architecture: Stacked
    loss: BatchLoss
    lr: float
    momentum: float
    before: Tensor
    after: Tensor
    velocity: Tensor | None = None

    @torch.enable_grad()
    def together(self, batch: Batch) -> None:
        """Train all clients of a batch in the same operations."""
        models = self.before.index_select(0, batch.rows)
        parts = [part.detach() for part in self.architecture.parts(models)]
        trained = [parts[i].requires_grad_() for i in self.architecture.trained]
        losses = self.loss.of_each(self.architecture.apply(parts, batch.x), batch.y)
        gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
        velocity = None if self.velocity is None else self.velocity.index_select(0, batch.rows)
        self._move(trained, gradients, velocity)
        self.after.index_copy_(0, batch.rows, models)
        if self.velocity is not None and velocity is not None:
            self.velocity.index_copy_(0, batch.rows, velocity)

    @torch.enable_grad()
    def alone(self, batch: Batch, seed: int | None = None) -> None:
        """Train the one client of a batch; with a seed for torch's generators if random numbers are drawn."""
        if seed is not None:
            torch.manual_seed(seed)
        row = int(batch.rows)
        with self.architecture.replica() as replica:
            replica.vector.copy_(self.before[row])
            loss = self.loss(replica.module(batch.x[0]), batch.y[0])
            gradients = torch.autograd.grad(loss, replica.trained, allow_unused=True)
            self._move(replica.trained, gradients, None if self.velocity is None else self.velocity[row])
            self.after[row] = replica.vector

    @torch.no_grad()
    def _move(self, trained: Sequence[Tensor], gradients: Sequence[Tensor | None], velocity: Tensor | None) -> None:
        velocities = None if velocity is None else self.architecture.parts(velocity)
        for i, parameter, gradient in zip(self.architecture.trained, trained, gradients, strict=True):
            if gradient is not None:  # a parameter that the loss does not depend on stays, as in torch.optim
                change = gradient if velocities is None else velocities[i].mul_(self.momentum).add_(gradient)
                parameter.add_(change, alpha=-self.lr)
