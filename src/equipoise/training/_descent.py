"""One step of gradient descent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.training._ensemble import Stacked


class Descent:
    """Classical momentum, as in :class:`torch.optim.SGD`: v <- mu v + gradient, w <- w - lr v.

    Updates stacked models ``(..., d)`` in place and, with momentum, velocities ``(..., d)``.
    """

    def __init__(
        self, architecture: Stacked, stacked: Sequence[Tensor], *, lr: float, momentum: float
    ) -> None:
        # For each parameter, its values in the models and in the velocities.
        self._stacked = list(zip(*map(architecture.parts, stacked), strict=True))
        self._lr = lr
        self._momentum = momentum

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, which a step changes."""
        return [parameter for parameter, *_ in self._stacked]

    def step(self, place: int, gradient: Tensor) -> None:
        """Update a parameter."""
        parameter, *velocity = self._stacked[place]
        change = gradient
        if velocity:
            # Without dampening. Velocities start at 0: the first one is the gradient.
            change = velocity[0].mul_(self._momentum).add_(gradient)
        parameter.add_(change, alpha=-self._lr)

    def step_product(self, place: int, left: Tensor, right: Tensor) -> None:
        """The same for the gradient ``left @ right`` of c clients, (c, rows, columns)."""
        # Imported here, so that the library is loaded only if it is used.
        from equipoise.training._fused import _gradient_step

        stacked = self._stacked[place]
        if _gradient_step.serves(left, right, stacked):
            _gradient_step.step_product(left, right, stacked, lr=self._lr, momentum=self._momentum)
        else:
            self.step(place, torch.bmm(left, right))
