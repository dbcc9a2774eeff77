"""What all rules share: one call for one client and for many, checked inputs, no gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise import kernels
from equipoise._utils.formatting import vector_hint
from equipoise._utils.validation import as_counts, check_inputs, describe, is_floating
from equipoise.kernels import may_share_memory
from equipoise.messages import Inbox
from equipoise.types import Aggregated, RoundInputs

IN_A_SIMULATOR = {
    "total": "its argument total, or run(rounds)",
    "loss_of": "its argument loss_of, a function of the round, or a trainer that has one, as LocalSGD",
    "samples": "a trainer that has samples, one number per client, as LocalSGD",
}
"""Where round inputs come from there."""


class Rule(ABC):
    """A rule that talks once a round; a subclass says how all clients of an inbox aggregate.

    ``isotropic`` says that the rule looks at lengths and angles only: of turned models it makes the turned aggregate.
    """

    isotropic: ClassVar[bool] = False

    @final
    @torch.no_grad()
    def __call__(self, own: Tensor, received: Tensor | Inbox, **inputs: Unpack[RoundInputs]) -> Aggregated:
        """Aggregate for one client (``own (d,)``) or for all clients of an inbox (``own (n, d)``)."""
        check_inputs(type(self).__name__, inputs)
        models, inbox = as_batch(own, received)
        check_out(inputs, own, inbox.bank)
        if inputs.get("out") is not None:
            torch.autograd.graph.increment_version(inputs["out"])  # native kernels write behind torch's back
        with _in_full_precision(own.device):
            if own.dim() == 2:
                return self.aggregate(models, inbox, **inputs)
            out = self.aggregate(models, inbox, **batch_inputs(**inputs))
        return Aggregated(out.model[0], None if out.weights is None else out.weights[0], out.state)

    @abstractmethod
    def aggregate(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Aggregated:
        """Aggregate for every client: ``own`` is (n, d), and ``inbox`` has n receivers."""


def _in_full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Products of models are in their dtype, also where the training around them is under autocast."""
    under = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if under else nullcontext()


class WeightedRule(Rule):
    """A rule whose aggregate is a weighted sum of messages, with own for what is missing to 1."""

    @final
    def aggregate(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Aggregated:
        """Weigh the messages, then combine them."""
        weights = self.weigh(own, inbox, **inputs)
        model = kernels.combine(own, own_share(weights), inbox, weights, out=inputs.get("out"))
        return Aggregated(model, as_diagnostic(weights, own), inputs.get("state"))

    @abstractmethod
    def weigh(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Tensor:
        """(n, k) float64 weights of the messages, 0 where none is present."""


def as_batch(own: Tensor, received: Tensor | Inbox) -> tuple[Tensor, Inbox]:
    """Check own and received against each other, as (n, d) models and an inbox of n receivers."""
    if not is_floating(own) or own.dim() not in (1, 2):
        hint = vector_hint(own, "own")
        raise ValueError(f"own must be a floating-point tensor of shape (d,) or (n, d), found {describe(own)}{hint}")
    if isinstance(received, Tensor) and received.device != own.device:
        raise ValueError(
            f"own and received must have the same device, found {own.device} and {received.device}; "
            "received.to(own) moves it"
        )
    inbox = (received if isinstance(received, Inbox) else Inbox.of_one(received)).current()
    if own.dim() == 2 and not isinstance(received, Inbox):
        raise ValueError("own of shape (n, d) needs an Inbox of n receivers, found a tensor; use Topology.deliver")
    models = own.detach() if own.dim() == 2 else own.detach()[None]
    if own.shape[-1] != inbox.d or inbox.d == 0:
        raise ValueError(
            f"own and received must have the same d > 0, found own d={own.shape[-1]}, received d={inbox.d}; "
            "models must be of one architecture"
        )
    if len(models) != inbox.n:
        hint = "; inbox.of(i) is what client i received" if own.dim() == 1 else ""
        raise ValueError(f"own must have one model per receiver, expected {inbox.n}, found {len(models)}{hint}")
    for name in ("dtype", "device"):
        mine, theirs = getattr(own, name), getattr(inbox.bank, name)
        if mine != theirs:
            raise ValueError(
                f"own and received must have the same {name}, found {mine} and {theirs}; bring both to one with .to"
            )
    if own.dim() == 1 and not kernels.are_finite(models).all():
        raise ValueError("own must be finite, found a NaN, an infinity, or values whose norm overflows")
    return models, inbox


def check_out(inputs: RoundInputs, own: Tensor, *others: Tensor) -> None:
    """Raise unless results may be written to ``out``, if given: like own, and apart from the memory of all inputs."""
    out = inputs.get("out")
    if out is None:
        return
    if not isinstance(out, Tensor) or (out.shape, out.dtype, out.device) != (own.shape, own.dtype, own.device):
        raise ValueError(f"out must be a tensor like own, {describe(own)} on {own.device}, found {describe(out)}")
    if _overlaps(out):
        found = f"strides {out.stride()} of shape {tuple(out.shape)}"
        raise ValueError(f"out must have memory for every number, found a tensor that was expanded: {found}")
    if out.requires_grad:
        raise ValueError("out must not require gradients, which rules do not compute")
    given = [value for name, value in inputs.items() if name != "out" and isinstance(value, Tensor)]
    if any(may_share_memory(out, x) for x in (own, *others, *given)):
        raise ValueError("out must have memory of its own, found that of own, of a message or of a round input")


def _overlaps(x: Tensor) -> bool:
    """Whether two elements of a vector or matrix may have the same memory."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * max(0, size - 1)
    return False


def batch_inputs(**inputs: Any) -> dict[str, Any]:
    """Round inputs of one client as those of a batch of one."""
    for name in ("update", "out"):
        if isinstance(inputs.get(name), Tensor):
            inputs[name] = inputs[name][None]
    of_models = inputs.get("loss_of")
    if of_models is not None:
        inputs["loss_of"] = lambda models, clients: of_models(models)
    return inputs


def as_diagnostic(weights: Tensor, own: Tensor) -> Tensor:
    """Weights in the dtype of own, but no narrower than float32."""
    return weights.to(torch.promote_types(own.dtype, torch.float32))


def uniform(accepted: Tensor) -> Tensor:
    """(n, k) equal weights for the accepted messages of each receiver, float64; 0 where nothing is accepted."""
    return accepted.double() / accepted.sum(1, keepdim=True).clamp_min(1)


def own_share(weights: Tensor) -> Tensor:
    """(n,) what is missing to 1, and exactly 0 where that is rounding: a huge or non-finite own must not leak in."""
    rest = 1 - weights.sum(1)
    return rest.where(rest.abs() > 1e-12, 0.0)


def needed(rule: object, **inputs: Any) -> tuple[Any, ...]:
    """The given round inputs, or a TypeError that names those which are missing."""
    missing = [name for name, value in inputs.items() if value is None]
    if missing:
        call = ", ".join(f"{name}=..." for name in missing)
        hints = "; ".join(IN_A_SIMULATOR[name] for name in missing if name in IN_A_SIMULATOR)
        hint = f" (in a Simulator: {hints})" if hints else ""
        raise TypeError(f"{type(rule).__name__} needs {' and '.join(missing)}: pass {call} when calling it{hint}")
    return tuple(inputs.values())


def as_tolerated(rule: object, given: int | Tensor | None, default: int | None, inbox: Inbox) -> Tensor:
    """(n,) how many malicious neighbours each client expects; the call's value goes before the rule's own."""
    (value,) = needed(rule, tolerated=default if given is None else given)
    return as_counts("tolerated", value, inbox.n, inbox.slots.device)
