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
    is_clipped = (factors < 1) & inbox.present
    if not is_clipped.any():
        return None
    # Each clipped message is an aggregate of its own: a receiver of own and of the message.
    receivers, columns = is_clipped.nonzero(as_tuple=True)
    share = factors[receivers, columns]
    own_row = kernels.first_row(own, inbox.bank)
    messages = inbox.slots[receivers, columns] + (len(own) if own_row is None else 0)
    rows = torch.stack([receivers + (own_row or 0), messages], 1)
    shares = torch.stack([1 - share, share], 1)
    senders = torch.arange(2, device=rows.device).expand_as(rows)
    sources = [inbox.bank] if own_row is not None else [own, inbox.bank]
    both = Inbox(torch.cat([x[:, :1] for x in sources]), rows, shares > 0, senders)
    nothing = torch.zeros_like(share)
    # The other messages are rows of the bank, behind the clipped ones, and shared by receivers.
    whole = inbox.present & ~is_clipped
    used, places = inbox.slots[whole].unique(return_inverse=True)
    slots = in_order(is_clipped).where(inbox.present, len(rows) + len(used))
    slots[whole] = len(rows) + places

    def write(some: slice, out: Tensor) -> None:
        parts = [x[:, some] for x in sources]
        bank = torch.cat(parts) if len(parts) > 1 else parts[0]
        clipped_rows = out[: len(rows)]
        kernels.combine(clipped_rows, nothing, both.with_bank(bank), shares, out=clipped_rows)
        torch.index_select(inbox.bank[:, some], 0, used, out=out[len(rows) :])

    return Changed(
        len(rows) + len(used),
        slots,
        inbox.mask,
        inbox.senders,
        write,
        lambda weights: weights * factors,
    )


def distances_around(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) distances between own and messages; infinite where no message is present."""
    distances, _ = kernels.distances(own, inbox)
    # The distance between two finite models may overflow float64. It still is a distance, and its
    # message must be clipped, not rejected.
    largest = torch.finfo(torch.float64).max
    return distances.clamp_max(largest).where(inbox.present, torch.inf)
