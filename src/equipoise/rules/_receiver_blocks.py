"""Round inputs of some of the receivers of an inbox."""

from __future__ import annotations

from typing import Any

from torch import Tensor

COPIED_MODELS = 1 << 24  # elements of models that are copied at a time: 64 MiB of float32


def of_clients(name: str, value: Any, clients: Tensor) -> Any:
    """A round input, restricted to some of the clients."""
    # The rule numbers its receivers from 0, and the caller's function takes ids of clients.
    if name == "loss_of" and value is not None:
        return lambda models, receivers: value(models, clients[receivers])
    # Samples are looked up by the sender's id, so they stay whole.
    if name in ("tolerated", "update", "gossip") and isinstance(value, Tensor) and value.dim():
        return value[clients]
    return value
