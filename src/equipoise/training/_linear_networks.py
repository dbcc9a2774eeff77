"""Gradients of networks of linear layers, for many clients at once, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from equipoise.training._ensemble._functional import ELEMENTWISE, is_exactly
from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Stacked
from equipoise.training._fused import FusedSequential


@dataclass(frozen=True, eq=False)
class LinearNetwork:
    """A chain of linear layers and element-wise functions, applied to vectors.

    The gradient of a layer is one product of matrices. Autograd computes the same product, but
    records every step first, which takes longer than the products of small models.
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
    def gradients(
        self, parameters: Sequence[Tensor], x: Tensor, y: Tensor, loss: BatchLoss
    ) -> list[Tensor]:
        """The gradients of the losses of c clients, ``(c, *shape)`` like the parameters.

        ``x`` and ``y`` are ``(c, b, ...)``.
        """
        # One column per example, (c, features, b): then the gradient of a weight, delta @ inputs^T,
        # is a product of matrices that are not transposed, which is five times as fast.
        values = x.flatten(2).mT
        left = iter(parameters)
        steps: list[tuple[Tensor | None, Tensor, Tensor]] = []
        for layer in self.layers:
            inputs = values
            weight = None
            if isinstance(layer, nn.Linear):
                weight = next(left)
                values = _linear(weight, None if layer.bias is None else next(left), inputs)
            else:
                inputs = inputs.detach().requires_grad_()
                with torch.enable_grad():
                    # Autograd does not let a leaf be overwritten.
                    in_place = getattr(layer, "inplace", False)
                    values = layer(inputs.clone() if in_place else inputs)
            steps.append((weight, inputs, values))
        delta = loss.gradients_of_each(values.mT, y).mT
        return self._backward(steps, delta)

    def _backward(
        self, steps: list[tuple[Tensor | None, Tensor, Tensor]], delta: Tensor
    ) -> list[Tensor]:
        """The gradients by parameter, from those of the last layer's outputs."""
        found: list[Tensor] = []
        for layer, (weight, inputs, outputs) in zip(
            reversed(self.layers), reversed(steps), strict=True
        ):
            if weight is None:
                (delta,) = torch.autograd.grad(outputs, inputs, delta)
                continue
            if cast(nn.Linear, layer).bias is not None:
                found.append(delta.sum(2))
            found.append(torch.bmm(delta, inputs.mT))
            if inputs is not steps[0][1]:
                delta = torch.bmm(weight.mT, delta)
        return found[::-1]


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
