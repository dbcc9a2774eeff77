"""Weights and distances of the messages of each client, as gossip rules use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from equipoise import kernels
from equipoise._utils.validation import describe
from equipoise.messages import Inbox
from equipoise.rules._guarantees import check_guarantee
from equipoise.rules.base import as_tolerated

# Sums of weights are compared with each other: is the weight of two messages half of all? Weights
# such as 1/3 are rounded, so that sums which are equal on paper differ by up to k * 1e-16. This is
# far above that, and no weight of interest is such a small share of the others.
SAME_WEIGHT = 1e-9

# Gossip weights may be given in float32, in which the weights of 1,000 messages sum to 1 + 1e-4 at
# worst and to 1 + 1e-7 usually.
EXCESS = 1e-5

LARGEST = torch.finfo(torch.float64).max


class Edges(NamedTuple):
    """The messages of each client, as a gossip rule sees them."""

    weights: Tensor  # (n, k) float64, 0 where no message is present
    distances: Tensor  # (n, k) to own, float64, infinite where no message is present
    tolerated: Tensor  # (n,) the total weight that malicious neighbors may have
    others: Tensor  # (n,) the weight of all messages without it, exactly 0 if none is left
    norms: Tensor  # (n,) of own


def edges_of(rule: Any, own: Tensor, inbox: Inbox, inputs: dict[str, Any], share: float) -> Edges:
    """Weights, distances and tolerated weights.

    Warns, or raises if the rule is strict, where the tolerated weight reaches the given share of
    the weight of all messages.
    """
    f = as_tolerated(rule, inputs.get("tolerated"), inbox)
    gossip = inputs.get("gossip")
    # The guarantee is about neighbors, not about finite messages: see `check_guarantee`.
    check_weights(f, gossip_weights(gossip, inbox, inbox.mask), share, strict=rule.strict)
    # Distances first: a kernel that measures them also finds out which messages are present.
    distances, norms = own_distances(own, inbox)
    weights = gossip_weights(gossip, inbox, inbox.present)
    sums = _sums_of_heaviest(weights)
    tolerated = sums.gather(1, f.clamp_max(inbox.k)[:, None])[:, 0]
    return Edges(weights, distances, tolerated, sums[:, -1] - tolerated, norms)


def gossip_weights(gossip: Tensor | None, inbox: Inbox, accepted: Tensor) -> Tensor:
    """(n, k) float64 weights of the accepted messages, 0 elsewhere; own has the remainder to 1.

    They are those of the round input ``gossip``, or 1 / (c + 1) for c accepted messages.
    """
    if gossip is None:
        return accepted.double() / (accepted.sum(1, keepdim=True) + 1)
    shape = tuple(inbox.slots.shape)
    if not isinstance(gossip, Tensor) or not gossip.is_floating_point() or gossip.shape != shape:
        expected = f"a floating-point tensor with one weight per slot, shape (n, k) = {shape}"
        raise ValueError(f"gossip must be {expected}, found {describe(gossip)}")
    # Masked slots may hold anything.
    known = gossip.to(inbox.slots.device, torch.float64).where(inbox.mask, 0.0)
    total = kernels.row_sums(known)
    # NaN fails the comparisons.
    if not ((known >= 0).all() and (total <= 1 + EXCESS).all()):
        found = f"weights from {known.min():.6g} with sums up to {total.max():.6g}"
        raise ValueError(
            f"gossip must be at least 0 and sum to at most 1 for each client, found {found}"
        )
    return (known / total.clamp_min(1)[:, None]).where(accepted, 0.0)


def check_weights(tolerated: Tensor, weights: Tensor, share: float, *, strict: bool) -> None:
    """Warn, or raise if ``strict``, where the tolerated weight reaches a share of all weights."""
    sums = _sums_of_heaviest(weights)
    # The largest number whose weight stays below the share; of equal weights 1/2 of four is two.
    limit = share * sums[:, -1:]
    reached = sums > limit * (1 + SAME_WEIGHT) if share < 1 else sums >= limit * (1 - SAME_WEIGHT)
    most = (~reached).sum(1) - 1
    check_guarantee(tolerated, most, (weights > 0).sum(1), strict=strict)


def _sums_of_heaviest(weights: Tensor) -> Tensor:
    """(n, k + 1) the sums of the 0, 1, ..., k largest weights."""
    return pad(weights.sort(dim=1, descending=True).values.cumsum(1), (1, 0))


def own_distances(own: Tensor, inbox: Inbox) -> tuple[Tensor, Tensor]:
    """Distances (n, k) that are finite where a message is present, and norms of own (n,)."""
    distances, norms = kernels.distances(own, inbox)
    return finite_where_present(distances, inbox), norms


def finite_where_present(distances: Tensor, inbox: Inbox) -> Tensor:
    """Distances, of which only those of absent messages are infinite."""
    # The distance between two finite models may overflow float64. It still is a distance, and its
    # message is far away, not absent.
    return distances.clamp_max(LARGEST).where(inbox.present, torch.inf)


def keep_broken(weights: Tensor, norms: Tensor) -> Tensor:
    """Weights that are 0 for clients whose own model is not finite: they keep it."""
    return weights.where(norms.isfinite()[:, None], 0.0)


def nearest(distances: Tensor, senders: Tensor, weights: Tensor, amount: Tensor) -> Tensor:
    """(n, k) the weights of the nearest messages, ``amount`` (n,) in total; 0 elsewhere.

    A message at the boundary has the part of its weight that is left. Equal distances are taken by
    ascending client id.
    """
    place = kernels.rank_with_ties(distances, senders)
    ordered = weights.gather(1, place.argsort(dim=1))
    left = amount[:, None] - (ordered.cumsum(1) - ordered)
    # On paper, nothing is left behind the last message that counts, and no message loses a part of
    # its weight to rounding.
    rounding = SAME_WEIGHT * amount[:, None]
    taken = torch.where(left >= ordered - rounding, ordered, left.where(left > rounding, 0.0))
    return taken.gather(1, place)


def all_but_farthest(distances: Tensor, senders: Tensor, weights: Tensor, amount: Tensor) -> Tensor:
    """(n, k) the weights without those of the farthest messages that weigh ``amount`` at most.

    Messages are left out whole. Equal distances are kept by ascending client id.
    """
    place = kernels.rank_with_ties(distances, senders)
    ordered = weights.gather(1, place.argsort(dim=1))
    from_here_on = ordered.flip(1).cumsum(1).flip(1)
    is_left_out = from_here_on <= amount[:, None] * (1 + SAME_WEIGHT)
    return ordered.where(~is_left_out, 0.0).gather(1, place)


def chosen_exactly(
    choose: Callable[..., Tensor], own: Tensor, inbox: Inbox, edges: Edges, amount: Tensor
) -> Tensor:
    """`nearest` or `all_but_farthest`, where distances close to the boundary are exact."""
    taken = choose(edges.distances, inbox.senders, edges.weights, amount)
    place = kernels.rank_with_ties(edges.distances, inbox.senders)
    last = pad(place.where(taken > 0, -1), (1, 0), value=-1).amax(1)
    # Rounding in a fast kernel must not decide which messages are taken: see `exact_near_ranks`.
    exact = kernels.exact_near_ranks(own, inbox, edges.norms, edges.distances, last)
    if exact is edges.distances:
        return taken
    return choose(finite_where_present(exact, inbox), inbox.senders, edges.weights, amount)


def adaptive_radius(weights: Tensor, distances: Tensor, tolerated: Tensor) -> Tensor:
    r"""(n, 1) :math:`\sqrt{\sum_j w_j d_j^2 / b}`; the largest number where b is 0."""
    counted = distances.where(weights > 0, 0.0)
    # In units of the largest distance, since its square may overflow.
    unit = pad(counted, (1, 0)).amax(1, keepdim=True)
    squares = (counted / unit).where(unit > 0, 0.0).square()
    radius = unit * (kernels.row_sums(weights * squares)[:, None] / tolerated[:, None]).sqrt()
    return radius.where(tolerated[:, None] > 0, LARGEST).clamp_max(LARGEST)
