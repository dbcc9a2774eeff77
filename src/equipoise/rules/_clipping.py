"""Messages that are clipped around own, as another bank."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.kernels import TILE, chunks
from equipoise.messages import Inbox
from equipoise.rules._wrapper import Changed, in_order, new_bank

# Smaller factors lose digits in float32, whose normal numbers start at 1.2e-38.
TINY_FACTOR = 1e-25


def clipped(
    own: Tensor, inbox: Inbox, memory: Tensor, distances: Tensor, radius: Tensor
) -> Changed:
    """Messages at most ``radius`` (n, 1) away from own, whose distances (n, k) are given."""
    # w_i + f_j (w_j - w_i) with f_j = min(1, radius / distance).
    factors = kernels.clip_factors(radius, distances).where(inbox.present, 0.0)
    if not ((factors < 1) & inbox.present).any():
        return Changed(inbox, lambda weights: weights)
    receivers, columns = inbox.present.nonzero(as_tuple=True)
    rows = inbox.slots[receivers, columns]
    bank = new_bank(len(rows), int(inbox.mask.sum()), memory)
    shares = factors[receivers, columns, None]
    # The factor of a huge message may be below the smallest float32.
    is_tiny = (shares < TINY_FACTOR)[:, 0].nonzero().flatten()
    dtype = kernels.compute_dtype(own)
    for part in chunks(inbox.d, len(rows), TILE):
        theirs = kernels.gather(inbox.bank, rows, part).mul_(shares.to(dtype))
        mine = kernels.gather(own, receivers, part).mul_((1 - shares).to(dtype))
        bank[: len(rows), part] = theirs.add_(mine)
        if len(is_tiny):
            theirs = kernels.gather(inbox.bank, rows[is_tiny], part).double() * shares[is_tiny]
            mine = kernels.gather(own, receivers[is_tiny], part).double() * (1 - shares[is_tiny])
            bank[is_tiny, part] = (theirs + mine).to(bank.dtype)
    others = Inbox(bank, in_order(inbox.present, bank), inbox.mask, inbox.senders)
    return Changed(others, lambda weights: weights * factors)


def distances_around(own: Tensor, inbox: Inbox) -> Tensor:
    """(n, k) distances between own and messages; infinite where no message is present."""
    distances, _ = kernels.distances(own, inbox)
    # The distance between two finite models may overflow float64. It still is a distance, and its
    # message must be clipped, not rejected.
    largest = torch.finfo(torch.float64).max
    return distances.clamp_max(largest).where(inbox.present, torch.inf)
