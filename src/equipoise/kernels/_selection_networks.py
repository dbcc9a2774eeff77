"""Selection networks: compare-exchange steps that keep the middle of a list.

A network is a list of steps ``(i, j, low, high)``: put the smaller of items i and j at i if
``low``, the larger at j if ``high``. On tensors, one step is a ``minimum`` and a ``maximum`` over
whole blocks, without branches and indices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Step(NamedTuple):
    """Compare items i and j; write the smaller to i if ``low``, the larger to j if ``high``."""

    i: int
    j: int
    low: bool
    high: bool


class Network(NamedTuple):
    """Steps, and the positions that hold the wanted items afterwards."""

    steps: tuple[Step, ...]
    kept: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Number of minima and maxima."""
        return sum(step.low + step.high for step in self.steps)


@lru_cache(maxsize=256)
def middle(count: int, trim: int) -> Network:
    """The cheaper network that drops the ``trim`` smallest and largest of ``count`` items."""
    return min(extraction(count, trim), sorting(count, trim), key=lambda network: network.cost)


@lru_cache(maxsize=256)
def sorting(count: int, trim: int = 0) -> Network:
    """Batcher's merge exchange (Knuth, TAOCP 3, 5.2.2 M); keeps items trim to count - trim - 1."""
    wanted = range(trim, count - trim)
    return Network(_pruned(_merge_exchange(count), set(wanted)), tuple(wanted))


@lru_cache(maxsize=256)
def extraction(count: int, trim: int) -> Network:
    """Drop the minimum and the maximum of a set just large enough that both are extremes; repeat.

    Among ``count`` items, the minimum of any ``count - trim + 1`` is one of the ``trim`` smallest.
    """
    waiting = list(range(count))
    held: list[int] = []
    pairs: list[tuple[int, int]] = []
    for dropped in range(trim):
        # Of the count - 2 * dropped items that are left, trim - dropped must go on each side. A set
        # of this size lacks fewer than that, so its extremes are among those that must go.
        while len(held) < count - dropped - trim + 1:
            held.append(waiting.pop(0))
        low, high = _tournament(held, pairs)
        held = [item for item in held if item not in (low, high)]
    kept = held + waiting
    return Network(_pruned(pairs, set(kept)), tuple(kept))


def _tournament(items: list[int], pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """Append steps that bring the minimum and the maximum to the two returned positions."""
    # Pairs first: the minimum is among the smaller ones, the maximum among the larger ones. This
    # takes 3 n / 2 comparisons instead of 2 n.
    half = len(items) // 2
    lows = items[:half]
    highs = items[half : 2 * half]
    odd = items[2 * half :]
    pairs.extend(zip(lows, highs, strict=True))
    while len(lows) > 1:
        pairs.append((lows[0], lows[1]))
        lows = [*lows[2:], lows[0]]
    # The odd item comes last, so that it stays in its place if it is large.
    pairs.extend((lows[0], item) for item in odd)
    highs = odd + highs
    while len(highs) > 1:
        pairs.append((highs[0], highs[1]))
        highs = [*highs[2:], highs[1]]
    return lows[0], highs[0]


def _merge_exchange(count: int) -> list[tuple[int, int]]:
    # The variables p, q, r and d (here distance) are those of Knuth's algorithm.
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q = top
        r = 0
        distance = p
        while True:
            pairs.extend((i, i + distance) for i in range(count - distance) if i & p == r)
            if q == p:
                break
            distance = q - p
            q //= 2
            r = p
        p //= 2
    return pairs


def _pruned(pairs: list[tuple[int, int]], wanted: set[int]) -> tuple[Step, ...]:
    """Only the steps, and the sides of steps, that the wanted positions depend on."""
    # Backwards: an output that no later step reads, and that is not kept, need not be computed.
    steps: list[Step] = []
    for i, j in reversed(pairs):
        if i in wanted or j in wanted:
            steps.append(Step(i, j, i in wanted, j in wanted))
            wanted |= {i, j}
    return tuple(reversed(steps))


# Values of compiled networks, one vector each: AVX2 has 16 registers. The header exports it to C.
MAX_IN_REGISTERS = 16
SIDES = {(True, True): "EXCHANGE", (True, False): "KEEP_LOWER", (False, True): "KEEP_HIGHER"}


def c_header() -> str:
    """The networks as C macros, for native/csrc/networks.h; run this module to print them."""
    lines = [
        "/* Selection networks, printed by python -m equipoise.kernels._selection_networks. */"
    ]
    return "\n".join([*lines, *_small_networks(), *_sorters()]) + "\n"


def _small_networks() -> list[str]:
    # Every trim that leaves at least one value.
    cases = [
        (count, trim)
        for count in range(1, MAX_IN_REGISTERS + 1)
        for trim in range((count + 1) // 2)
    ]
    lines = [
        "#define NETWORKS(APPLY) " + " ".join(f"APPLY({count}, {trim})" for count, trim in cases)
    ]
    for count in range(1, MAX_IN_REGISTERS + 1):
        lines.append(f"#define VALUES_{count} " + " ".join(f"READ({i})" for i in range(count)))
    for count, trim in cases:
        network = middle(count, trim)
        means = [f"MEAN_FIRST({network.kept[0]})", *(f"MEAN_NEXT({i})" for i in network.kept[1:])]
        lines += [f"#define NETWORK_{count}_{trim} {_in_c(network.steps)}".rstrip()]
        lines += [f"#define MEAN_{count}_{trim} {' '.join(means)}"]
    return lines


def _sorters() -> list[str]:
    """Sorting networks for each half of up to twice as many values."""
    # Lists of 17 to 32 values are split into halves of 8 to 16, which fit the registers.
    counts = range((MAX_IN_REGISTERS + 1) // 2, MAX_IN_REGISTERS + 1)
    lines = [
        f"#define MAX_IN_REGISTERS {MAX_IN_REGISTERS}",
        "#define SORTERS(APPLY) " + " ".join(f"APPLY({i})" for i in counts),
    ]
    for count in counts:
        lines.append(f"#define SORT_{count} {_in_c(sorting(count).steps)}")
        lines.append(f"#define PLACES_{count} " + " ".join(f"WRITE({i})" for i in range(count)))
    return lines


def _in_c(steps: tuple[Step, ...]) -> str:
    return " ".join(f"{SIDES[step.low, step.high]}({step.i}, {step.j})" for step in steps)


if __name__ == "__main__":
    print(c_header(), end="")
