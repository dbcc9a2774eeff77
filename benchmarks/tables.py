"""The results as text during a run, and as markdown afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.goals import (
    BYZFL,
    COPIES,
    GROWTH,
    LARGER_THAN_CACHE,
    NAIVE,
    SHARE_OF_SPEED_UP,
    Bars,
    Goal,
    limit_of,
    most_copies,
    over_limit,
)
from benchmarks.racing import Row
from benchmarks.results import Results
from benchmarks.scale import ScaleRow
from benchmarks.workloads import WORKLOADS, Workload

PEERS = {"naive": "naive", "byzfl": "byzfl", "flower": "Flower"}
OURS = ("native", "fresh", "torch")
Cell = Callable[[Row], str]


# Text.


def heading(workload: Workload) -> str:
    copies = "".join(f"{name:>9}" for name in OURS)
    peers = "".join(f"{name:>10}" for name in PEERS.values())
    columns = f"{'rule':14}{'threads':>8}{'ms':>10}{copies}{peers}{'speed-up':>10}{'MiB':>6}"
    return f"\nworkload {workload.name}: {workload}\n{columns}"


def lines(row: Row, n: int) -> str:
    """One line for every number of threads."""
    return "\n".join(line(row, threads, n) for threads in row.ms)


def line(row: Row, threads: str, n: int) -> str:
    ours = row.time("ours", threads)
    ms = "-" if ours is None else f"{ours:.1f}"
    copies = "".join(f"{number(row.ratio(name, 'copy', threads)):>9}" for name in OURS)
    peers = "".join(f"{peer_cell(row, name, threads, n):>10}" for name in PEERS)
    faster = "-" if threads == "1" else number(row.speed_up("ours", threads))
    memory = "-" if row.memory_mib is None else f"{row.memory_mib:.0f}"
    return f"{row.rule:14}{threads:>8}{ms:>10}{copies}{peers}{faster:>10}{memory:>6}"


def peer_cell(row: Row, peer: str, threads: str, n: int) -> str:
    """A ratio; with a star where it is scaled up from some of the clients."""
    ratio = row.ratio(peer, "ours", threads)
    if ratio is None:
        return ("fails" if peer in row.failures else "-") + " "
    return number(ratio) + ("*" if row.clients[peer] < n else " ")


def number(value: float | None) -> str:
    """Three digits, or two of small numbers."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


SCALE_HEADING = f"{'rule':14}{'ns':>9}{'workload 3':>12}{'ratio':>8}{'same d':>9}{'MiB':>6}"


def scale_line(row: ScaleRow) -> str:
    memory = "-" if row.memory_mib is None else f"{row.memory_mib:.0f}"
    times = f"{row.large:9.3f}{row.reference:12.3f}{row.growth:8.2f}{row.same_d:9.3f}"
    return f"{row.rule:14}{times}{memory:>6}"


def notes(results: Results) -> str:
    lines = [
        "",
        "native, fresh, torch: multiples of a copy of the models; fresh is native without out=",
        "naive, byzfl, Flower: how many times longer than native (torch where there is no native"
        " library)",
        "* measured on some of the clients, scaled to all; see `clients` in the output of --json",
    ]
    if not results.settings["native"]:
        lines.append("the native library is not used, so only torch is measured")
    for peer, package in (("byzfl", "byzfl"), ("flower", "flwr")):
        if results.settings[peer] is None:
            lines.append(
                f"{package} is not installed, so nothing is compared with it:"
                f" pip install --no-deps {package}"
            )
    if results.settings["memory"] and any(row.memory_mib is None for row in results.rows):
        lines.append("peak memory is measured on Linux only")
    for row in results.rows:
        lines += [
            f"{row.rule} of {candidate} fails on workload {row.workload}: {why}"
            for candidate, why in row.failures.items()
        ]
    return "\n".join(lines)


# Markdown.


def markdown(results: Results) -> str:
    """All tables of the README: rules by workloads."""
    parts = [
        markdown_table(title, cell, results)
        for title, cell in markdown_tables(results)
        if any_of(cell, results)
    ]
    return "\n\n".join([*parts, *([markdown_scale(results.scale)] if results.scale else [])])


def markdown_tables(results: Results) -> Iterator[tuple[str, Cell]]:
    """Titles and cells of the tables."""
    for candidate in OURS:
        title = f"`{candidate}` as a multiple of a copy of the models, one thread:"
        yield title, goal_cell(results) if candidate == "native" else copies_cell(candidate, "1")
    yield (
        "`native` as a multiple of the least time on this machine, one thread:",
        limit_cell(results),
    )
    for peer, limits in zip(PEERS, (NAIVE, BYZFL, {}), strict=True):
        yield (
            f"Time of {PEERS[peer]} divided by that of `native`, one thread:",
            ratio_cell(peer, limits),
        )
    for threads in (str(count) for count in results.settings["threads"] if count > 1):
        yield (
            f"`native` as a multiple of a copy of the models, {threads} threads:",
            copies_cell("native", threads),
        )
        for candidate in ("native", "copy"):
            yield (
                f"Speed-up of `{candidate}` with {threads} threads:",
                speed_cell(candidate, threads),
            )
    yield "Memory beyond input and output in MiB:", memory_cell


def copies_cell(candidate: str, threads: str) -> Cell:
    def cell(row: Row) -> str:
        return number(row.ratio(candidate, "copy", threads))

    return cell


def goal_cell(results: Results) -> Cell:
    def cell(row: Row) -> str:
        goal = most_copies(row, results) if (row.workload, row.rule) in COPIES else None
        return against(row.ratio("native", "copy"), high=goal)

    return cell


def limit_cell(results: Results) -> Cell:
    def cell(row: Row) -> str:
        known = row.workload in WORKLOADS
        return against(over_limit(row, results), high=limit_of(row.workload)) if known else "-"

    return cell


def ratio_cell(peer: str, limits: Bars) -> Cell:
    def cell(row: Row) -> str:
        return against(row.ratio(peer, "ours"), low=limits.get((row.workload, row.rule)))

    return cell


def speed_cell(candidate: str, threads: str) -> Cell:
    def cell(row: Row) -> str:
        judged = (candidate, threads) == ("native", "2") and row.workload in LARGER_THAN_CACHE
        copy = row.speed_up("copy", threads)
        low = round(SHARE_OF_SPEED_UP * copy, 2) if judged and copy is not None else None
        return against(row.speed_up(candidate, threads), low=low)

    return cell


def memory_cell(row: Row) -> str:
    return "-" if row.memory_mib is None else f"{row.memory_mib:.0f}"


def against(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A number with its bar in brackets, bold where it misses."""
    bar = low if high is None else high
    if bar is None or value is None:
        return number(value)
    goal = Goal("", value, low=bar) if high is None else Goal("", value, high=bar)
    text = number(value)
    return f"{f'**{text}**' if goal.missed else text} ({bar:,g})"


def any_of(cell: Cell, results: Results) -> bool:
    return any(cell(row) != "-" for row in results.rows)


def markdown_table(title: str, cell: Cell, results: Results) -> str:
    body = []
    for rule in results.rules:
        rows = [results.find(workload, rule) for workload in results.workloads]
        body.append([f"`{rule}`", *("-" if row is None else cell(row) for row in rows)])
    shown = [line for line in body if any(text != "-" for text in line[1:])]
    return f"{title}\n\n{framed(['rule', *results.workloads], shown)}"


def markdown_scale(rows: Sequence[ScaleRow]) -> str:
    columns = [
        "clients x neighbours x parameters",
        "rule",
        "ns",
        "workload 3",
        "ratio",
        "1,000 clients, same d",
        "MiB",
    ]
    body = []
    for row in rows:
        times = [f"{value:.3f}" for value in (row.large, row.reference)]
        memory = "-" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        ratio = against(row.growth, high=GROWTH.get(row.workload))
        body.append([row.workload, f"`{row.rule}`", *times, ratio, f"{row.same_d:.3f}", memory])
    return f"Nanoseconds per edge and parameter, one thread:\n\n{framed(columns, body)}"


def framed(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A markdown table; what begins a row is text, the rest numbers."""
    ruler = "|---" + "|---:" * (len(columns) - 1) + "|"
    return "\n".join(
        [f"| {' | '.join(columns)} |", ruler, *(f"| {' | '.join(cells)} |" for cells in body)]
    )
