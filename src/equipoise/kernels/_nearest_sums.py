"""Sums of squared distances from each message to its nearest other messages, exact near ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise.kernels._blocks import ascending
from equipoise.kernels._edge_index import Group
from equipoise.kernels._exact import power_of_two
from equipoise.kernels._message_distances import (
    TINY,
    exact_message_distances,
    message_distances,
)
from equipoise.kernels._own_and_messages import OwnAndMessages
from equipoise.kernels._received_messages import ReceivedMessages

# Fast squared distances have a relative error of at most 1e-6, and so have sums of them, because
# all terms are positive. Two sums can therefore swap places only if they differ by less than
# (1 + 1e-6) / (1 - 1e-6) - 1 = 2e-6. Twice that leaves room for the rounding of the sums.
NEAR_TIE = 4e-6

# Ratios of scales are cut off here. Their squares stay finite in float64, whose largest power of
# two is 2**1023, after multiplication with squared distances of about 1.
LARGEST_RATIO = 2.0**1000


def nearest_sums(
    own: Tensor, inbox: ReceivedMessages, excluded: Tensor, *, include_own: bool = False
) -> Iterator[tuple[Group, Tensor]]:
    """Sum the squared distances from each message to its nearest other messages.

    Yields groups of receivers with the same number ``c`` of messages, and their sums (r, c) in
    float64. Of its ``c`` messages receiver i leaves out ``excluded[i]``, the message itself among
    them, but at least one other message counts. In each row, the lowest sum is exact: of equal
    messages all have the same sum, and close rivals are compared in float64. Sums that are
    certainly not the lowest may be infinite. NaN counts as minus infinity. With ``include_own``,
    own is one of the messages: see `OwnAndMessages`.
    """
    exact: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    if include_own:
        known = OwnAndMessages(own, inbox)
        exact = known.exact
        distances = iter(known)
    else:
        exact = exact_message_distances(inbox)
        distances = message_distances(own, inbox)
    for group, squares in distances:
        count = squares.shape[2]
        nearest = (count - excluded[group.receivers]).clamp(1, count - 1)
        sums = _sums_of_smallest(squares, nearest)
        which, place = _rivals(sums, squares, inbox.bank.dtype).nonzero(as_tuple=True)
        if len(which):
            rows = group.rows[which]
            found, scales = exact(group.rows[which, place, None].expand_as(rows), rows)
            squares[which, place] = _on_one_scale(found, scales, which, nearest)
            # The other sums of these receivers are on another scale, and beaten in any case.
            sums[which] = torch.inf
            sums[which, place] = _sums_of_smallest(squares[which, place, None], nearest[which])[
                :, 0
            ]
        yield group, _with_equal_messages(sums, squares)


def _sums_of_smallest(squares: Tensor, amount: Tensor) -> Tensor:
    """(r, p) sums of the ``amount`` (r,) smallest squares (r, p, c), without the zero to itself."""
    if squares.shape[2] == 1:
        return squares[:, 0]
    sums = ascending(squares)[:, :, 1:].cumsum(2)  # the first is its distance to itself, exactly 0
    last = (amount - 1)[:, None, None].expand(-1, squares.shape[1], 1)
    return sums.gather(2, last)[:, :, 0]


def _rivals(sums: Tensor, squares: Tensor, dtype: torch.dtype) -> Tensor:
    """(r, c) messages of which one has the lowest sum, where these squares cannot tell which."""
    if squares.shape[1] <= 2:  # their sums are equal
        return torch.zeros_like(sums, dtype=torch.bool)
    lowest = sums.amin(1, keepdim=True)
    rivals = sums <= (lowest * (1 + NEAR_TIE)).clamp_min(TINY)
    several = rivals.sum(1) > 1
    if not several.any():
        return rivals & lowest.isinf()
    # Rivals that are copies of one message are no doubt: their sums are equal.
    some = rivals[several]
    doubtful = several.clone()
    doubtful[several] = (some[:, :, None] & some[:, None, :] & (squares[several] > 0)).any(2).any(1)
    if dtype == torch.float64:
        # A difference of two float64 can be so small that its square vanishes, and different
        # messages look equal. The smallest float32 is 1e-45: its square is no problem.
        doubtful |= several & (lowest[:, 0] < TINY)
    return rivals & (doubtful | lowest[:, 0].isinf())[:, None]


def _on_one_scale(squares: Tensor, scales: Tensor, which: Tensor, nearest: Tensor) -> Tensor:
    """(p, c) squared distances of rivals (p,) of receivers ``which``, in one unit per receiver.

    The unit is close to the shortest distance from a rival to its last counted neighbor. Larger
    distances may become infinite, but they do not decide. The ones that decide never vanish.
    """
    reach = ascending(scales * squares.sqrt()).gather(1, nearest[which, None])[:, 0]
    reach = reach.clamp_max(LARGEST_RATIO)
    shortest = torch.full(nearest.shape, torch.inf, dtype=torch.float64, device=squares.device)
    shortest.scatter_reduce_(0, which, reach.where(reach > 0, torch.inf), "amin")
    ratio = scales / power_of_two(shortest)[which, None]
    ratio = ratio.clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
    return squares * ratio * ratio


def _with_equal_messages(sums: Tensor, squares: Tensor) -> Tensor:
    """The sums, where copies of the lowest message have its sum, regardless of rounding."""
    sums = sums.nan_to_num(nan=-torch.inf, posinf=torch.inf)
    lowest, best = sums.min(dim=1, keepdim=True)
    from_best = squares.gather(1, best[:, :, None].expand(-1, 1, squares.shape[2]))[:, 0]
    return torch.where(from_best == 0, lowest, sums)
