"""Models near consensus, and distances in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import Inbox


def near_consensus(n: int, d: int, spread: float, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(n + d)
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    return (common + spread * torch.randn(n, d, generator=generator, dtype=torch.float64)).to(dtype)


def direct(own: Tensor, inbox: Inbox) -> Tensor:
    messages = inbox.bank.double()[inbox.slots]
    return (messages - own.double()[:, None]).norm(dim=2).where(inbox.present, torch.inf)
