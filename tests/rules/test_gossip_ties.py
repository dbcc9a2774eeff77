"""Which messages are dropped where rounding, overflow or exact ties could decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq

DROPPING = {
    "GTS": eq.GTS(tolerated=8),
    "RTC": eq.RTC(tolerated=8),
    "NNA": eq.NNA(tolerated=8),
    "IOS": eq.IOS(tolerated=8),
    "FABA": eq.FABA(tolerated=8),
}
every_rule = pytest.mark.parametrize("rule", DROPPING.values(), ids=DROPPING)


def along_axes(d: int, clients: int) -> eq.Inbox:
    """Twenty messages as far from zero as from each other, in a random order of senders."""
    senders = torch.randperm(20, generator=torch.Generator().manual_seed(1))[None]
    slots = torch.arange(20)[None]
    return eq.Inbox(
        torch.eye(20, d), *(x.expand(clients, -1) for x in (slots, slots >= 0, senders))
    )


@every_rule
@pytest.mark.parametrize("d", [50, 5000])
@pytest.mark.parametrize("clients", [1, 40])
def test_ties_keep_lowest_ids(rule: Any, d: int, clients: int) -> None:
    inbox = along_axes(d, clients)
    out = rule(torch.zeros(clients, d), inbox)
    assert torch.equal(out.weights > 0, inbox.senders < 12)


@every_rule
@pytest.mark.parametrize("far", [1e-30, 1.0, 1e30, 1e308])
def test_far_messages_in_float64(rule: Any, far: float) -> None:
    """Squares of these differences overflow or vanish, also next to usual ones."""
    received = torch.ones(20, 3, dtype=torch.float64)
    received[5:] = 0.25
    received[12:, 0] = torch.linspace(0.7, 0.9, 8, dtype=torch.float64)
    out = rule(torch.zeros(3, dtype=torch.float64), far * received)
    kept = out.weights > 0
    assert int(kept.sum()) == 12
    assert not kept[:5].any()


@pytest.mark.parametrize("rule", [eq.IOS(tolerated=2), eq.FABA(tolerated=2)], ids=["IOS", "FABA"])
def test_tiny_differences_after_a_far_one(rule: Any) -> None:
    """Once the far message is dropped, squared distances vanish in float64."""
    received = torch.tensor([[1.0], [1e-200], [2e-200], [-1e-200], [9e-200]], dtype=torch.float64)
    out = rule(torch.zeros(1, dtype=torch.float64), received)
    assert torch.equal(out.weights > 0, torch.tensor([False, True, True, True, False]))


@pytest.mark.parametrize("backend", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", [eq.IOS(tolerated=1), eq.FABA(tolerated=1)], ids=["IOS", "FABA"])
def test_near_ties_are_exact(rule: Any, backend: torch.dtype) -> None:
    """Two messages whose distances from the mean differ by 1e-7 of a model's norm."""
    d = 4096
    own = torch.full((d,), 1.0, dtype=backend)
    received = own.repeat(5, 1)
    received[3, :2048] += 2.0**-10
    received[4, :2048] -= 2.0**-10
    received[4, 0] -= 2.0**-20
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        out = rule(own, received[order])
        assert out.weights[order.index(4)] == 0
        assert out.weights[order.index(3)] > 0


@every_rule
def test_copies_of_one_lie(rule: Any) -> None:
    """Eight equal lies are all dropped, whichever of them comes first."""
    generator = torch.Generator().manual_seed(0)
    received = torch.randn(20, 3000, generator=generator)
    received[3:19:2] = 5.0
    out = rule(torch.zeros(3000), received)
    assert not out.weights[3:19:2].any()
    assert int((out.weights > 0).sum()) == 12
