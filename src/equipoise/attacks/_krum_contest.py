"""Find the strength of a lie that Krum would choose, without running Krum for each strength."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The search ends at this strength, as in the code of both sources.
MIN_STRENGTH = 1e-5
# From 1 to below MIN_STRENGTH there are 17 halvings, hence at most 18 strengths to test.
MAX_HALVINGS = 18
# Squared distances compared at once: 2^17 float64 values, 1 MiB, stay in the cache.
MAX_COMPARED = 1 << 17
# Each pass halves at least once: 200 of them end the search from any start below 1e55.
MAX_PASSES = 200


class KrumContest(NamedTuple):
    """Krum's choice between c benign messages and some equal lies, for each of r victims."""

    squares: Tensor  # (r, c, c) squared distances between the benign messages
    from_base: Tensor  # (r, c) squared distances to the start of the lie
    slope: Tensor  # (r, c) how these shrink along the direction of the lie
    step: Tensor  # (r,) squared length of the direction
    malicious_degree: Tensor  # (r,) number of lies
    lies_win_ties: Tensor  # (r, c) whether a benign message has a higher id than the lie
    alone: Tensor  # (r,) whether there is no benign neighbor

    def upper_bound(self, d: int) -> Tensor:
        """(r,) the bound of Fang et al. on the strength that Krum can choose."""
        count = self.squares.shape[1]
        # The first distance is that to the message itself, 0.
        sums = self.squares.sqrt().sort(dim=2).values.cumsum(2)
        nearest = min(max(count - 2, 1), count - 1) if count > 1 else 0
        # All messages of a group have the same number of present neighbors, so this is one index.
        smallest = sums[:, :, nearest].amin(1)
        others = (count - self.malicious_degree - 1).clamp_min(1)
        return (smallest / others + self.from_base.amax(1).sqrt()) / math.sqrt(d)

    def strength(self, start: Tensor) -> Tensor:
        """(r,) the first of the halvings of ``start`` that Krum chooses, or that is too small."""
        strength = start
        searching = torch.ones_like(start, dtype=torch.bool)
        several = min(max(MAX_COMPARED // self.squares.numel(), 1), MAX_HALVINGS)
        halvings = 0.5 ** torch.arange(several + 1, dtype=start.dtype, device=start.device)
        for _ in range(MAX_PASSES):
            tested = strength[:, None] * halvings
            candidates = tested[:, :-1]
            ends = (self._chosen(candidates) | (candidates <= MIN_STRENGTH)).to(torch.int8)
            # Without an end among the candidates, go on from the next halving.
            place = torch.where(ends.any(1), ends.argmax(1), several)
            strength = torch.where(searching, tested.gather(1, place[:, None])[:, 0], strength)
            searching = searching & ~ends.any(1)
            if not searching.any():
                break
        return strength

    def _chosen(self, strengths: Tensor) -> Tensor:
        """(r, h) whether Krum chooses lies of h strengths."""
        r, h = strengths.shape
        squares = self.squares.repeat_interleave(h, 0)
        malicious_degree = self.malicious_degree.repeat_interleave(h, 0)
        lies_win_ties = self.lies_win_ties.repeat_interleave(h, 0)
        x = strengths[:, :, None]
        to_lie = (
            self.from_base[:, None]
            - 2 * x * self.slope[:, None]
            + x.square() * self.step[:, None, None]
        )
        to_lie = to_lie.flatten(0, 1).clamp_min(0)  # rounding may make a squared distance negative
        chosen = _is_chosen(squares, to_lie, malicious_degree, lies_win_ties)
        return chosen.view(r, h) | self.alone[:, None]


def _is_chosen(
    squares: Tensor, to_lie: Tensor, malicious_degree: Tensor, lies_win_ties: Tensor
) -> Tensor:
    """(r,) whether Krum chooses one of ``malicious_degree`` equal lies among benign messages.

    ``squares`` (r, c, c) are the squared distances between benign messages, ``to_lie`` (r, c) those
    to the lie, and ``lies_win_ties`` (r, c) marks messages with a higher id than the lie.
    """
    r, count = to_lie.shape
    copies = torch.arange(int(malicious_degree.max()), device=malicious_degree.device)
    # Krum sums the distances to the m - f - 2 = count - 2 nearest messages, at least 1, at most
    # all.
    nearest = torch.full_like(malicious_degree, count - 2).clamp_min(1)
    nearest = (nearest.minimum(count + malicious_degree - 1) - 1)[:, None]
    # Absent copies of the lie, and each message itself, are infinitely far and sort last.
    to_copies = to_lie[:, :, None].expand(-1, -1, len(copies))
    to_copies = to_copies.where(copies < malicious_degree[:, None, None], torch.inf)
    itself = torch.eye(count, dtype=torch.bool, device=malicious_degree.device)
    from_benign = torch.cat([squares.masked_fill(itself, torch.inf), to_copies], 2)
    sums = from_benign.sort(dim=2).values.cumsum(2)
    benign_scores = sums.gather(2, nearest[:, :, None].expand(-1, count, 1))[:, :, 0]
    between = torch.zeros_like(copies, dtype=torch.float64).expand(r, -1)
    between = between.where(copies < malicious_degree[:, None] - 1, torch.inf)
    from_lie = torch.cat([to_lie, between], 1).sort(dim=1).values.cumsum(1)
    lie_score = from_lie.gather(1, nearest)
    return ((lie_score < benign_scores) | ((lie_score == benign_scores) & lies_win_ties)).all(1)
