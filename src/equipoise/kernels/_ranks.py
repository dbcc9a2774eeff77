"""Messages in the order of their distances, exact where the order decides."""

from __future__ import annotations

from torch import Tensor

from equipoise.kernels._distances import sharpened
from equipoise.kernels._received_messages import ReceivedMessages


def value_at_rank(values: Tensor, rank: Tensor) -> Tensor:
    """(n, 1) the value of the given rank (n,) in each row of ``values`` (n, k), 0 is the smallest.

    Negative ranks count as 0. Without columns the result is 0.
    """
    if values.shape[1] == 0:
        return values.new_zeros(len(values), 1)
    return values.sort(dim=1).values.gather(1, rank.clamp_min(0)[:, None])


def exact_near_ranks(
    own: Tensor, inbox: ReceivedMessages, sizes: Tensor, measured: Tensor, *ranks: Tensor
) -> Tensor:
    """Measured distances (n, k), those close to one of the given ranks (n,) as exact as in float64.

    A message is chosen or rejected by comparison with the distance of some rank. Rounding in a
    fast kernel must not decide that: an attacker could place messages where it does.
    """
    # Thresholds are taken before any distance is replaced, so that the ranks do not influence each
    # other.
    thresholds = [value_at_rank(measured, rank)[:, 0] for rank in ranks]
    for threshold in thresholds:
        measured = sharpened(own, inbox, sizes, measured, threshold)
    return measured


def rank_with_ties(values: Tensor, senders: Tensor) -> Tensor:
    """(n, k) rank of each value in its row, from 0: ties by sender, infinite values last."""
    # Slots are ordered by sender first, so that the stable sort by value leaves ties in this order.
    # The last argsort inverts the permutation: from the slot of each rank to the rank of each slot.
    by_sender = senders.argsort(dim=1)
    by_value = values.gather(1, by_sender).argsort(dim=1, stable=True)
    return by_sender.gather(1, by_value).argsort(dim=1)
