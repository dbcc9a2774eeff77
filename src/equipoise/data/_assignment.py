"""Examples dealt out to clients: in random order, and so that everybody has enough."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from equipoise._utils.validation import check_count

Parts: TypeAlias = tuple[Tensor, ...]
TooLittle: TypeAlias = Literal["error", "top_up"]


def places_of_each(classes: int, places: int) -> Tensor:
    """How many places each class has, if place s is for class ``s % classes``."""
    return (torch.arange(places, device="cpu") % classes).bincount(minlength=classes)


def random_ranks(groups: Tensor, generator: torch.Generator) -> Tensor:
    """The place of every example, from 0, among the examples of its group in random order."""
    shuffled = torch.randperm(len(groups), generator=generator, device="cpu")
    together = shuffled[groups[shuffled].argsort(stable=True)]
    sizes = groups.bincount()
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    ranks = torch.empty_like(groups)
    ranks[together] = torch.arange(len(groups), device="cpu") - starts
    return ranks


def parts_of(clients: Tensor, n: int, least: int, too_little: TooLittle, generator: torch.Generator) -> Parts:
    """The examples of every client, from the client of every example."""
    check_count("least", least, 0)
    if too_little not in ("error", "top_up"):
        raise ValueError(f"too_little must be 'error' or 'top_up', found {too_little!r}")
    if len(clients) < n * least:
        raise ValueError(f"data must have n * least = {n * least} examples or more, found {len(clients)}")
    if too_little == "top_up":
        clients = _topped_up(clients, n, least, generator)
    sizes = clients.bincount(minlength=n)
    if sizes.min() < least:
        raise ValueError(
            f"every client must have at least {least} examples (least), found {int(sizes.min())} for client"
            f" {int(sizes.argmin())}, and too few for {int((sizes < least).sum())} of {n} clients; ask for fewer"
            " clients, a smaller least, another seed, or too_little='top_up'"
        )
    return tuple(clients.argsort(stable=True).split(sizes.tolist()))


def _topped_up(clients: Tensor, n: int, least: int, generator: torch.Generator) -> Tensor:
    """Move as few examples as possible, from the largest clients, so that every client has ``least``."""
    sizes = clients.bincount(minlength=n)
    lacking = (least - sizes).clamp(min=0)
    given = _given_by_the_largest(sizes, int(lacking.sum()))
    moved = random_ranks(clients, generator) < given[clients]
    takers = torch.arange(n, device="cpu").repeat_interleave(lacking)
    topped_up = clients.clone()
    topped_up[moved] = takers[torch.randperm(len(takers), generator=generator, device="cpu")]
    return topped_up


def _given_by_the_largest(sizes: Tensor, total: int) -> Tensor:
    """How many examples each client gives if the largest one gives one, ``total`` times over."""

    def above(level: int) -> Tensor:
        return (sizes - level).clamp(min=0)

    level = bisect_right(range(int(sizes.max()) + 1), -total, key=lambda level: -int(above(level).sum())) - 1
    given = above(level)
    too_many = int(given.sum()) - total
    given[given.nonzero().flatten()[:too_many]] -= 1
    return given
