"""Trying a model and a loss on two examples, so that what does not fit is said before training begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipoise._utils.validation import describe
from equipoise.parameters import entries_of
from equipoise.training._ensemble._losses import BatchLoss
from equipoise.training._ensemble._stacked import Replica, Stacked


class Habits(NamedTuple):
    """What has to be known about a model in evaluation mode to judge it."""

    random: bool  # it, or the loss, draws random numbers
    apart: bool  # an output depends on what else is in a batch, as with a BatchNorm without running statistics


def try_out(architecture: Stacked, loss: BatchLoss, x: Tensor, y: Tensor) -> bool:
    """Raise unless the model can be trained with this loss on these examples; whether one of both draws random numbers.

    Torch's global generators are left as they are.
    """
    replica = Replica(architecture.model, architecture.buffers)
    before = {name: buffer.clone() for name, buffer in replica.module.named_buffers()}
    with torch.enable_grad(), watched_generators(architecture) as were_used:
        outputs = outputs_of(replica.module, x)
        _check_buffers(replica.module, before, architecture.buffers)
        _check_loss(loss, outputs, y)
        return were_used()


@torch.no_grad()
def habits_of(architecture: Stacked, loss: BatchLoss, x: Tensor, y: Tensor) -> Habits:
    """How a model in evaluation mode behaves on some of these examples.

    If model or loss do not take them, that is not said here, but where losses are asked for.
    """
    rows = torch.arange(4, device=x.device) * (len(x) - 1) // 3  # far from each other: neighbours may be equal
    replica = Replica(architecture.model, architecture.buffers)
    _shake(replica.module)
    with watched_generators(architecture) as were_used:
        try:
            together = replica.module(x[rows])
            apart = torch.cat([replica.module(x[half]) for half in rows.split(2)])
            loss(together, y[rows])
            same = _nearly_equal(together, apart)
        except Exception:  # a module can do anything
            same = False
        random = were_used()
    return Habits(random, apart=random or not same)


@contextmanager
def watched_generators(architecture: Stacked) -> Iterator[Callable[[], bool]]:
    """Torch's global generators are left as they are; the function that one gets tells whether they were used."""
    with architecture.own_generators():
        before = _random_state(architecture.device)
        yield lambda: not torch.equal(before, _random_state(architecture.device))


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


def _shake(module: nn.Module) -> None:
    """Change all parameters a little: a layer that begins with zeros would hide what the layers before it do."""
    for parameter in module.parameters():
        generator = torch.Generator(parameter.device).manual_seed(0)
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
        parameter.add_(noise, alpha=0.1)


def _nearly_equal(x: Tensor, y: Tensor) -> bool:
    tolerance = math.sqrt(torch.finfo(x.dtype).eps)
    return torch.allclose(x, y, tolerance, tolerance * float(y.abs().max()), equal_nan=True)


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
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state
