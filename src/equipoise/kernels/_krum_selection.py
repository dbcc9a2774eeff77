"""Messages with the lowest sums of squared distances to their nearest others, exact near ties."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels._blocks import ascending
from equipoise.kernels._decisions import NEAR_TIE, decide
from equipoise.kernels._edge_index import Group
from equipoise.kernels._message_distances import TINY
from equipoise.kernels._received_messages import ReceivedMessages


def krum_selection(
    own: Tensor,
    inbox: ReceivedMessages,
    tolerated: Tensor,
    amount: Tensor,
    *,
    one_by_one: bool = False,
    include_own: bool = False,
) -> Tensor:
    """(n, k) the ``amount`` (n,) messages of each receiver with the lowest Krum scores.

    A score is the sum of the squared distances from a message to its ``c - tolerated - 2`` nearest
    others, at least one, of the ``c`` messages that are present. Equal scores go to the lowest
    sender. With ``one_by_one``, a message leaves the others as soon as it is selected, and scores
    are computed again without it, as Bulyan does. With ``include_own``, own is one of the messages,
    in a last column, (n, k + 1), and wins ties.
    """

    def choose(group: Group, squares: Tensor) -> tuple[Tensor, Tensor]:
        f = tolerated[group.receivers]
        wanted = amount[group.receivers]
        if one_by_one:
            return _select_repeatedly(squares, f, wanted, inbox.bank.dtype)
        nearest = (squares.shape[1] - f - 2).clamp(1, max(1, squares.shape[1] - 1))
        sums = _sums_of_nearest(squares, nearest)
        return _lowest(sums, squares, nearest, wanted, inbox.bank.dtype)

    selected = inbox.mask.new_zeros(inbox.n, inbox.k + include_own)
    for group, chosen in decide(own, inbox, choose, include_own=include_own):
        selected[group.receivers[:, None], group.columns] = chosen
    return selected


def _sums_of_nearest(squares: Tensor, nearest: Tensor) -> Tensor:
    """(r, c) sums of the ``nearest`` (r,) smallest squared distances to other messages."""
    if squares.shape[1] == 1:
        return squares[:, 0]
    # The first is the distance of a message to itself, exactly 0.
    sums = ascending(squares)[:, :, 1:].cumsum(2)
    last = (nearest - 1)[:, None, None].expand(-1, squares.shape[1], 1)
    return sums.gather(2, last)[:, :, 0]


def _lowest(
    sums: Tensor, squares: Tensor, nearest: Tensor, wanted: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(r, c) the ``wanted`` (r,) lowest sums, and (r,) where these squares cannot tell which."""
    sums = sums.nan_to_num(nan=-torch.inf, posinf=torch.inf)
    # Columns are in the order of senders, so that a stable sort gives ties to the lowest one.
    order = sums.argsort(dim=1, stable=True)
    ranks = order.argsort(dim=1)
    selected = ranks < wanted[:, None]
    ascending_sums = sums.gather(1, order)
    last = ascending_sums.gather(1, (wanted - 1).clamp_min(0)[:, None])
    beyond = wanted.clamp_max(sums.shape[1] - 1)[:, None]
    some_are_left = (wanted > 0) & (wanted < sums.shape[1])
    close = ascending_sums.gather(1, beyond) <= _upper(last, dtype)
    doubtful = some_are_left & close[:, 0]
    if doubtful.any():
        rivals = (sums <= _upper(last, dtype)) & (_upper(sums, dtype) >= last)
        doubtful &= ~_are_tied(rivals, sums, squares, nearest, dtype)
    return selected, doubtful


def _upper(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest sum that may in truth be as low as a given one."""
    # Squares of float32 differences are at least 1e-90. Those of float64 may vanish.
    return (sums * (1 + NEAR_TIE)).clamp_min(TINY if dtype == torch.float64 else 0.0)


def _are_tied(
    rivals: Tensor, sums: Tensor, squares: Tensor, nearest: Tensor, dtype: torch.dtype
) -> Tensor:
    """(r,) where all rivals (r, c) have equal sums for certain."""
    lowest = sums.where(rivals, torch.inf).amin(1)
    equal = ((sums == lowest[:, None]) | ~rivals).all(1) & lowest.isfinite()
    # The sum of one distance is that of a pair, which two messages share.
    of_one_pair = nearest == 1
    both = rivals[:, :, None] & rivals[:, None, :]
    are_copies = ~(both & (squares > 0)).flatten(1).any(1)
    if dtype == torch.float64:
        # Differences whose squares vanish look like copies.
        far_above = lowest > TINY
        return equal & far_above & (of_one_pair | are_copies)
    return equal & (of_one_pair | are_copies)


def _select_repeatedly(
    squares: Tensor, tolerated: Tensor, wanted: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(r, c) messages that are selected one after the other, and (r,) where this is in doubt."""
    receivers, count = squares.shape[:2]
    selected = torch.zeros(receivers, count, dtype=torch.bool, device=squares.device)
    doubtful = torch.zeros(receivers, dtype=torch.bool, device=squares.device)
    # The distance to itself comes last, and never counts.
    apart = squares.clone()
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    apart, neighbors = apart.sort(dim=2)
    for step in range(int(wanted.max())):
        active = step < wanted
        left = ~selected
        nearest = (count - step - tolerated - 2).clamp(1, max(1, count - step - 1))
        # The nearest messages that are left are the first ones in the order of distances.
        are_left = left[:, None, :].expand_as(neighbors).gather(2, neighbors)
        counted = are_left & (are_left.cumsum(2) <= nearest[:, None, None])
        sums = apart.where(counted, 0.0).sum(2)
        if count - step == 1:
            sums = torch.zeros_like(sums)
        # Those that are selected already come last.
        sums = sums.nan_to_num(nan=-torch.inf, posinf=torch.inf).masked_fill(selected, torch.inf)
        lowest, close = _lowest(sums, squares, nearest, torch.ones_like(wanted), dtype)
        # If nothing else is left, there is no doubt.
        doubtful |= close & active & (count - step > 1)
        selected |= lowest & left & active[:, None]
    return selected, doubtful
