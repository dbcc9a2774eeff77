"""Searches for the strength of a lie, for all victims at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.attacks._rule_queries import RuleQueries
from equipoise.types import Aggregated

# Bisection ends at this relative precision. A bracket of a factor of 2 reaches it in 14 steps, one
# that begins at 0 in more; 30 steps bound the number of queries.
PRECISION = 1e-4
MAX_BISECTIONS = 30
# A rule that accepts a lie at this many times the length of the models accepts any lie.
FARTHEST = 2.0**12
# Strengths relative to the length of the start, descending: powers of 2 above the models, eighths
# around them, where damage may change sign, and powers of 8 down to the rounding of float32.
GRID = (
    *(2.0**k for k in range(12, 0, -1)),
    *(k / 8 for k in range(12, 0, -1)),
    *(2.0**-k for k in range(4, 20, 3)),
    0.0,
)
# Damage within this share of the largest counts as the largest: beyond the plateau of a robust rule
# a lie only becomes easier to detect.
DAMAGE_TOLERANCE = 1e-3
# A search that climbs to a maximum shortens its step by this factor after the first failure. Two
# steps, one to each side, then halve it: 8 of them reach 1/16 of the last doubling.
SHORTER = 0.5**0.5


def literal_strength(queries: RuleQueries, start: float, tolerance: float) -> Tensor:
    """(a,) the search in the code of Shejwalkar and Houmansadr."""
    tested = queries.start.new_full((len(queries.start),), start, dtype=torch.float64)
    step = start
    succeeded = torch.zeros_like(tested)
    damage = torch.full_like(tested, -1)  # any first damage is larger, as in the authors' code
    while ((succeeded - tested).abs() > tolerance).any() and step > tolerance / 4:
        found = queries.damage(queries.outcome(tested))
        is_larger = found > damage
        searching = (succeeded - tested).abs() > tolerance
        succeeded = torch.where(is_larger & searching, tested, succeeded)
        moved = torch.where(is_larger, tested + step / 2, tested - step / 2)
        tested = torch.where(searching, moved, tested)
        damage = found
        step = step / 2
    return succeeded


def largest_strength(queries: RuleQueries) -> Tensor:
    """(a,) the largest accepted strength, or the most harmful one for rules without weights."""
    unit = queries.unit()
    at_start = queries.outcome(torch.zeros_like(unit))
    weighted = queries.has_weights(at_start)
    if not weighted.any():
        return _most_harmful(queries, unit)
    accepted = _largest_accepted(queries, unit.where(weighted, 0.0), queries.accepted(at_start))
    return accepted if weighted.all() else accepted.where(weighted, _most_harmful(queries, unit))


def most_damage(damage: Callable[[Tensor], Tensor], start: Tensor, queries: int) -> Tensor:
    """(a,) strengths >= 0 that do much damage, found from ``start`` by that many queries.

    Steps double while damage grows, then shorten around the best strength so far.
    """
    best = start
    most = damage(best)
    step = torch.ones_like(best)
    is_growing = torch.ones_like(best, dtype=torch.bool)
    for query in range(1, queries):
        # Shorter steps take turns between the two sides.
        tested = torch.where(is_growing | (query % 2 == 0), best + step, best - step).clamp_min(0)
        found = damage(tested)
        is_better = found > most  # False for NaN
        best = torch.where(is_better, tested, best)
        most = torch.where(is_better, found, most)
        is_growing = is_growing & is_better
        step = torch.where(is_growing, 2 * step, SHORTER * step)
    return best


def _largest_accepted(queries: RuleQueries, unit: Tensor, accepts_start: Tensor) -> Tensor:
    """(a,) the largest accepted strength; 0 where ``unit`` is 0."""
    inner = torch.zeros_like(unit)
    known_good = accepts_start
    if not accepts_start.all():
        closest = queries.closest()
        near = queries.accepted(queries.outcome(closest))
        inner = closest.where(near & ~accepts_start, 0.0)
        known_good = accepts_start | near
    low, high = _bracket(queries, inner, known_good, unit)
    return _bisect(queries, low, high, queries.accepted)[0]


def _most_harmful(queries: RuleQueries, unit: Tensor) -> Tensor:
    """(a,) the smallest strength with nearly the largest damage of the grid; it may be 0."""
    found = torch.stack([queries.damage(queries.outcome(unit * step)) for step in GRID])
    enough = found.amax(0) * (1 - DAMAGE_TOLERANCE)
    # The grid descends, so the weakest sufficient strength is the last one.
    last = len(GRID) - 1 - (found >= enough).flip(0).to(torch.int8).argmax(0)
    grid = found.new_tensor([*GRID, 0.0])

    def is_weaker(out: Aggregated) -> Tensor:
        return queries.damage(out) < enough

    return _bisect(queries, unit * grid[last + 1], unit * grid[last], is_weaker)[1]


def _bracket(
    queries: RuleQueries, inner: Tensor, known_good: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor]:
    """(a,) an accepted strength and a rejected one.

    Where ``inner`` is accepted, search outward in doubling steps. Elsewhere, search the grid
    inward; both are 0 if no strength of the grid is accepted.
    """
    low = inner
    high = torch.zeros_like(unit)
    # From 1 / 64 of the length of the models, 18 doublings reach FARTHEST; the grid has 31 steps.
    step = unit / 64
    rising = known_good & (unit > 0)
    searching = ~known_good
    for farther, nearer in zip((FARTHEST, *GRID), GRID, strict=False):
        tested = torch.where(known_good, inner + step, unit * nearer)
        accepted = queries.accepted(queries.outcome(tested))
        found = searching & accepted
        rising = rising & accepted & (step < unit * FARTHEST)
        low = torch.where(found | (known_good & accepted & (tested > low)), tested, low)
        high = torch.where(found, unit * farther, high)
        step = torch.where(rising, step * 2, step)
        searching = searching & ~found
        if not (rising | searching).any():
            break
    return low, torch.where(known_good, torch.maximum(low, inner + step), high)


def _bisect(
    queries: RuleQueries, low: Tensor, high: Tensor, is_low: Callable[[Aggregated], Tensor]
) -> tuple[Tensor, Tensor]:
    """Halve the brackets (a,) until they are precise; ``is_low`` places the middle."""
    for _ in range(MAX_BISECTIONS):
        if not (high - low > PRECISION * high).any():
            break
        middle = (low + high) / 2
        up = is_low(queries.outcome(middle))
        low = torch.where(up, middle, low)
        high = torch.where(up, high, middle)
    return low, high
