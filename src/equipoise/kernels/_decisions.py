"""Decisions between messages that depend on the distances between them, exact near ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise.kernels._edge_index import Group
from equipoise.kernels._exact import power_of_two
from equipoise.kernels._message_distances import exact_message_distances, message_distances, pieces
from equipoise.kernels._own_and_messages import OwnAndMessages
from equipoise.kernels._received_messages import ReceivedMessages

# Fast squared distances have a relative error of at most 1e-6, and so have sums of them, because
# all terms are positive. Two sums can therefore swap places only if they differ by less than
# (1 + 1e-6) / (1 - 1e-6) - 1 = 2e-6. Twice that leaves room for the rounding of the sums.
NEAR_TIE = 4e-6

# Ratios of scales are cut off here: their squares, times squared distances of about 1, stay finite
# in float64, whose largest power of two is 2**1023.
LARGEST_RATIO = 2.0**500

Choose = Callable[[Group, Tensor], tuple[Tensor, Tensor]]


def decide(
    own: Tensor, inbox: ReceivedMessages, choose: Choose, *, include_own: bool = False
) -> Iterator[tuple[Group, Tensor]]:
    """Choose by squared distances: groups of receivers, and what was chosen for each.

    ``choose(group, squares (r, c, c))`` returns a choice for each of the r receivers, and where it
    is in doubt, because another choice differs by less than `NEAR_TIE`. There it is called again
    with distances that are as exact as float64 allows, in some unit for each receiver. An attacker
    can make this slower, never wrong. With ``include_own``, own is one of the messages, the first
    of each group, in slot k.
    """
    exact: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    measured: Iterator[tuple[Group, Tensor]]
    if include_own:
        known = OwnAndMessages(own, inbox)
        exact = known.exact
        measured = (_own_first(one) for one in known)
    else:
        exact = exact_message_distances(inbox)
        measured = message_distances(own, inbox)
    for group, squares in measured:
        chosen, doubtful = choose(group, squares)
        if doubtful.any():
            some = Group(*(index[doubtful] for index in group))
            chosen[doubtful] = choose(some, exact_squares(exact, some.rows))[0]
        yield group, chosen


def _own_first(measured: tuple[Group, Tensor]) -> tuple[Group, Tensor]:
    """The last model of each receiver, which is own, becomes the first: it wins ties."""
    (receivers, columns, rows), squares = measured
    group = Group(receivers, columns.roll(1, dims=1), rows.roll(1, dims=1))
    return group, squares.roll((1, 1), dims=(1, 2))


def exact_distances(inbox: ReceivedMessages) -> Iterator[tuple[Group, Tensor]]:
    """Squared distances between the messages of each receiver, as exact as float64 allows.

    Yields groups, and (r, c, c) float64, in some unit for each receiver.
    """
    exact = exact_message_distances(inbox)
    for group in inbox._arrived.groups:
        for piece in pieces(group, group.rows.shape[1] ** 2):
            yield piece, exact_squares(exact, piece.rows)


def exact_squares(
    exact: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    rows: Tensor,
    unit: Tensor | None = None,
) -> Tensor:
    """(r, c, c) squared distances between rows (r, c), in units (r,), or in some unit for each."""
    count = rows.shape[1]
    left, right = torch.triu_indices(count, count, offset=1, device=rows.device)
    squares = torch.zeros(*rows.shape, count, dtype=torch.float64, device=rows.device)
    if not len(left):
        return squares
    found, scales = exact(rows[:, left].flatten(), rows[:, right].flatten())
    found = found.view(len(rows), -1)
    scales = scales.view(len(rows), -1)
    # The median distance is the unit. Distances that vanish next to it are equal to 0, and those
    # that overflow are equal to infinity. A minority can cause either for its own messages only.
    if unit is None:
        lengths = scales * found.sqrt()
        median = lengths.median(dim=1).values
        unit = power_of_two(median.where(median > 0, lengths.amax(1)))
    ratio = (scales / unit[:, None]).clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
    squares[:, left, right] = squares[:, right, left] = found * ratio * ratio
    return squares
