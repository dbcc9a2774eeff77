"""Krum: the received model that has the nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.kernels import TINY, ascending, power_of_two
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee, check_tolerance
from equipoise.rules.base import WeightedRule, as_tolerated


@dataclass(frozen=True)
class Krum(WeightedRule):
    r"""The received model with the smallest sum of squared distances to its nearest other received models.

    .. math:: \mathrm{AGG}_i = \arg\min_{w_j, j \in N_i} \sum_{l \in \text{nearest}_q(j)} \|w_j - w_l\|^2, \qquad
              q = |N_i| - f_i - 2

    Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, NeurIPS 2017, as in
    section 6.1.2 of the BALANCE paper: own is neither a candidate nor a neighbour. The guarantee needs
    :math:`|N_i| \ge 2 f_i + 3`. Beyond it Krum still answers, with a warning; where :math:`q` would leave 1 to
    :math:`|N_i| - 1`, it is clamped to it, and a single message is taken. Equal scores go to the lowest client id
    (with two neighbours, as on a ring, scores are always equal).

    Args:
        tolerated: the number :math:`f_i` of malicious neighbours to expect; can also be given at the call.
        strict: raise if :math:`|N_i| < 2 f_i + 3` instead of warning.

    >>> received = torch.tensor([[0.0], [0.1], [0.3], [0.6], [9.0]])
    >>> out = eq.Krum(tolerated=1)(torch.zeros(1), received)
    >>> out.model, out.weights
    (tensor([0.1000]), tensor([0., 1., 0., 0., 0.]))
    """

    isotropic: ClassVar[bool] = True

    tolerated: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, self.strict)

    def weigh(self, own: Tensor, inbox: Inbox, *, tolerated: int | Tensor | None = None, **_: Any) -> Tensor:
        """1 for the chosen message."""
        f = as_tolerated(self, tolerated, self.tolerated, inbox)
        degrees = inbox.mask.sum(1)
        check_guarantee(f, (degrees - 3) // 2, degrees, strict=self.strict)
        weights = torch.zeros(inbox.slots.shape, dtype=torch.float64, device=own.device)
        exact = kernels.exact_message_distances(inbox)
        for group, squares in kernels.message_distances(own, inbox):
            amount, senders = f[group.receivers], inbox.senders[group.receivers[:, None], group.columns]
            scores = _scores(squares, amount)
            which, place = _rivals(scores, squares, inbox.bank.dtype).nonzero(as_tuple=True)
            if len(which):
                rows = group.rows[which]
                found = exact(group.rows[which, place, None].expand_as(rows), rows)
                squares[which, place] = _on_one_scale(*found, which, amount)
                scores[which] = torch.inf
                scores[which, place] = _scores(squares[which, place, None], amount[which])[:, 0]
            chosen = _lowest_score(scores, squares, senders)
            weights[group.receivers, group.columns.gather(1, chosen[:, None])[:, 0]] = 1
        return weights


def _scores(squares: Tensor, tolerated: Tensor) -> Tensor:
    """(r, p) sum of the squared distances to the q nearest other messages, from (r, p, c) squared distances."""
    if squares.shape[2] == 1:
        return squares[:, 0]
    sums = ascending(squares)[:, :, 1:].cumsum(2)  # the first is its distance to itself, an exact zero
    last = _nearest(squares.shape[2], tolerated) - 1
    return sums.gather(2, last[:, None, None].expand(-1, squares.shape[1], 1))[:, :, 0]


def _nearest(count: int, tolerated: Tensor) -> Tensor:
    """(r,) how many of the other messages make a score, where there are some."""
    return (count - tolerated - 2).clamp(1, count - 1)


def _rivals(scores: Tensor, squares: Tensor, dtype: torch.dtype) -> Tensor:
    """(r, c) messages one of which is best, where these squares cannot tell which; all others are beaten.

    Different messages may score too much alike for float32, and squares may leave the range of float64.
    """
    if squares.shape[1] <= 2:  # their scores are equal
        return torch.zeros_like(scores, dtype=torch.bool)
    best = scores.amin(1, keepdim=True)
    rivals = scores <= (best * (1 + 4e-6)).clamp_min(TINY)
    several = rivals.sum(1) > 1
    some = rivals[several]
    doubtful = several.clone()
    doubtful[several] = (some[:, :, None] & some[:, None, :] & (squares[several] > 0)).any(2).any(1)
    if dtype == torch.float64:
        doubtful |= several & (best[:, 0] < TINY)  # the square of a narrower difference never vanishes
    return rivals & (doubtful | best[:, 0].isinf())[:, None]


def _on_one_scale(squares: Tensor, scales: Tensor, which: Tensor, tolerated: Tensor) -> Tensor:
    """(p, c) squared distances of rivals (p,) of the receivers ``which``, in a unit that each receiver's rivals share.

    The unit is close to the shortest way from a rival to its q-th neighbour: what is far away may become infinite,
    which costs nobody a digit, and what decides never vanishes.
    """
    nearest = _nearest(squares.shape[1], tolerated)[which, None]
    reach = ascending(scales * squares.sqrt()).gather(1, nearest)[:, 0].clamp_max(2.0**1000)
    shortest = torch.full(tolerated.shape, torch.inf, dtype=torch.float64, device=squares.device)
    shortest.scatter_reduce_(0, which, reach.where(reach > 0, torch.inf), "amin")
    ratio = (scales / power_of_two(shortest)[which, None]).clamp(2.0**-1000, 2.0**1000)
    return squares * ratio * ratio


def _lowest_score(scores: Tensor, squares: Tensor, senders: Tensor) -> Tensor:
    """(r,) position of the lowest score, of the lowest sender where scores are equal; NaN, as in argmin, is lowest.

    Equal messages have equal scores, whatever rounding made of them.
    """
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf)
    lowest, best = scores.min(dim=1, keepdim=True)
    equal = squares.gather(1, best[:, :, None].expand(-1, 1, squares.shape[2]))[:, 0] == 0
    return senders.where((scores == lowest) | equal, torch.iinfo(torch.int64).max).argmin(1)
