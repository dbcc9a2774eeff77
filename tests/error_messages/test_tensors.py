"""Mistakes with tensors and messages: the error names argument, expected and found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from tests.error_messages.mistakes import (
    BALANCE,
    LAYER,
    MEDIAN,
    MODELS,
    OWN,
    RECEIVED,
    RING,
    Mistake,
    check_error,
)

MISTAKES: dict[str, Mistake] = {
    "gossip weights of another client": (
        lambda: eq.Gossip()(OWN, RECEIVED, gossip=torch.full((3,), 0.25)),
        "gossip must be a floating-point tensor with one weight per slot, shape (n, k) = (1, 2), "
        "found float32 (1, 3)",
    ),
    "gossip weights with that of own": (
        lambda: eq.Gossip()(OWN, RECEIVED, gossip=torch.tensor([0.9, 0.9])),
        "gossip must be at least 0 and sum to at most 1 for each client, "
        "found weights from 0.9 with sums up to 1.8",
    ),
    "a list of messages": (
        lambda: MEDIAN(OWN, [OWN, OWN]),  # type: ignore[arg-type]
        "received must be a (k, d) tensor or an Inbox, found list; "
        "Inbox.collect(messages, like=own) turns a list of messages into an Inbox",
    ),
    "an empty list": (
        lambda: MEDIAN(OWN, []),  # type: ignore[arg-type]
        "received must be a (k, d) tensor or an Inbox, found list; "
        "Inbox.collect(messages, like=own) turns a list of messages into an Inbox",
    ),
    "an empty tensor": (
        lambda: MEDIAN(OWN, torch.tensor([])),
        "received must be a floating-point tensor of shape (k, d), found float32 (0,)",
    ),
    "one message": (
        lambda: MEDIAN(OWN, OWN),
        "received must be a floating-point tensor of shape (k, d), found float32 (3,)",
    ),
    "own as a list": (
        lambda: MEDIAN([1.0, 2.0, 3.0], RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found list; "
        "torch.tensor(own) makes one",
    ),
    "own as an array": (
        lambda: MEDIAN(np.ones(3), RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found ndarray; "
        "torch.tensor(own) makes one",
    ),
    "own as a state_dict": (
        lambda: MEDIAN(LAYER.state_dict(), RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found OrderedDict; "
        "load a state_dict into a module, and flatten that",
    ),
    "own as a module": (
        lambda: MEDIAN(LAYER, RECEIVED),  # type: ignore[arg-type]
        "own must be a floating-point tensor of shape (d,) or (n, d), found Linear; "
        "flatten(module) makes one",
    ),
    "another length": (
        lambda: MEDIAN(OWN, torch.ones(2, 4)),
        "own and received must have the same d > 0, found own d=3, received d=4; models must be "
        "of one architecture",
    ),
    "another dtype": (
        lambda: MEDIAN(OWN, RECEIVED.double()),
        "own and received must have the same dtype, found torch.float32 and torch.float64; "
        "convert one of them with .to",
    ),
    "integers": (
        lambda: MEDIAN(OWN.long(), RECEIVED.long()),
        "own must be a floating-point tensor of shape (d,) or (n, d), found int64 (3,); "
        "own.float() makes one",
    ),
    "integer models": (
        lambda: RING.deliver(MODELS.long()),
        "models must be a floating-point tensor of shape (n, d) with n = 4 clients, found int64 "
        "(4, 3)",
    ),
    "models as an array": (
        lambda: RING.deliver(np.ones((4, 3))),  # type: ignore[arg-type]
        "models must be a floating-point tensor of shape (n, d) with n = 4 clients, found ndarray",
    ),
    "models as a list": (
        lambda: eq.attacks.Knowledge([OWN] * 4, RING, [0]),  # type: ignore[arg-type]
        "models must be a floating-point tensor of shape (4, d), found list",
    ),
    "a bank as an array": (
        lambda: eq.Inbox(np.ones((4, 3)), RING.senders),  # type: ignore[arg-type]
        "bank must be a floating-point tensor of shape (m, d), found ndarray",
    ),
    "slots as a list": (
        lambda: eq.Inbox(MODELS, [[0, 1]]),  # type: ignore[arg-type]
        "slots must be an int64 tensor of shape (n, k), found list",
    ),
    "messages like a list": (
        lambda: eq.Inbox.collect([OWN], like=[1.0]),  # type: ignore[arg-type]
        "like must be a floating-point tensor, found list",
    ),
    "another device": (
        lambda: MEDIAN(OWN, RECEIVED.to("meta")),
        "own and received must have the same device, found cpu and meta; received.to(own) moves it",
    ),
    "a graph's inbox on another device": (
        lambda: MEDIAN(MODELS.to("meta"), RING.deliver(MODELS)),
        "own and received must have the same device, found meta and cpu; convert one of them with "
        ".to",
    ),
    "mixing across devices": (
        lambda: eq.mix(OWN, OWN.to("meta")),
        "model must be on the device of own, cpu, found meta",
    ),
    "models without values": (
        lambda: RING.deliver(MODELS.to("meta")),
        "bank must hold values, found a tensor on the device meta, which has none",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=MISTAKES)
def test_error_message(make: Callable[[], Any], message: str) -> None:
    check_error(make, message)


# Valid arguments


def test_unneeded_input_is_ignored() -> None:
    loss_of = torch.Tensor.norm
    out = MEDIAN(OWN, RECEIVED, t=0, total=1, tolerated=9, loss_of=loss_of, update=OWN, state=None)
    assert torch.equal(out.model, OWN)


def test_no_messages() -> None:
    for received in (torch.empty(0, 3), eq.Inbox.collect([], like=OWN)):
        assert torch.equal(MEDIAN(OWN, received).model, OWN)


def test_gradients_are_off() -> None:
    own = OWN.clone().requires_grad_()
    received = RECEIVED.clone().requires_grad_()
    out = BALANCE(own, received, t=0, total=1)
    assert not out.model.requires_grad
    assert not eq.mix(own, out.model).requires_grad
