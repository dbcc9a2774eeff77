"""Random rounds, on which rules are tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from equipoise.messages import Inbox

HALVES = (torch.float16, torch.bfloat16)
HOSTILE = ("copy", "negated", "zeros", "nan", "inf", "huge", "largest")


class Round(NamedTuple):
    """What a rule is called with, for all clients: ``rule(own, inbox, **inputs)``."""

    own: Tensor
    inbox: Inbox
    inputs: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"{self.own.dtype}, n = {self.inbox.n}, k = {self.inbox.k}, d = {self.inbox.d}"]
        for i, own in enumerate(self.own.tolist()):
            lines.append(f"client {i}: own {own}")
            heard = zip(self.inbox.senders[i].tolist(), self.inbox.slots[i], self.inbox.mask[i].tolist(), strict=True)
            lines += [
                f"    from client {sender}: {self.inbox.bank[row].tolist()}" if shown else "    empty slot"
                for sender, row, shown in heard
            ]
        shown = {name: x.tolist() if isinstance(x, Tensor) else x for name, x in self.inputs.items()}
        return "\n".join([*lines, *(f"{name} = {value}" for name, value in shown.items())])

    def __repr__(self) -> str:
        return str(self)  # hypothesis shows this where a law is broken


class Distance:
    """Losses for rules that ask: the squared distance, in the first 100 parameters, to a target of the judging client.

    >>> from equipoise.testing._rounds import Distance
    >>> Distance(torch.zeros(2, 1))(torch.tensor([[3.0]]), torch.tensor([1]))
    tensor([9.], dtype=torch.float64)
    """

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets[:, :100].double()

    def __call__(self, models: Tensor, clients: Tensor) -> Tensor:
        """Losses (c,) of models (c, d) on the data of clients (c,)."""
        return (models[:, :100].double() - self.targets[clients]).square().sum(-1)

    def __repr__(self) -> str:
        return f"squared distance to {self.targets.tolist()}, by client"


@st.composite
def rounds(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    whole: bool | None = None,
    hostile: bool = True,
) -> Round:
    """A directed graph of up to six clients, and everything that a rule may ask for.

    Args:
        draw: given by hypothesis.
        dtypes: of the models.
        whole: models of small integers, in which ties are exact and common, or never; both if not given.
        hostile: some messages are NaN, infinite, huge, zero, negated or copied.
    """
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    own = _models(draw, n, d, generator, draw(st.sampled_from([True, False])) if whole is None else whole)
    kinds = draw(st.lists(st.sampled_from(HOSTILE), max_size=3)) if hostile else []
    bank = torch.stack([*own, *(_hostile(kind, own) for kind in kinds)])
    k = draw(st.integers(0, n))
    slots = torch.randint(len(bank), (n, k), generator=generator)
    senders = torch.rand(n, n, generator=generator).argsort(1)[:, :k]
    mask = torch.rand(n, k, generator=generator) < draw(st.sampled_from([1.0, 0.9, 0.5]))
    return Round(own.to(dtype), Inbox(bank.to(dtype), slots, mask, senders), _inputs(draw, own, k, generator, dtype))


def _models(draw: st.DrawFn, n: int, d: int, generator: torch.Generator, whole: bool) -> Tensor:
    if whole:
        rows = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
        return torch.tensor(draw(st.lists(rows, min_size=n, max_size=n)), dtype=torch.float64)
    noise = torch.randn(n + 1, d, generator=generator, dtype=torch.float64)
    return (noise[:1] + draw(st.sampled_from([0.01, 0.3, 2.0])) * noise[1:]).float().double()


def _hostile(kind: str, own: Tensor) -> Tensor:
    row = own[-1].clone()
    if kind in ("nan", "inf"):
        row[0] = math.nan if kind == "nan" else math.inf
    values = {"huge": 1e30, "largest": 3e38, "zeros": 0.0}
    return torch.full_like(row, values[kind]) if kind in values else -row if kind == "negated" else row


def _inputs(draw: st.DrawFn, own: Tensor, k: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    total = draw(st.integers(1, 9))
    noise = torch.randn(own.shape, generator=generator, dtype=torch.float64)
    return {
        "t": draw(st.integers(0, total - 1)),
        "total": total,
        "tolerated": torch.randint(k + 2, (len(own),), generator=generator),
        "samples": torch.randint(1, 50, (len(own),), generator=generator),
        "loss_of": Distance(own + 0.3 * noise),
        "update": (0.1 * noise).to(dtype),
    }
