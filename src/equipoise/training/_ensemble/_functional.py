"""One module applied with the parameters of many clients at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import linear

from equipoise.training._fused import FusedSequential, has_hooks

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh, nn.Identity)


def apply_stacked(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, *, shared: bool = False) -> Tensor:
    """Outputs ``(c, b, ...)`` of a module with the parameters of c clients, each ``(c, *shape)``, by name.

    Inputs are every client's own, ``(c, b, ...)``, or, if ``shared``, the same for all clients, ``(b, ...)``. A linear
    layer is one product of matrices for all clients; what is not known here goes through ``torch.func.vmap``.

    >>> from equipoise.training._ensemble._functional import apply_stacked
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> apply_stacked(layer, {"weight": torch.tensor([[[2.0]], [[3.0]]])}, torch.ones(2, 4, 1)).squeeze(-1)
    tensor([[2., 2., 2., 2.],
            [3., 3., 3., 3.]])
    """
    if not _is(module, nn.Sequential, FusedSequential):
        return _apply(module, parameters, x, shared)
    for name, child in zip(module._modules, cast(nn.Sequential, module), strict=True):
        own = {key.removeprefix(f"{name}."): p for key, p in parameters.items() if key.startswith(f"{name}.")}
        if shared and not own:
            x = child(x)
        else:
            x, shared = apply_stacked(child, own, x, shared=shared), False
    return x


def is_linear(module: nn.Module) -> bool:
    """Whether all parameters belong to linear layers: then clients are best trained all at once."""
    return all(
        isinstance(part, nn.Linear) or not any(True for _ in part.parameters(recurse=False))
        for part in module.modules()
    )


def _apply(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor, shared: bool) -> Tensor:
    if _is(module, nn.Linear):
        return _linear(parameters["weight"], parameters.get("bias"), x, shared)
    if _is(module, *ELEMENTWISE):
        return module(x)  # type: ignore[no-any-return]
    if not parameters:
        return vmap(module)(x)  # type: ignore[no-any-return]
    once = {name: parameters[name] for name, _ in module.named_parameters()}  # shared ones under their first name
    run = vmap(lambda parameters, x: functional_call(module, parameters, (x,)), in_dims=(0, None if shared else 0))
    return run(once, x)  # type: ignore[no-any-return]


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor, shared: bool) -> Tensor:
    if shared:
        outputs = linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return outputs.view(*outputs.shape[:-1], *weight.shape[:2]).movedim(-2, 0)
    rows = x.flatten(1, -2)
    # Written as W x^T, not x W^T, the gradient is a product without transposed matrices, which is five times as fast.
    outputs = torch.bmm(weight, rows.mT) if bias is None else torch.baddbmm(bias[..., None], weight, rows.mT)
    return outputs.mT.reshape(*x.shape[:-1], weight.shape[1])


def _is(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Exactly one of these classes, and nothing hooked on that would be left out."""
    return type(module) in kinds and not has_hooks(module)
