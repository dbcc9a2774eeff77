"""Messages that are clipped around own, as another bank."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.messages import Inbox
from equipoise.rules._wrapper import Changed, in_order


def clipped(own: Tensor, inbox: Inbox, distances: Tensor, radius: Tensor) -> Changed | None:
    """Messages at most ``radius`` (n, 1) away from own, whose distances (n, k) are given."""
    # w_i + f_j (w_j - w_i) with f_j = min(1, radius / distance).
    factors = kernels.clip_factors(radius, distances).where(inbox.present, 0.0)
    if not ((factors < 1) & inbox.present).any():
        return None
    # Each clipped message is an aggregate of its own: a receiver of own and of the message.
    receivers, columns = inbox.present.nonzero(as_tuple=True)
    kept = factors[receivers, columns]
    rows = torch.stack([receivers, len(own) + inbox.slots[receivers, columns]], 1)
    shares = torch.stack([1 - kept, kept], 1)
    senders = torch.arange(2, device=rows.device).expand_as(rows)
    both = Inbox(torch.cat([own[:, :1], inbox.bank[:, :1]]), rows, shares > 0, senders)
    nothing = torch.zeros_like(kept)

    def write(some: slice, out: Tensor) -> None:
        bank = torch.cat([own[:, some], inbox.bank[:, some]])
        kernels.combine(out, nothing, both.with_bank(bank), shares, out=out)

    slots = in_order(inbox.present)
    return Changed(
        len(rows), slots, inbox.mask, inbox.senders, write, lambda weights: weights * factors
    )


def distances_around(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) distances between own and messages; infinite where no message is present."""
    distances, _ = kernels.distances(own, inbox)
    # The distance between two finite models may overflow float64. It still is a distance, and its
    # message must be clipped, not rejected.
    largest = torch.finfo(torch.float64).max
    return distances.clamp_max(largest).where(inbox.present, torch.inf)
