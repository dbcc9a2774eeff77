"""The parameters and buffers of a module that are part of its vector."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from equipoise._utils.validation import describe
from equipoise.parameters._patterns import Patterns, select


class Entry(NamedTuple):
    """A parameter or buffer that is part of the vector."""

    kind: str
    name: str
    tensor: Tensor

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}, {describe(self.tensor)} on {self.tensor.device}"


def entries_of(
    module: nn.Module, argument: str, buffers: bool, only: Patterns | None = None
) -> list[Entry]:
    """The parameters and buffers in the vector of a module, which errors call ``argument``."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"{argument} must be a torch.nn.Module, found {describe(module)}")
    entries = [Entry("parameter", name, x) for name, x in module.named_parameters()]
    if not entries:
        raise ValueError(f"{argument} must have parameters, found none in {type(module).__name__}")
    if buffers:
        entries += _averageable_buffers(module)
    if only is not None:
        # Before the checks: an adapter may sit on frozen layers of integers.
        entries = select(module, entries, only, "only")
    for entry in entries:
        _check_entry(entry, entries[0], argument)
    return entries


def _averageable_buffers(module: nn.Module) -> list[Entry]:
    # named_buffers has no flag for persistence, but the state_dict holds only persistent ones.
    saved = {id(x) for x in module.state_dict(keep_vars=True).values()}
    # Complex buffers are kept here, so that they are rejected with an error, not left out.
    return [
        Entry("buffer", name, x)
        for name, x in module.named_buffers()
        if id(x) in saved and (x.is_floating_point() or x.is_complex())
    ]


def _check_entry(entry: Entry, first: Entry, argument: str) -> None:
    kind, name, x = entry
    # Lazy layers have no shapes before their first call, meta tensors never have values.
    if isinstance(x, nn.UninitializedParameter | nn.UninitializedBuffer) or x.is_meta:
        raise ValueError(f"{argument} must be initialized, found {kind} {name!r} without values")
    if not x.is_floating_point():
        raise ValueError(f"{argument} must have floating-point {kind}s, found {entry}")
    if x.device != first.tensor.device:
        device = first.tensor.device
        raise ValueError(f"{argument} must be on one device, expected {device}, found {entry}")
