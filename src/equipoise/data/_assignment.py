"""Assign examples to clients in random order, with a minimum number for each client."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from equipoise._utils.validation import check_count

Parts: TypeAlias = tuple[Tensor, ...]
TooLittle: TypeAlias = Literal["error", "top_up"]


def places_of_each(classes: int, places: int) -> Tensor:
    """Count the places of each class, if place s is for class ``s % classes``."""
    return (torch.arange(places, device="cpu") % classes).bincount(minlength=classes)


def random_ranks(groups: Tensor, generator: torch.Generator) -> Tensor:
    """Rank the examples of each group in random order, from 0."""
    shuffled = torch.randperm(len(groups), generator=generator, device="cpu")
    # Stable sort: the examples of a group lie together, in random order.
    together = shuffled[groups[shuffled].argsort(stable=True)]
    sizes = groups.bincount()
    # The position of the first example of the group, for each example in `together`.
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    ranks = torch.empty_like(groups)
    ranks[together] = torch.arange(len(groups), device="cpu") - starts
    return ranks


def parts_of(
    clients: Tensor, n: int, minimum: int, too_little: TooLittle, generator: torch.Generator
) -> Parts:
    """Group the examples by their client; check or fill up the sizes."""
    check_count("minimum", minimum, 0)
    if too_little not in ("error", "top_up"):
        raise ValueError(f"too_little must be 'error' or 'top_up', found {too_little!r}")
    if len(clients) < n * minimum:
        expected = f"n * minimum = {n * minimum} examples or more"
        raise ValueError(f"data must have {expected}, found {len(clients)}")
    if too_little == "top_up":
        clients = _topped_up(clients, n, minimum, generator)
    sizes = clients.bincount(minlength=n)
    if sizes.min() < minimum:
        small = int(sizes.argmin())
        raise ValueError(
            f"every client must have at least {minimum} examples (minimum), found {sizes[small]}"
            f" for client {small}, and too few for {int((sizes < minimum).sum())} of {n} clients;"
            " ask for fewer clients, a smaller minimum, another seed, or too_little='top_up'"
        )
    # Stable sort: the indices of each part ascend.
    return tuple(clients.argsort(stable=True).split(sizes.tolist()))


def _topped_up(clients: Tensor, n: int, minimum: int, generator: torch.Generator) -> Tensor:
    """Move as few examples as possible, from the largest clients, to reach the minimum."""
    sizes = clients.bincount(minlength=n)
    lacking = (minimum - sizes).clamp(min=0)
    given = _given_by_the_largest(sizes, int(lacking.sum()))
    moved = random_ranks(clients, generator) < given[clients]
    takers = torch.arange(n, device="cpu").repeat_interleave(lacking)
    topped_up = clients.clone()
    topped_up[moved] = takers[torch.randperm(len(takers), generator=generator, device="cpu")]
    return topped_up


def _given_by_the_largest(sizes: Tensor, total: int) -> Tensor:
    """Return the number of examples that each client gives.

    The largest client gives one example, ``total`` times in a row.
    """

    def above(level: int) -> Tensor:
        return (sizes - level).clamp(min=0)

    # Find the level at which cutting all clients down to it yields at least `total` examples, and
    # one level higher yields fewer. The number decreases with the level, hence the signs: bisect
    # needs an ascending key.
    levels = range(int(sizes.max()) + 1)
    level = bisect_right(levels, -total, key=lambda level: -int(above(level).sum())) - 1
    given = above(level)
    too_many = int(given.sum()) - total
    # The level may yield too many. The first clients above it then keep one more example each.
    given[given.nonzero().flatten()[:too_many]] -= 1
    return given
