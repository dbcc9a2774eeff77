"""One step of gradient descent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.training._ensemble import Stacked


class Descent:
    """Classical momentum, as in :class:`torch.optim.SGD`: v <- mu v + gradient, w <- w - lr v.

    Reads stacked models ``(..., d)`` and, with momentum, velocities ``(..., d)`` from ``before``,
    and writes them to ``after``, which may be the same.
    """

    def __init__(
        self,
        architecture: Stacked,
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        *,
        lr: float,
        momentum: float,
    ) -> None:
        # For each parameter, its values in the models and in the velocities.
        self._before = list(zip(*map(architecture.parts, before), strict=True))
        self._after = list(zip(*map(architecture.parts, after), strict=True))
        self._lr = lr
        self._momentum = momentum

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters before the step."""
        return [parameter for parameter, *_ in self._before]

    def keep(self, place: int) -> None:
        """Leave a parameter, and its velocity, as they are."""
        for old, new in zip(self._before[place], self._after[place], strict=True):
            new.copy_(old)

    def step(self, place: int, gradient: Tensor) -> None:
        """Update a parameter."""
        old, *velocity = self._before[place]
        new, *new_velocity = self._after[place]
        change = gradient
        if velocity:
            # Without dampening. Velocities start at 0: the first one is the gradient.
            torch.mul(velocity[0], self._momentum, out=new_velocity[0])
            change = new_velocity[0].add_(gradient)
        torch.add(old, change, alpha=-self._lr, out=new)

    def step_product(self, place: int, left: Tensor, right: Tensor) -> None:
        """The same for the gradient ``left @ right`` of c clients, (c, rows, columns)."""
        # Imported here, so that the library is loaded only if it is used.
        from equipoise.training._fused import _gradient_step

        old = self._before[place]
        new = self._after[place]
        if _gradient_step.serves(left, right, *old, *new):
            _gradient_step.step_product(left, right, old, new, lr=self._lr, momentum=self._momentum)
        else:
            self.step(place, torch.bmm(left, right))
