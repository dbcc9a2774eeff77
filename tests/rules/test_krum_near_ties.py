"""Krum near ties, and with distances whose squares overflow or vanish."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import equipoise as eq
from tests.hostile import HONEST, OWN, D

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def test_overflowing_squares() -> None:
    """Two attackers where none is expected: they are far from four, the honest only from two."""
    received = torch.cat([torch.full((2, D), 1e300, dtype=torch.float64), HONEST.double()])
    out = eq.Krum(tolerated=0)(OWN.double(), received)
    assert not out.weights[:2].any()


@pytest.mark.parametrize("huge", [1e6, 1e150, 1e160, 1e300, 1.7e308])
def test_far_message(huge: float) -> None:
    """Three malicious clients of ten: a poison, a far message, and a near copy of the winner."""
    generator = torch.Generator().manual_seed(0)
    benign = 1 + 0.01 * torch.randn(7, 50, generator=generator, dtype=torch.float64)
    poison, far = torch.full((2, 50), -100.0, dtype=torch.float64)
    far[0] = huge
    rule = eq.Krum(tolerated=3)
    copy = rule(benign[0], torch.cat([torch.stack([poison, far, poison * 2]), benign])).model
    copy[0] += 1e-12
    out = rule(benign[0], torch.cat([torch.stack([poison, far, copy]), benign]))
    assert (out.model - copy).norm() < 1e-9


@pytest.mark.parametrize(
    ("size", "other"),
    [(-1040, 0), (-1000, 1), (-565, 1), (-565, 2.0**1000), (565, 2.0**1000), (1021, 2.0**1000)],
)
@pytest.mark.parametrize("position", [0, 5])
def test_as_exact_as_fractions(size: int, other: float, position: int) -> None:
    """Small integers times a power of two have exact squares, many of them equal."""
    generator = torch.Generator().manual_seed(size)
    for small in torch.randint(-3, 4, (30, 5, 2), generator=generator):
        messages = [[Fraction(2) ** size * int(value) for value in row] for row in small]
        messages.insert(position, [Fraction(other), Fraction(0)])
        received = torch.tensor(
            [[float(value) for value in row] for row in messages], dtype=torch.float64
        )
        out = eq.Krum(tolerated=1)(received[0], received)
        assert torch.equal(out.model, received[chosen_by_fractions(messages, nearest=3)])


def chosen_by_fractions(messages: list[list[Fraction]], nearest: int) -> int:
    apart = [
        [sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction(0)) for b in messages]
        for a in messages
    ]
    scores = [sum(sorted(row)[1 : nearest + 1]) for row in apart]
    return scores.index(min(scores))


def test_tiny_differences() -> None:
    received = torch.tensor(
        [[1.0, 5e-170], [1.0, 0.0], [1.0, 1e-170], [1.0, 3e-170]], dtype=torch.float64
    )
    assert eq.Krum(tolerated=0)(received[0], received).weights.tolist() == [0, 0, 1, 0]
