"""Gradients of chains of layers, for many clients at once, without autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from equipoise.training._descent import Descent
from equipoise.training._ensemble import ELEMENTWISE, BatchLoss, Stacked, is_exactly
from equipoise.training._fused import FusedSequential, can_fuse_layers

# backward(delta, descent, place) takes the gradient of a layer's outputs and updates the layer's
# parameters, which begin at that place. It returns the gradient of the inputs, or None for the
# first layer with parameters.
Backward = Callable[[Tensor, Descent, int], Tensor | None]

# layer(inputs, parameters) returns the outputs for c clients, and the way back. Images are (c, b,
# channels, h, w). Vectors are columns, (c, features, b): then the gradient of a weight, delta @
# inputs^T, is a product of matrices that are not transposed.
Layer = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Backward]]


@dataclass(frozen=True, eq=False)
class LayerChain:
    """Linear layers, element-wise functions, and convolutions that are fused in C.

    Each layer updates its own weights. Autograd computes the same gradients, but records every step
    first, which takes longer than the products of small models, and returns gradients in new
    memory, as large as the models.
    """

    layers: tuple[Layer, ...]
    places: tuple[slice, ...]  # of each layer's parameters

    @classmethod
    def of(cls, architecture: Stacked, x: Tensor) -> LayerChain | None:
        """The chain that a model is for inputs ``x (b, ...)``, or None if it is something else."""
        modules = _modules(architecture.model)
        are_vectors = x.dim() == 2 and not _flattens(modules[0])
        layers: list[Layer] = [_flatten] if are_vectors else []
        places = [slice(0, 0)] * len(layers)
        end = 0
        while modules:
            found = _first_layer(modules, x, are_vectors=are_vectors)
            if found is None:
                return None
            layer, count = found
            layers.append(layer)
            are_vectors = are_vectors or layer is _flatten
            start, end = end, end + len(list(modules[0].parameters()))
            places.append(slice(start, end))
            del modules[:count]
        # A parameter that two layers share, or that is not trained, is left to autograd.
        if not end or not are_vectors or architecture.trained != list(range(end)):
            return None
        return cls(tuple(layers), tuple(places))

    @property
    def convolves(self) -> bool:
        """Whether there is a convolution."""
        return _convolve in self.layers

    def outputs(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs ``(c, b, features)`` for parameters ``(c, *shape)`` and ``x (c, b, ...)``."""
        return self._forward(parameters, x)[0].detach()

    @torch.no_grad()
    def descend(self, descent: Descent, x: Tensor, y: Tensor, loss: BatchLoss) -> None:
        """Update the parameters of c clients on their batches x and y, ``(c, b, ...)``."""
        outputs, ways_back = self._forward(descent.parameters, x)
        delta: Tensor | None = loss.gradients_of_each(outputs, y).mT
        for backward, places in zip(reversed(ways_back), reversed(self.places), strict=True):
            assert delta is not None
            delta = backward(delta, descent, places.start)
            if delta is None:
                break  # no layer before this one has parameters

    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, list[Backward]]:
        values = x
        ways_back = []
        for layer, places in zip(self.layers, self.places, strict=True):
            values, backward = layer(values, parameters[places])
            ways_back.append(backward)
        return values.mT, ways_back


def _first_layer(
    modules: list[nn.Module], x: Tensor, *, are_vectors: bool
) -> tuple[Layer, int] | None:
    """The layer that the first modules are, and their number; None if they are something else."""
    if is_exactly(modules[0], *ELEMENTWISE):
        return partial(_apply, modules[0]), 1
    if are_vectors and is_exactly(modules[0], nn.Linear):
        return _linear, 1
    if not are_vectors and _flattens(modules[0]):
        return _flatten, 1
    if can_fuse_layers(modules[:3]) and _is_served(x):
        return _convolve, 3  # with the pooling and the ReLU
    return None


def _linear(inputs: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Backward]:
    weight, *bias = parameters
    if bias:
        outputs = torch.baddbmm(bias[0][..., None], weight, inputs)
    else:
        outputs = torch.bmm(weight, inputs)

    def backward(delta: Tensor, descent: Descent, place: int) -> Tensor | None:
        # First, because the step may overwrite the weight.
        found = torch.bmm(weight.mT, delta) if place else None
        descent.step_product(place, delta, inputs.mT)
        if bias:
            descent.step(place + 1, delta.sum(2))
        return found

    return outputs, backward


def _convolve(inputs: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Backward]:
    """A convolution, its pooling and ReLU."""
    # Imported here, so that the library is loaded only if a model can use it.
    from equipoise.training._fused import _convolution

    weights, biases = parameters
    images = inputs.movedim(2, -1)
    outputs, largest = _convolution.forward(images, weights, biases)

    def backward(delta: Tensor, descent: Descent, place: int) -> Tensor | None:
        found, to_weights, to_biases = _convolution.backward(
            images, weights, largest, delta.movedim(2, -1), to_images=place > 0
        )
        descent.step(place, to_weights)
        descent.step(place + 1, to_biases)
        return None if found is None else found.movedim(-1, 2)

    return outputs.movedim(-1, 2), backward


def _flatten(inputs: Tensor, *_: object) -> tuple[Tensor, Backward]:
    return inputs.flatten(2).mT, lambda delta, *_: delta.mT.reshape(inputs.shape)


def _apply(function: nn.Module, inputs: Tensor, *_: object) -> tuple[Tensor, Backward]:
    """An element-wise function."""
    inputs = inputs.detach().requires_grad_()
    with torch.enable_grad():
        # Autograd does not let a leaf be overwritten.
        in_place = getattr(function, "inplace", False)
        outputs = function(inputs.clone() if in_place else inputs)
    return outputs, lambda delta, *_: torch.autograd.grad(outputs, inputs, delta)[0]


def _is_served(x: Tensor) -> bool:
    """Whether the C library takes images like these."""
    from equipoise.training._fused import _convolution

    return x.dim() == 4 and _convolution.fits_kernel(x, x.dtype)


def _flattens(layer: nn.Module) -> bool:
    """Whether a layer turns each example into a vector."""
    if not isinstance(layer, nn.Flatten) or not is_exactly(layer, nn.Flatten):
        return False
    return (layer.start_dim, layer.end_dim) == (1, -1)


def _modules(module: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences, in order; other modules are one layer."""
    if not is_exactly(module, nn.Sequential, FusedSequential):
        return [module]
    return [layer for part in cast(nn.Sequential, module) for layer in _modules(part)]
