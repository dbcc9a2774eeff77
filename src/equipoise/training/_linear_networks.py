"""Gradient descent of networks of linear layers, for many clients at once, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

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
        # One column per example, (c, features, b): then the gradient of a weight, delta @ inputs^T,
        # is a product of matrices that are not transposed, which is five times as fast.
        values = x.flatten(2).mT
        place = 0
        steps: list[tuple[int | None, Tensor, Tensor]] = []
        for layer in self.layers:
            inputs = values
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else parameters[place + 1]
                values = _linear(parameters[place], bias, inputs)
                steps.append((place, inputs, values))
                place += 1 if bias is None else 2
                continue
            inputs = inputs.detach().requires_grad_()
            with torch.enable_grad():
                # Autograd does not let a leaf be overwritten.
                in_place = getattr(layer, "inplace", False)
                values = layer(inputs.clone() if in_place else inputs)
            steps.append((None, inputs, values))
        delta = loss.gradients_of_each(values.mT, y).mT
        for layer, (place_of, inputs, outputs) in zip(
            reversed(self.layers), reversed(steps), strict=True
        ):
            if place_of is None:
                (delta,) = torch.autograd.grad(outputs, inputs, delta)
                continue
            weight = parameters[place_of]
            # Before the weight changes. The gradient of the network's inputs is not needed.
            earlier = delta if inputs is steps[0][1] else torch.bmm(weight.mT, delta)
            places = [place_of]
            if cast(nn.Linear, layer).bias is not None:
                places.append(place_of + 1)
            for i in places:
                target = parameters[i] if velocities is None else velocities[i]
                keep = 1.0 if velocities is None else momentum
                step = -lr if velocities is None else 1.0
                if i == place_of:
                    _add_product(target, delta, inputs.mT, keep=keep, step=step)
                else:
                    target.mul_(keep).add_(delta.sum(2), alpha=step)
                if velocities is not None:
                    parameters[i].add_(velocities[i], alpha=-lr)
            delta = earlier


def _add_product(target: Tensor, left: Tensor, right: Tensor, *, keep: float, step: float) -> None:
    """``target = keep * target + step * left @ right``, in place, for matrices (c, ...)."""
    if target[0].numel() >= LARGE:
        # torch adds one client's product after the other, and needs no memory for them.
        target.baddbmm_(left, right, beta=keep, alpha=step)
    else:
        target.mul_(keep).add_(torch.bmm(left, right), alpha=step)


def _flattens(layer: nn.Module) -> bool:
    """Whether a layer turns each example into a vector."""
    if not isinstance(layer, nn.Flatten) or not is_exactly(layer, nn.Flatten):
        return False
    return (layer.start_dim, layer.end_dim) == (1, -1)


def _linear(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    if bias is None:
        return torch.bmm(weight, inputs)
    return torch.baddbmm(bias[..., None], weight, inputs)


def _chain(module: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences, in order; other modules are one layer."""
    if not is_exactly(module, nn.Sequential, FusedSequential):
        return [module]
    return [layer for part in cast(nn.Sequential, module) for layer in _chain(part)]
