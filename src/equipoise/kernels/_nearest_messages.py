"""The nearest messages of each message, exact near ties."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.kernels._decisions import NEAR_TIE, decide
from equipoise.kernels._edge_index import Group
from equipoise.kernels._message_distances import TINY
from equipoise.kernels._received_messages import ReceivedMessages


def nearest_messages(
    own: Tensor, inbox: ReceivedMessages, excluded: Tensor
) -> Iterator[tuple[Group, Tensor]]:
    """Groups of receivers, and (r, c, c) whether message l is among the nearest of message j.

    All but ``excluded[i]`` of the messages of receiver i are near, and at least one: a message is
    the nearest of itself. Of others with equal distances, those of the lowest senders are nearer.
    """

    def choose(group: Group, squares: Tensor) -> tuple[Tensor, Tensor]:
        count = squares.shape[1]
        amount = (count - excluded[group.receivers]).clamp(1, count)
        squares.diagonal(dim1=1, dim2=2).fill_(-1)  # before copies of the message
        squares = squares.nan_to_num(nan=-1.0, posinf=torch.inf)
        # Columns are in the order of senders, so that a stable sort gives ties to the lowest one.
        ordered, order = squares.sort(dim=2, stable=True)
        near = order.argsort(dim=2) < amount[:, None, None]
        return near, _is_doubtful(squares, ordered, order, amount, inbox.bank.dtype)

    return decide(own, inbox, choose)


def _is_doubtful(
    squares: Tensor, ordered: Tensor, order: Tensor, amount: Tensor, dtype: torch.dtype
) -> Tensor:
    """(r,) where the last near message and the next one are about equally far."""
    receivers, count = squares.shape[:2]
    last = (amount - 1)[:, None, None].expand(receivers, count, 1)
    following = last + (amount < count)[:, None, None].long()
    farthest = ordered.gather(2, last)
    next_one = ordered.gather(2, following)
    limit = (farthest * (1 + NEAR_TIE)).clamp_min(TINY if dtype == torch.float64 else 0.0)
    close = ((next_one <= limit) & (following > last) & (last > 0))[:, :, 0]
    doubtful = close.any(1)
    if not doubtful.any():
        return doubtful
    # Two copies of one message are no doubt, unless their difference vanished.
    which, place = close.nonzero(as_tuple=True)
    left = order.gather(2, last)[which, place, 0]
    right = order.gather(2, following)[which, place, 0]
    apart = squares[which, left, right] > 0
    if dtype == torch.float64:
        apart |= next_one[which, place, 0] <= TINY
    return torch.zeros_like(doubtful).index_put_((which[apart],), doubtful.new_ones(()))
