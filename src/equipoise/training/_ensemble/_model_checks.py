"""A model and a loss tried on a few examples, to report misfits before training begins."""

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


class EvaluationTraits(NamedTuple):
    """Properties of a model in evaluation mode that restrict how it can be evaluated."""

    random: bool  # the model or the loss draws random numbers
    batch_dependent: bool  # outputs depend on the batch, as in BatchNorm without statistics


def check_trainable(architecture: Stacked, loss: BatchLoss, x: Tensor, y: Tensor) -> bool:
    """Raise unless the model can be trained on these examples; whether it draws random numbers.

    The loss may be what draws them. Torch's global generators are restored.
    """
    replica = Replica(architecture.model, architecture.buffers)
    # The replica is not returned to the architecture: the model may change its buffers here.
    before = {name: buffer.clone() for name, buffer in replica.module.named_buffers()}
    with torch.enable_grad(), watched_generators(architecture) as were_used:
        outputs = outputs_of(replica.module, x)
        _check_buffers(replica.module, before, architecture.buffers)
        _check_loss(loss, outputs, y)
        return were_used()


@torch.no_grad()
def evaluation_traits(
    architecture: Stacked, loss: BatchLoss, x: Tensor, y: Tensor
) -> EvaluationTraits:
    """The traits of a model in evaluation mode, from four of these examples.

    A model or a loss that does not take them counts as batch-dependent here. Asking for its losses
    then reports the error.
    """
    # Spread over the data: neighbors may be equal, which would hide a dependence on the batch.
    rows = torch.arange(4, device=x.device) * (len(x) - 1) // 3
    replica = Replica(architecture.model, architecture.buffers)
    _perturb(replica.module)
    with watched_generators(architecture) as were_used:
        try:
            together = replica.module(x[rows])
            apart = torch.cat([replica.module(x[half]) for half in rows.split(2)])
            loss(together, y[rows])
            same = _nearly_equal(together, apart)
        except Exception:  # a module can do anything
            same = False
        random = were_used()
    return EvaluationTraits(random, batch_dependent=random or not same)


@contextmanager
def watched_generators(architecture: Stacked) -> Iterator[Callable[[], bool]]:
    """Restore torch's global generators afterwards; yields a function that tells if they moved."""
    with architecture.forked_generators():
        before = _random_state(architecture.device)
        yield lambda: not torch.equal(before, _random_state(architecture.device))


def outputs_of(module: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a module; raises a ValueError that describes x if they are not valid."""
    inputs = x.clone()
    try:
        outputs = module(inputs)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"model must take inputs like x, {describe(x)}, found {reason}") from error
    # The version counts changes in place; that of a clone starts at 0.
    if inputs._version:
        raise ValueError("model must not modify its inputs, found that it changes them in place")
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1]:
        expected = f"one output per input, {len(x)}"
        raise ValueError(f"model must return {expected}, found {describe(outputs)}")
    return outputs


def _perturb(module: nn.Module) -> None:
    """Change all parameters a little: a layer of zeros would hide the layers before it."""
    for parameter in module.parameters():
        # A fixed seed: the traits of a model must not depend on chance.
        generator = torch.Generator(parameter.device).manual_seed(0)
        noise = torch.randn(
            parameter.shape, generator=generator, dtype=parameter.dtype, device=parameter.device
        )
        parameter.add_(noise, alpha=0.1)


def _nearly_equal(x: Tensor, y: Tensor) -> bool:
    # Half of the digits: rounding differs between batch sizes, statistics of a batch change more.
    tolerance = math.sqrt(torch.finfo(x.dtype).eps)
    return torch.allclose(x, y, tolerance, tolerance * float(y.abs().max()), equal_nan=True)


def _check_buffers(module: nn.Module, before: dict[str, Tensor], buffers: bool) -> None:
    own = {entry.name for entry in entries_of(module, "model", buffers)}
    for name, buffer in module.named_buffers():
        # A count of batches matters only to layers with momentum None, which are refused below.
        counts = name.rpartition(".")[2] == "num_batches_tracked"
        if name not in own and not counts and not torch.equal(buffer, before[name]):
            raise ValueError(
                "model must not change buffers that are not part of a client's model, found that "
                f"{name!r} changes in training; with buffers=True, and models made by "
                "flatten(model, buffers=True), every client has its own"
            )
    for name, part in module.named_modules():
        if getattr(part, "track_running_stats", False) and getattr(part, "momentum", 0) is None:
            raise ValueError(
                "model must not count its batches, as no client has a count of its own; "
                f"give {name!r} a momentum"
            )


def _check_loss(loss: BatchLoss, outputs: Tensor, y: Tensor) -> None:
    try:
        value = loss(outputs, y)
    except Exception as error:
        given = f"outputs {describe(outputs)} and targets {describe(y)}"
        reason = f"{type(error).__name__}: {error}"
        hint = ""
        if "reduction" in str(error):
            hint = "; reduction=None is for a loss without reduction"
        raise ValueError(f"loss must take {given}, found {reason}{hint}") from error
    if not isinstance(value, Tensor) or value.dim():
        raise ValueError(f"loss must return one number for a batch, found {describe(value)}")
    if not value.requires_grad:
        expected = "depend on a parameter that requires a gradient"
        raise ValueError(f"loss must {expected}, found that it does not")


def _random_state(device: torch.device) -> Tensor:
    state = torch.get_rng_state()
    if device.type != "cuda":
        return state
    return torch.cat([state, torch.cuda.get_rng_state(device)])
