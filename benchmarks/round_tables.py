"""The race of rounds as text during a run, and as markdown afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.round_race import Turns
from benchmarks.round_results import Cell, RoundResults
from benchmarks.round_workloads import TASKS
from benchmarks.tables import framed, number

# Text.

HEADING = (
    f"{'':6}{'rule':12}{'contender':22}{'best':>9}{'median':>9}{'spread':>9}{'wall':>9}"
    f"{'ours / it':>11}{'median':>9}{'faults':>10}"
)


def lines(cell: Cell) -> str:
    """A line for every contender, and one for the phases."""
    ours = cell.contenders["ours"]
    found = [
        f"{cell.workload:6}{cell.rule:12}{name:22}{line(turns, ours)}"
        for name, turns in cell.contenders.items()
    ]
    phases = ", ".join(f"{phase} {ms:.2f}" for phase, ms in cell.phases.items())
    return "\n".join([*found, f"{'':18}phases of ours: {phases}"])


def line(turns: Turns, ours: Turns) -> str:
    times = f"{turns.best:9.2f}{turns.median:9.2f}{100 * turns.spread:7.0f} %{min(turns.wall):9.2f}"
    ratios = f"{ours.best / turns.best:11.2f}{ours.median / turns.median:9.2f}"
    return f"{times}{ratios}{turns.usual_faults:10,.0f}"


# Markdown.


def markdown(results: RoundResults) -> str:
    """All tables: milliseconds first, then ratios, phases and memory."""
    parts = [
        "Milliseconds of a round, CPU time of the best turn, and the spread of the turns:",
        times_table(results),
        "Time of ours divided by that of the contender, best turns (medians in brackets):",
        ratios_table(results),
        "Phases of ours, milliseconds:",
        phases_table(results),
    ]
    if results.limits:
        parts += [
            "Milliseconds of the training of a round, and of what it is made of: multiply-adds at "
            "the peak rate of the CPU, one copy of the models, torch's products alone:",
            limits_table(results),
        ]
    if results.alone:
        parts += ["The simulator with BALANCE in a process of its own:", memory_table(results)]
    if results.costs:
        parts += ["Further costs:", framed(["cost", "ratio or ms"], cost_rows(results))]
    return "\n\n".join(parts)


def times_table(results: RoundResults) -> str:
    body = []
    for label, cell in labelled(results):
        turns = [cell.contenders.get(name) for name in results.contenders]
        body.append([label, *("-" if t is None else milliseconds(t) for t in turns)])
    return framed(["workload, rule", *results.contenders], body)


def milliseconds(turns: Turns) -> str:
    return f"{number(turns.best)} ± {100 * turns.spread:.0f} %"


def ratios_table(results: RoundResults) -> str:
    names = [name for name in results.contenders if name != "ours"]
    body = []
    for label, cell in labelled(results):
        ours = cell.contenders["ours"]
        turns = [cell.contenders.get(name) for name in names]
        body.append([label, *("-" if t is None else ratios(ours, t) for t in turns)])
    return framed(["workload, rule", *names], body)


def ratios(ours: Turns, other: Turns) -> str:
    return f"{ours.best / other.best:.2f} ({ours.median / other.median:.2f})"


def phases_table(results: RoundResults) -> str:
    names = list(dict.fromkeys(phase for cell in results.cells for phase in cell.phases))
    body = [
        [label, *(number(cell.phases.get(name)) for name in names)]
        for label, cell in labelled(results)
    ]
    return framed(["workload, rule", *names], body)


def limits_table(results: RoundResults) -> str:
    columns = ["workload", "training", "arithmetic", "copy", "torch's products", "training / these"]
    body = []
    for name, found in results.limits.items():
        cell = results.find(name, "Balance")
        train = None if cell is None else cell.phases.get("train")
        ratio = None if train is None else train / found.products
        times = (train, found.arithmetic, found.memory, found.products, ratio)
        body.append([name, *(number(ms) for ms in times)])
    return framed(columns, body)


def memory_table(results: RoundResults) -> str:
    columns = ["workload", "page faults a round", "peak, MiB", "models, MiB", "data, MiB"]
    body = []
    for name, found in results.alone.items():
        sizes = (found.peak_mib, found.models_mib, found.data_mib, found.multiple)
        body.append([name, f"{found.faults:,.0f}", *(number(size) for size in sizes)])
    return framed([*columns, "peak / (models + data)"], body)


def cost_rows(results: RoundResults) -> list[list[str]]:
    return [[name, number(value)] for name, value in results.costs.items()]


def labelled(results: RoundResults) -> Iterator[tuple[str, Cell]]:
    for cell in results.cells:
        yield f"{cell.workload}, `{cell.rule}`", cell


def title(workload: str) -> str:
    task = TASKS[workload]
    return f"{workload}: {task.title}, {task.n:,} clients, {task.degree} neighbors"
