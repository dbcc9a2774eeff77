"""The bars for rounds, with one thread, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.goals import Goal
from benchmarks.round_costs import ONE_CLIENT
from benchmarks.round_results import RoundResults

# With BALANCE: by workload, the share of the time of the fastest of these contenders.
SHARES: dict[str, tuple[float, tuple[str, ...]]] = {
    "A": (0.30, ("channels-last",)),
    "B": (0.70, ("vmap",)),
    "C": (0.35, ("vmap",)),
    "D": (0.25, ("plain",)),
    "E-BN": (0.85, ("plain", "channels-last")),
    "E-GN": (0.85, ("plain", "channels-last")),
}
MOST_FAULTS = 1_000  # per round on D, after the third round
MOST_MEMORY = 3.0  # times the models and the examples, on D
MOST_MOMENTUM = 1.1  # times the time without momentum, on D
MOST_OVERHEAD = 1.2  # milliseconds of a small round outside training and the rule
MOST_ONE_CLIENT = 0.2  # milliseconds of a rule for one client


def bars(results: RoundResults) -> Iterator[Goal]:
    for workload, (most, names) in SHARES.items():
        cell = results.find(workload, "Balance")
        value = None if cell is None else cell.ratio(names)
        yield Goal(f"{workload}, Balance, ours / {' or '.join(names)}", value, high=most)
    for cell in results.cells:
        value = cell.ratio(cell.others)
        yield Goal(f"{cell.workload}, {cell.rule}, ours / fastest", value, high=1.0)
    alone = results.alone.get("D")
    yield Goal("D, page faults a round", alone and alone.faults, high=MOST_FAULTS)
    yield Goal("D, peak memory / models and data", alone and alone.multiple, high=MOST_MEMORY)
    costs = results.costs
    yield Goal("D, momentum / none", costs.get("momentum"), high=MOST_MOMENTUM)
    yield Goal("20 x 2,000, overhead in ms", costs.get("overhead"), high=MOST_OVERHEAD)
    for rule in ONE_CLIENT:
        name = f"one client, {rule}"
        yield Goal(f"{name}, ms", costs.get(name), high=MOST_ONE_CLIENT)


def report_bars(results: RoundResults) -> bool:
    """Print all bars; whether none is missed."""
    checked = list(bars(results))
    print()
    for bar in checked:
        verdict = "not measured" if bar.value is None else "missed" if bar.missed else "met"
        print(f"{verdict:13}{bar}")
    return not any(bar.missed for bar in checked)
