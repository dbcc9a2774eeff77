"""Messages as they come off the wire, in any number and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from equipoise.arguments import check_count, describe

LARGEST = 2**63 - 1  # id of a client


def as_list(messages: Iterable[object]) -> list[object]:
    """The messages; a peer cannot choose what they are in, so that a mistake there is the caller's."""
    if isinstance(messages, Mapping):
        hint = "messages.values(), with senders=messages.keys(), are one each"
        raise ValueError(f"messages must be one for each sender, found {type(messages).__name__}; {hint}")
    if isinstance(messages, str | bytes | bytearray) or getattr(messages, "ndim", 2) < 2:
        raise ValueError(f"messages must be a list of messages, found {describe(messages)}; [message] is one")
    return list(messages)


def as_ids(senders: Iterable[int] | Tensor | None, count: int) -> list[int]:
    """Who sent each message."""
    if senders is None:
        return list(range(count))
    ids = senders.tolist() if isinstance(senders, Tensor) and senders.dim() == 1 else list(senders)
    for sender in ids:
        check_count("senders", sender, 0, LARGEST)
    if len(ids) != count:
        raise ValueError(f"senders must name one client per message, expected {count}, found {len(ids)}")
    return ids


def is_copied(message: object, row: Tensor) -> bool:
    """Copy a message to its row if it is a model; whatever goes wrong on the way shows that it is none."""
    try:
        message = _as_tensor(message, row)
        is_model = (
            isinstance(message, Tensor)
            and message.layout == torch.strided
            and message.is_floating_point()
            and not message.is_meta
            and message.numel() == row.numel()
        )
        if is_model:
            row.copy_(message.detach().reshape(-1))  # type: ignore[attr-defined]
    except Exception:  # a nested tensor looks like a model and cannot be copied, and there may be others
        return False
    return is_model


def _as_tensor(message: object, row: Tensor) -> object:
    """Arrays and bytes of the right size as tensors, anything else as it is."""
    if isinstance(message, np.ndarray) and message.size == row.numel():
        return torch.from_numpy(np.require(message, requirements=("C", "W")))
    if isinstance(message, bytes | bytearray) and len(message) == row.numel() * row.element_size() > 0:
        return torch.frombuffer(bytearray(message), dtype=row.dtype)
    return message
