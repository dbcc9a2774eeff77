"""A loss of the outputs of many clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy

from equipoise._utils.formatting import as_call

Reduction = Literal["mean", "sum"]

IGNORED = -100  # torch's default ignore_index: cross_entropy leaves out targets of this class


@dataclass(frozen=True)
class BatchLoss:
    """A loss function and its reduction over a batch.

    ``function(outputs, targets, reduction=reduction)`` returns one number, or
    ``function(outputs, targets)`` does if ``reduction`` is None.

    >>> from equipoise.training._ensemble._losses import BatchLoss
    >>> loss = BatchLoss(torch.nn.functional.mse_loss, "sum")
    >>> loss(torch.tensor([1.0, 2.0]), torch.zeros(2))
    tensor(5.)
    >>> loss.of_each(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.zeros(2, 2))
    tensor([5., 9.])
    """

    function: Callable[..., Tensor]
    reduction: Reduction | None

    __repr__ = as_call

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one batch."""
        if self.reduction is None:
            return self.function(outputs, targets)
        return self.function(outputs, targets, reduction=self.reduction)

    def of_each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(c,) the losses of c batches, outputs ``(c, b, ...)`` and targets ``(c, b, ...)``."""
        # (c, b, classes) and (c, b): the targets are classes, not probabilities.
        is_classification = outputs.dim() == 3 and targets.dim() == 2
        # Identity: a partial or a module may have options, such as label smoothing.
        if self.function is cross_entropy and self.reduction and is_classification:
            return _cross_entropies(outputs, targets, self.reduction)
        return vmap(self)(outputs, targets)

    @torch.enable_grad()
    def gradients_of_each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of each of c losses by its outputs, ``(c, b, ...)``."""
        leaf = outputs.detach().requires_grad_()
        # Each loss depends on one client only: the gradient of the sum holds all gradients.
        (gradient,) = torch.autograd.grad(self.of_each(leaf, targets).sum(), leaf)
        return gradient


def _cross_entropies(outputs: Tensor, classes: Tensor, reduction: Reduction) -> Tensor:
    """The result of vmap, in less than half the time.

    cross_entropy wants classes before examples, which is how stacked linear layers leave them in
    memory.
    """
    totals = cross_entropy(outputs.mT, classes, reduction="none").sum(1)
    # Like cross_entropy, the mean is over the targets that are not ignored; of none it is NaN.
    return totals if reduction == "sum" else totals / (classes != IGNORED).sum(1)
