"""One module applied with the parameters of many clients at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import linear

from equipoise.training._fused import FusedSequential, has_hooks

# Modules without parameters that treat every number alike: they take stacked inputs as they are.
ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
    nn.Identity,
)


def apply_stacked(
    module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, *, shared: bool = False
) -> Tensor:
    """Outputs ``(c, b, ...)`` of a module with the parameters of c clients, ``(c, *shape)`` each.

    Each client has its own inputs, ``(c, b, ...)``, or, if ``shared``, all have the same,
    ``(b, ...)``. A linear layer is one product of matrices for all clients; layers that are not
    known here go through ``torch.func.vmap``.

    >>> from equipoise.training._ensemble._functional import apply_stacked
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> weights = {"weight": torch.tensor([[[2.0]], [[3.0]]])}
    >>> apply_stacked(layer, weights, torch.ones(2, 4, 1)).squeeze(-1)
    tensor([[2., 2., 2., 2.],
            [3., 3., 3., 3.]])
    """
    if not is_exactly(module, nn.Sequential, FusedSequential):
        return _apply_layer(module, parameters, x, shared)
    for name, child in zip(module._modules, cast(nn.Sequential, module), strict=True):
        start = f"{name}."
        own = {key.removeprefix(start): p for key, p in parameters.items() if key.startswith(start)}
        if shared and not own:
            x = child(x)  # before the first parameters, all clients still compute the same
        else:
            x = apply_stacked(child, own, x, shared=shared)
            shared = False
    return x


def is_linear(module: nn.Module) -> bool:
    """Whether all parameters belong to linear layers: then batched training is fastest."""
    return all(
        isinstance(part, nn.Linear) or not any(True for _ in part.parameters(recurse=False))
        for part in module.modules()
    )


def _apply_layer(
    module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, shared: bool
) -> Tensor:
    if is_exactly(module, nn.Linear):
        return _linear(parameters["weight"], parameters.get("bias"), x, shared)
    if is_exactly(module, *ELEMENTWISE):
        return module(x)  # type: ignore[no-any-return]
    if not parameters:
        return vmap(module)(x)  # type: ignore[no-any-return]
    # functional_call wants a parameter with several names under its first name only.
    once = {name: parameters[name] for name, _ in module.named_parameters()}
    run = vmap(
        lambda parameters, x: functional_call(module, parameters, (x,)),
        in_dims=(0, None if shared else 0),
    )
    return run(once, x)  # type: ignore[no-any-return]


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor, shared: bool) -> Tensor:
    if shared:
        outputs = linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return outputs.view(*outputs.shape[:-1], *weight.shape[:2]).movedim(-2, 0)
    rows = x.flatten(1, -2)
    # Written as W x^T, not x W^T, the gradient is a product without transposed matrices, which is
    # five times as fast.
    xt = rows.mT
    outputs = torch.bmm(weight, xt) if bias is None else torch.baddbmm(bias[..., None], weight, xt)
    return outputs.mT.reshape(*x.shape[:-1], weight.shape[1])


def is_exactly(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether it is of one of these classes, no subclass, and has no hooks to skip."""
    return type(module) in kinds and not has_hooks(module)
