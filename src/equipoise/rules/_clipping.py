"""Messages that are clipped around own, as another bank."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.kernels import TILE, chunks
from equipoise.messages import Inbox
from equipoise.rules._wrapper import Changed, in_order

# Smaller factors lose digits in float32, whose normal numbers start at 1.2e-38.
TINY_FACTOR = 1e-25


def clipped(own: Tensor, inbox: Inbox, distances: Tensor, radius: Tensor) -> Changed | None:
    """Messages at most ``radius`` (n, 1) away from own, whose distances (n, k) are given."""
    # w_i + f_j (w_j - w_i) with f_j = min(1, radius / distance).
    factors = kernels.clip_factors(radius, distances).where(inbox.present, 0.0)
    if not ((factors < 1) & inbox.present).any():
        return None
    receivers, columns = inbox.present.nonzero(as_tuple=True)
    rows = inbox.slots[receivers, columns]
    shares = factors[receivers, columns, None]
    is_tiny = (shares < TINY_FACTOR)[:, 0].nonzero().flatten()
    dtype = kernels.compute_dtype(own)
    plain = shares.to(dtype)
    rest = (1 - shares).to(dtype)

    def write(some: slice, out: Tensor) -> None:
        for part in chunks(some.stop - some.start, len(rows), TILE):
            here = slice(some.start + part.start, some.start + part.stop)
            theirs = kernels.gather(inbox.bank, rows, here).mul_(plain)
            out[:, part] = theirs.add_(kernels.gather(own, receivers, here).mul_(rest))
            if len(is_tiny):
                theirs = kernels.gather(inbox.bank, rows[is_tiny], here) * shares[is_tiny]
                mine = kernels.gather(own, receivers[is_tiny], here) * (1 - shares[is_tiny])
                out[is_tiny, part] = (theirs + mine).to(out.dtype)

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
