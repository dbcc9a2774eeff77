"""A mailbox with two neighbors, and the messages that they send it."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.messages.wire import pack
from equipoise.peers import RefusedError
from equipoise.peers._mailbox import Mailbox

OWN = torch.zeros(3)


def mailbox(*, stash: int = 1, max_staleness: int = 0) -> Mailbox:
    return Mailbox(["b", "c"], stash=stash, max_staleness=max_staleness)


def message(
    t: int, value: float = 1.0, *, sender: str = "b", exchange: int = 0, d: int = 3
) -> bytes:
    return pack(torch.full((d,), value), round=t, sender=sender, exchange=exchange)


def push(box: Mailbox, payload: bytes, sender: str | None = "b") -> None:
    incoming = box.open(sender)
    try:
        incoming.write(payload)
        incoming.complete()
    finally:
        incoming.close()


def refused(box: Mailbox, payload: bytes, sender: str | None = "b") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        push(box, payload, sender)
    return caught.value


def finish(box: Mailbox, timeout: float = 0.0) -> eq.Inbox:
    return box.finish((1, 2), time.monotonic() + timeout)


def row(inbox: eq.Inbox, slot: int = 0) -> Tensor:
    assert bool(inbox.mask[0, slot])
    return inbox.bank[inbox.slots[0, slot]]
