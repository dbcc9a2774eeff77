"""Scalar products of messages around a center, from their distances, in float64.

Rules that iterate over weights of messages need only these products: no step passes over the
parameters. For ``x`` relative to a center, ``<x, y> = (|x|^2 + |y|^2 - |x - y|^2) / 2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels._decisions import exact_squares
from equipoise.kernels._distances import distances
from equipoise.kernels._edge_index import Group
from equipoise.kernels._exact import careful_cosines, power_of_two
from equipoise.kernels._message_distances import exact_message_distances, message_distances
from equipoise.kernels._norms import is_tame, norms
from equipoise.kernels._received_messages import ReceivedMessages

# The formula above has an error of 1e-6 |x_l|^2 for the longer one of two messages. Weights are at
# most inverse to distances, so that messages count by their directions: divided by both lengths,
# the error is 1e-6 times the ratio of the lengths, where no length counts as less than the usual
# distance, or the radius of clipping. Up to a ratio of eight, 1e-5 remains. Beyond that, scalar
# products of the models themselves are computed in float64, with an error of 1e-16 of the product
# of their norms: this is exact enough for messages far from the center, whatever their size.
FAR = 8.0

LARGEST = torch.finfo(torch.float64).max


class CenteredProducts(NamedTuple):
    """Messages of a group of receivers around a center, in units in which none is far away.

    Message j of a receiver is ``center + unit * scales_j * y_j``, and ``products_jl`` is
    ``<y_j, y_l>``. No ``y_j`` is much longer than ``usual``. The unit is 1, except for models that
    are so large or small that squares do not fit a float64.
    """

    group: Group
    products: Tensor  # (r, c, c)
    scales: Tensor  # (r, c)
    usual: Tensor  # (r,)
    unit: Tensor  # (r,)

    def part(self, chosen: Tensor) -> CenteredProducts:
        """The chosen receivers only."""
        group = Group(*(index[chosen] for index in self.group))
        others = (self.products, self.scales, self.usual, self.unit)
        return CenteredProducts(group, *(x[chosen] for x in others))

    def relative_distances(self, shares: Tensor) -> Tensor:
        """(r, c) distances ``|message_j - v| / scales_j`` for shares of ``y_j`` in ``v - center``.

        They are in units.
        """
        along = (self.products * shares[:, None, :]).sum(2)
        length = (along * shares).sum(1, keepdim=True)
        squares = self.products.diagonal(dim1=1, dim2=2)
        found = squares - 2 * along / self.scales + length / self.scales / self.scales
        return found.clamp_min_(0).sqrt_()  # rounding can make the square of zero negative

    def length(self, shares: Tensor) -> Tensor:
        """(r,) length of ``sum(shares_j * y_j)``, in units."""
        squares = ((self.products * shares[:, None, :]).sum(2) * shares).sum(1)
        return squares.clamp_min_(0).sqrt_()


def centered_products(
    own: Tensor, centers: Tensor, inbox: ReceivedMessages, *, reach: float | None = None
) -> Iterator[CenteredProducts]:
    """Scalar products of the messages of each receiver around its center, ``centers`` (n, d).

    Centers are finite. Messages far beyond ``reach`` are scaled. By default, it is the median of
    the distances of each receiver.
    """
    between = message_distances(own, inbox, by_size=False)
    # Where all messages are compared, distances to own are among these, and need no other pass.
    first = list(islice(between, 1))
    apart, _ = distances(centers, inbox)
    # The distance of finite float64 models may overflow.
    apart.clamp_max_(LARGEST)
    exact = exact_message_distances(inbox)
    for group, squares in chain(first, between):
        lengths = apart[group.receivers[:, None], group.columns]
        usual = _usual(lengths) if reach is None else torch.full_like(lengths[:, 0], reach)
        unit = torch.ones_like(usual)
        wild = ~is_tame(usual, usual)
        if wild.any():
            unit[wild] = power_of_two(usual[wild])
            squares[wild] = exact_squares(exact, group.rows[wild], unit[wild])
            lengths = lengths / unit[:, None]
            usual = usual / unit
        is_far = lengths > FAR * usual[:, None]
        scales = (lengths / usual[:, None]).clamp_max(LARGEST).where(is_far, 1.0)
        is_huge = is_far & ~is_tame(lengths, lengths)  # the square may not fit a float64
        inside = lengths.where(~is_huge, 0.0).square()
        products = (inside[:, :, None] + inside[:, None, :] - squares) / 2
        products = products / scales[:, :, None] / scales[:, None, :]
        differ = scales[:, :, None] > FAR * scales[:, None, :]
        careful = differ | differ.mT | is_huge[:, :, None] | is_huge[:, None, :]
        which, left, right = careful.nonzero(as_tuple=True)
        if len(which):
            rows = (group.rows[which, left], group.rows[which, right])
            lengths_of_units = scales * unit[:, None]
            both = (lengths_of_units[which, left], lengths_of_units[which, right])
            products[which, left, right] = _far_products(
                inbox, centers, rows, group.receivers[which], both
            )
        products.diagonal(dim1=1, dim2=2).copy_((lengths / scales).square())
        yield CenteredProducts(group, products, scales, usual, unit)


def _usual(lengths: Tensor) -> Tensor:
    """(r,) the median length, or the largest one if most are 0, or 1 if all are."""
    median = lengths.median(dim=1).values
    found = median.where(median > 0, lengths.amax(1))
    return found.where(found > 0, 1.0)


def _far_products(
    inbox: ReceivedMessages,
    centers: Tensor,
    rows: tuple[Tensor, Tensor],
    around: Tensor,
    scales: tuple[Tensor, Tensor],
) -> Tensor:
    """(p,) ``<x_left - center, x_right - center>``, divided by both scales."""
    bank = inbox.bank
    left, right = rows
    known = inbox.bank_norms
    sizes = norms(centers)
    # Lengths are divided by scales before they are multiplied, so that no product overflows.
    a = known[left] / scales[0]
    b = known[right] / scales[1]
    center_a = sizes[around] / scales[0]
    center_b = sizes[around] / scales[1]
    both = _cosines(bank, left, bank, right, known[left], known[right]) * a * b
    with_left = _cosines(centers, around, bank, left, sizes[around], known[left]) * a * center_b
    with_right = _cosines(centers, around, bank, right, sizes[around], known[right]) * b * center_a
    return both - with_left - with_right + center_a * center_b


def _cosines(
    a: Tensor, a_rows: Tensor, b: Tensor, b_rows: Tensor, a_norms: Tensor, b_norms: Tensor
) -> Tensor:
    """Cosines pair by pair, 0 with a zero vector."""
    return careful_cosines(a, a_rows, b, b_rows, a_norms, b_norms).nan_to_num_(nan=0.0)
