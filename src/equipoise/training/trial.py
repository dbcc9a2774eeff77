"""Trying a model and a loss on two examples, so that what does not fit is said before training begins."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equipoise.arguments import describe
from equipoise.parameters import entries_of
from equipoise.training.losses import BatchLoss
from equipoise.training.stacked import Replica, Stacked


def try_out(architecture: Stacked, loss: BatchLoss, x: Tensor, y: Tensor) -> bool:
    """Raise unless the model and the loss can be trained on these examples; whether the model draws random numbers.

    Torch's global generators are left as they are.
    """
    replica = Replica(architecture.model, architecture.buffers)
    before = {name: buffer.clone() for name, buffer in replica.module.named_buffers()}
    with torch.enable_grad(), architecture.own_generators():
        state = _random_state(architecture.device)
        outputs = outputs_of(replica.module, x)
        random = not torch.equal(state, _random_state(architecture.device))
        _check_buffers(replica.module, before, architecture.buffers)
        _check_loss(loss, outputs, y)
    return random


@torch.no_grad()
def looks_at_its_batch(architecture: Stacked, x: Tensor) -> bool:
    """Whether outputs depend on what else is in a batch, as those of a BatchNorm without running statistics do.

    If the model does not take these inputs, that is not said here, but where its outputs are needed.
    """
    replica = Replica(architecture.model, architecture.buffers)
    some = x[torch.arange(4, device=x.device) * (len(x) - 1) // 3]  # far from each other: neighbours may be equal
    with architecture.own_generators():
        torch.manual_seed(0)
        for parameter in replica.module.parameters():  # a layer that begins with zeros would hide what is before it
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        try:
            together, apart = replica.module(some), torch.cat([replica.module(half) for half in some.split(2)])
        except Exception:
            return True
    tolerance = math.sqrt(torch.finfo(architecture.dtype).eps)
    return not torch.allclose(together, apart, tolerance, tolerance * float(apart.abs().max()), equal_nan=True)


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """What the module makes of x; an error of its own says which inputs it did not take."""
    inputs = x.clone()
    try:
        outputs = module(inputs)
    except Exception as error:
        raise ValueError(
            f"model must take inputs like x, {describe(x)}, found {type(error).__name__}: {error}"
        ) from error
    if inputs._version:
        raise ValueError("model must leave its inputs as they are, found that it changes them in place")
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1]:
        raise ValueError(f"model must return one output per input, {len(x)}, found {describe(outputs)}")
    return outputs


def _check_buffers(module: nn.Module, before: dict[str, Tensor], buffers: bool) -> None:
    own = {entry.name for entry in entries_of(module, "model", buffers)}
    for name, buffer in module.named_buffers():
        counts = name.rpartition(".")[2] == "num_batches_tracked"  # looked at only where momentum is None: see below
        if name not in own and not counts and not torch.equal(buffer, before[name]):
            raise ValueError(
                f"model must not change buffers that are not part of a client's model, found that {name!r} changes "
                "in training; with buffers=True, and models made by flatten(model, buffers=True), every client has "
                "its own"
            )
    for name, part in module.named_modules():
        if getattr(part, "track_running_stats", False) and getattr(part, "momentum", 0) is None:
            raise ValueError(
                f"model must not count its batches, as no client has a count of its own; give {name!r} a momentum"
            )


def _check_loss(loss: BatchLoss, outputs: Tensor, y: Tensor) -> None:
    try:
        value = loss(outputs, y)
    except Exception as error:
        given = f"outputs {describe(outputs)} and targets {describe(y)}"
        hint = "; reduction=None is for a loss without reduction" if "reduction" in str(error) else ""
        raise ValueError(f"loss must take {given}, found {type(error).__name__}: {error}{hint}") from error
    if not isinstance(value, Tensor) or value.dim():
        raise ValueError(f"loss must return one number for a batch, found {describe(value)}")
    if not value.requires_grad:
        raise ValueError("loss must depend on a parameter that requires a gradient, found that it does not")


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
