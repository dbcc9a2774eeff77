"""Random rounds for the laws of rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from equipoise.messages import Inbox

HOSTILE = ("copy", "negated", "zeros", "nan", "inf", "huge", "largest")


class RuleRound(NamedTuple):
    """The arguments of a rule for all clients: ``rule(own, inbox, **inputs)``."""

    own: Tensor
    inbox: Inbox
    inputs: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"{self.own.dtype}, n = {self.inbox.n}, k = {self.inbox.k}, d = {self.inbox.d}"]
        for i, own in enumerate(self.own.tolist()):
            lines.append(f"client {i}: own {own}")
            for slot, is_present in enumerate(self.inbox.mask[i].tolist()):
                sender = int(self.inbox.senders[i, slot])
                message = self.inbox.bank[self.inbox.slots[i, slot]].tolist()
                text = f"from client {sender}: {message}" if is_present else "empty slot"
                lines.append(f"    {text}")
        for name, x in self.inputs.items():
            lines.append(f"{name} = {x.tolist() if isinstance(x, Tensor) else x}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)  # hypothesis shows it for a broken law


class Distance:
    """A loss for rules that need one: the squared distance to the target of each client.

    It uses the first 100 parameters.

    >>> from equipoise.testing._rounds import Distance
    >>> Distance(torch.zeros(2, 1))(torch.tensor([[3.0]]), torch.tensor([1]))
    tensor([9.], dtype=torch.float64)
    """

    def __init__(self, targets: Tensor) -> None:
        # 100 parameters keep the loss of large models cheap.
        self.targets = targets[:, :100].double()

    def __call__(self, models: Tensor, clients: Tensor) -> Tensor:
        """Return the losses (c,) of models (c, d) on the data of clients (c,)."""
        return (models[:, :100].double() - self.targets[clients]).square().sum(-1)

    def __repr__(self) -> str:
        return f"squared distance to {self.targets.tolist()}, by client"


@st.composite
def rounds(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    whole: bool | None = None,
    hostile: bool = True,
) -> RuleRound:
    """Draw a directed graph of up to six clients, with all round inputs of rules.

    Args:
        draw: given by hypothesis.
        dtypes: dtypes of the models.
        whole: whether models are small integers, so that exact ties are common; both by default.
        hostile: whether some messages are NaN, infinite, huge, zero, negated or copied.
    """
    n = draw(st.integers(1, 6))
    d = draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if whole is None:
        whole = draw(st.sampled_from([True, False]))
    own = _models(draw, n, d, generator, whole)
    kinds = draw(st.lists(st.sampled_from(HOSTILE), max_size=3)) if hostile else []
    bank = torch.stack([*own, *(_hostile_message(kind, own) for kind in kinds)])
    # Slots may repeat a message, but every sender sends a receiver at most one.
    k = draw(st.integers(0, n))
    slots = torch.randint(len(bank), (n, k), generator=generator)
    # The first k clients of a random order: all different.
    senders = torch.rand(n, n, generator=generator).argsort(1)[:, :k]
    mask = torch.rand(n, k, generator=generator) < draw(st.sampled_from([1.0, 0.9, 0.5]))
    inbox = Inbox(bank.to(dtype), slots, mask, senders)
    return RuleRound(own.to(dtype), inbox, _inputs(draw, own, k, generator, dtype))


def _models(draw: st.DrawFn, n: int, d: int, generator: torch.Generator, whole: bool) -> Tensor:
    if whole:
        rows = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
        return torch.tensor(draw(st.lists(rows, min_size=n, max_size=n)), dtype=torch.float64)
    noise = torch.randn(n + 1, d, generator=generator, dtype=torch.float64)
    # From near consensus to models that differ by more than their length.
    spread = draw(st.sampled_from([0.01, 0.3, 2.0]))
    # Rounded to float32, so that the same models are exact in both dtypes.
    return (noise[:1] + spread * noise[1:]).float().double()


def _hostile_message(kind: str, own: Tensor) -> Tensor:
    row = own[-1].clone()
    if kind in ("nan", "inf"):
        row[0] = math.nan if kind == "nan" else math.inf
    # 3e38 is near the largest float32, 3.4e38: its square, and its sum with another, overflow.
    values = {"huge": 1e30, "largest": 3e38, "zeros": 0.0}
    if kind in values:
        return torch.full_like(row, values[kind])
    return -row if kind == "negated" else row


def _inputs(
    draw: st.DrawFn, own: Tensor, k: int, generator: torch.Generator, dtype: torch.dtype
) -> dict[str, Any]:
    total = draw(st.integers(1, 9))
    noise = torch.randn(own.shape, generator=generator, dtype=torch.float64)
    inputs = {
        "t": draw(st.integers(0, total - 1)),
        "total": total,
        # Up to one more than there are messages: rules must clamp it.
        "tolerated": torch.randint(k + 2, (len(own),), generator=generator),
        "samples": torch.randint(1, 50, (len(own),), generator=generator),
        "loss_of": Distance(own + 0.3 * noise),
        "update": (0.1 * noise).to(dtype),
    }
    if draw(st.booleans()):
        # Own and the slots share 1 at random; some have no weight.
        shares = torch.rand(len(own), k + 1, generator=generator, dtype=torch.float64)
        shares[:, 1:] *= torch.rand(shares[:, 1:].shape, generator=generator) < 0.9
        inputs["gossip"] = shares[:, 1:] / shares.sum(1, keepdim=True)
    return inputs
