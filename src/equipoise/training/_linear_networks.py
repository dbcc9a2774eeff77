"""Gradient descent of networks of linear layers, for many clients at once, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from equipoise.training._ensemble import ELEMENTWISE, BatchLoss, Stacked, is_exactly
from equipoise.training._fused import FusedSequential

# Numbers in a weight from which on the time to call a product for each client does not matter.
LARGE = 1 << 14


@dataclass(frozen=True, eq=False)
class LinearNetwork:
    """A chain of linear layers and element-wise functions, applied to vectors.

    The gradient of a layer is one product of matrices, which is added to the weights. Autograd
    computes the same product, but records every step first, which takes longer than the products of
    small models, and returns gradients in new memory, as large as the models.
    """

    layers: tuple[nn.Module, ...]

    @classmethod
    def of(cls, architecture: Stacked, x: Tensor) -> LinearNetwork | None:
        """The chain that a model is for inputs ``x (b, ...)``, or None if it is something else."""
        layers = _chain(architecture.model)
        if _flattens(layers[0]):
            layers = layers[1:]
        elif x.dim() != 2:
            return None
        parameters = [p for layer in layers for p in layer.parameters()]
        is_chain = layers and all(is_exactly(layer, nn.Linear, *ELEMENTWISE) for layer in layers)
        # A parameter that two layers share, or that is not trained, is left to autograd.
        if not is_chain or architecture.trained != list(range(len(parameters))):
            return None
        return cls(tuple(layers))

    @torch.no_grad()
    def descend(
        self,
        parameters: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        loss: BatchLoss,
        lr: float,
        velocities: Sequence[Tensor] | None = None,
        momentum: float = 0.0,
    ) -> None:
        """Update the parameters ``(c, *shape)`` of c clients in place, and their velocities.

        ``x`` and ``y`` are ``(c, b, ...)``.
        """
        steps = self._forward(parameters, x)
        delta = loss.gradients_of_each(steps[-1].outputs.mT, y).mT
        for step in reversed(steps):
            if not step.places:
                (delta,) = torch.autograd.grad(step.outputs, step.inputs, delta)
                continue
            here = delta
            # Before the weight changes. The gradient of the network's inputs is not needed.
            if step is not steps[0]:
                delta = torch.bmm(parameters[step.places[0]].mT, delta)
            for place in step.places:
                # v <- mu v + gradient, w <- w - lr v; without velocities, w <- w - lr gradient.
                target = parameters[place] if velocities is None else velocities[place]
                keep = 1.0 if velocities is None else momentum
                rate = -lr if velocities is None else 1.0
                if place == step.places[0]:
                    _add_product(target, here, step.inputs.mT, keep=keep, rate=rate)
                else:
                    target.mul_(keep).add_(here.sum(2), alpha=rate)
                if velocities is not None:
                    parameters[place].add_(velocities[place], alpha=-lr)

    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> list[_Step]:
        # One column per example, (c, features, b): then the gradient of a weight, delta @ inputs^T,
        # is a product of matrices that are not transposed, which is five times as fast.
        values = x.flatten(2).mT
        places = count()
        steps = []
        for layer in self.layers:
            inputs = values
            mine = [next(places) for _ in layer.parameters()]
            if mine:
                values = _linear(*(parameters[place] for place in mine), inputs=inputs)
            else:
                inputs = inputs.detach().requires_grad_()
                with torch.enable_grad():
                    # Autograd does not let a leaf be overwritten.
                    in_place = getattr(layer, "inplace", False)
                    values = layer(inputs.clone() if in_place else inputs)
            steps.append(_Step(mine, inputs, values))
        return steps


class _Step(NamedTuple):
    """One layer, applied to the values of all clients."""

    places: list[int]  # of its weight and its bias among the parameters
    inputs: Tensor  # (c, features, b)
    outputs: Tensor


def _add_product(target: Tensor, left: Tensor, right: Tensor, *, keep: float, rate: float) -> None:
    """``target = keep * target + rate * left @ right``, in place, for matrices (c, ...)."""
    if target[0].numel() >= LARGE:
        # torch adds one client's product after the other, and needs no memory for them.
        target.baddbmm_(left, right, beta=keep, alpha=rate)
    else:
        target.mul_(keep).add_(torch.bmm(left, right), alpha=rate)


def _flattens(layer: nn.Module) -> bool:
    """Whether a layer turns each example into a vector."""
    if not isinstance(layer, nn.Flatten) or not is_exactly(layer, nn.Flatten):
        return False
    return (layer.start_dim, layer.end_dim) == (1, -1)


def _linear(weight: Tensor, bias: Tensor | None = None, *, inputs: Tensor) -> Tensor:
    if bias is None:
        return torch.bmm(weight, inputs)
    return torch.baddbmm(bias[..., None], weight, inputs)


def _chain(module: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences, in order; other modules are one layer."""
    if not is_exactly(module, nn.Sequential, FusedSequential):
        return [module]
    return [layer for part in cast(nn.Sequential, module) for layer in _chain(part)]
