"""Inbox.of: the inbox of some receivers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.hostile import HONEST, OWN

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def test_senders_are_ids() -> None:
    with pytest.raises(
        ValueError, match="senders must be an integer from 0 to 9223372036854775807, found -1"
    ):
        eq.Inbox.collect(HONEST, like=OWN, senders=[-1, 0, 1, 2])
    with pytest.raises(
        ValueError, match=r"senders must be an integer from 0 to 9223372036854775807, found 0\.5"
    ):
        eq.Inbox.collect(HONEST, like=OWN, senders=[0.5, 0, 1, 2])  # type: ignore[list-item]
    slots = torch.arange(2)[None]
    with pytest.raises(ValueError, match="senders must be ids of clients, at least 0, found -2"):
        eq.Inbox(HONEST, slots, senders=slots - 2)


@pytest.mark.parametrize("one", [1, np.int64(1), torch.tensor(1), torch.tensor([1])], ids=repr)
def test_one_receiver(one: Any) -> None:
    inbox = eq.Topology.ring(4).deliver(HONEST)
    assert inbox.of(one).senders.tolist() == [[0, 2]]


@pytest.mark.parametrize("receivers", [-1, 4, [0, 9]])
def test_receivers_out_of_range(receivers: Any) -> None:
    with pytest.raises(ValueError, match="receivers must be from 0 to 3, found"):
        eq.Topology.ring(4).deliver(HONEST).of(receivers)


@pytest.mark.parametrize(
    "which",
    [torch.tensor([0.0]), torch.tensor([True]), torch.tensor([True] * 5)],
    ids=["float", "short", "long"],
)
def test_receivers_types(which: Tensor) -> None:
    inbox = eq.Topology.ring(4).deliver(HONEST)
    with pytest.raises(
        ValueError,
        match=r"receivers must be ids of receivers, 0 to 3, or a bool mask of shape \(4,\)",
    ):
        inbox.of(which)
    bytes_ = torch.tensor([0, 1, 2, 3], dtype=torch.uint8)
    assert torch.equal(inbox.of(bytes_).slots, inbox.slots)


def test_mask_of_many_receivers() -> None:
    graph = eq.Topology.ring(300)
    inbox = graph.deliver(torch.randn(300, 2))
    mask = torch.arange(300) % 7 == 0
    assert torch.equal(inbox.of(mask).senders, inbox.senders[mask])
    with pytest.raises(ValueError, match=r"receivers must be .* a bool mask of shape \(300,\)"):
        inbox.of(mask[:-1])
