"""Rounds of one client with weights, for the laws of rules that contain own."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor


class Neighborhood(NamedTuple):
    """One client, its messages (k, d), their weights (k,), and how many it tolerates."""

    own: Tensor
    received: Tensor
    gossip: Tensor
    tolerated: int

    def benign_sets(self) -> list[list[int]]:
        """The sets of messages that leave out at most the tolerated weight."""
        k = len(self.gossip)
        bound = self.tolerated_weight() * (1 + 1e-9)
        sets = [list(some) for size in range(k + 1) for some in combinations(range(k), size)]
        return [some for some in sets if self.gossip.sum() - self.gossip[some].sum() <= bound]

    def tolerated_weight(self) -> Tensor:
        """b: the weight of the heaviest messages."""
        return self.gossip.sort(descending=True).values[: self.tolerated].sum()


@st.composite
def neighborhoods(draw: st.DrawFn) -> Neighborhood:
    """Up to six messages at distances of different sizes, in few dimensions so that they align."""
    k = draw(st.integers(1, 6))
    d = draw(st.sampled_from([1, 2, 5]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    own = torch.randn(d, generator=generator, dtype=torch.float64)
    steps = torch.randn(k, d, generator=generator, dtype=torch.float64)
    # Benign neighbors on one side and lies on the other are the worst case of gossip rules.
    signs = torch.randint(2, (k, 1), generator=generator) * 2 - 1
    if draw(st.booleans()):
        steps = steps.abs() * signs
    sizes = torch.tensor(
        draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.1, 2.0, 30.0]), min_size=k, max_size=k))
    )
    steps = sizes[:, None] * steps / steps.norm(dim=1, keepdim=True)
    shares = torch.ones(k + 1, dtype=torch.float64)
    if draw(st.booleans()):
        shares = torch.rand(k + 1, generator=generator, dtype=torch.float64)
    return Neighborhood(own, own + steps, shares[1:] / shares.sum(), draw(st.integers(0, k)))
