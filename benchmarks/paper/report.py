"""Measured values next to the paper's, cell by cell, with a verdict."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

from benchmarks.paper.archive import Archive
from benchmarks.paper.registry import NO_ATTACK, paper_label
from benchmarks.paper.run import Run, tail
from benchmarks.paper.setting import Setting
from benchmarks.paper.tables import Table

Verdict = Literal["reproduced", "same conclusion", "differs", "not in the paper", "missing"]
MARKS: dict[str, str] = {
    "reproduced": "=",
    "same conclusion": "~",
    "differs": "!",
    "not in the paper": "",
    "missing": "?",
}
CLOSE = 0.03  # tolerance of a reproduced error rate; of a mean squared error, as a share
HARM = (
    0.1  # error above FedAvg's without attack that counts as harm; for a squared error: a factor 2
)
SUCCESS = 0.2  # attack success rate from which on a backdoor works
BASELINE = ("FedAvg", NO_ATTACK)  # the cell that all others are compared with


@dataclass(frozen=True)
class Cell:
    """One cell: the measured values, averaged over seeds, and the paper's."""

    row: str
    column: str
    setting: Setting
    runs: tuple[Run, ...]
    ours: tuple[float, ...]
    last: tuple[float, ...]
    paper: tuple[float, ...]
    verdict: Verdict


def cells(table: Table, archive: Archive, **changes: object) -> list[Cell]:
    """Return all cells of a table.

    They are judged by the mean of the worst client's errors over the last 5 % of rounds.
    """
    found = [_cell(table, archive, *cell) for cell in table.cells(**changes)]
    ours = {(cell.row, cell.column): cell.ours[0] for cell in found if cell.ours}
    paper = {(cell.row, cell.column): cell.paper[0] for cell in found if cell.paper}
    return [_judged(cell, table.measure, *_baselines(cell, ours, paper)) for cell in found]


def _cell(table: Table, archive: Archive, row: str, column: str, setting: Setting) -> Cell:
    runs = tuple(archive.runs(setting))
    names = [setting.task.metric, *(["ASR"] if setting.backdoor else [])]
    ours: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    if runs and table.measure == "consensus":
        ours = last = (_mean([one.get("consensus") for one in runs]),)
    elif runs:
        ours = tuple(mean(tail(one, name) for one in runs) for name in names)
        last = tuple(_mean([one[f"max_{name}"][-1] for one in runs]) for name in names)
    paper = table.figures.get((row, column), ())
    return Cell(row, column, setting, runs, ours, last, paper, "missing")


def _mean(values: list[float | None]) -> float:
    """Average; infinite if a value was not finite."""
    return mean([math.inf if value is None else value for value in values])


def _baselines(cell: Cell, *known: dict[tuple[str, str], float]) -> list[tuple[float, float]]:
    """Errors without attack, here and in the paper: first FedAvg's, then the row's own.

    A table without FedAvg has the smallest error instead. The baseline of FedAvg without attack is
    the paper's figure: compared with itself, it could never differ.
    """
    if (cell.row, cell.column) == BASELINE:
        return [(figure, figure) for figure in cell.paper[:1]]
    first = [errors.get(BASELINE, min(errors.values(), default=math.nan)) for errors in known]
    own = [errors.get((cell.row, NO_ATTACK), math.nan) for errors in known]
    return [(ours, paper) for ours, paper in (first, own) if not math.isnan(ours + paper)]


def _judged(cell: Cell, measure: str, *baselines: tuple[float, float]) -> Cell:
    if not cell.ours:
        return cell
    if not cell.paper:
        return replace(cell, verdict="not in the paper")
    squared = cell.setting.task.metric == "MSE" or measure == "consensus"
    return replace(cell, verdict=judge(cell.ours, cell.paper, *baselines, squared=squared))


def judge(
    ours: tuple[float, ...],
    paper: tuple[float, ...],
    *baselines: tuple[float, float],
    squared: bool = False,
) -> Verdict:
    """Compare one cell with the paper's: the error, and the success of a backdoor.

    ``baselines`` are errors without attack, here and in the paper: those of FedAvg, and of the rule
    itself. A cell is reproduced if all figures are within 0.03 of the paper's (squared errors: or
    3 %), or if both models have collapsed. The conclusion is the same if, relative to each
    baseline, the error is small (at most 0.1 more, or twice the squared error) in both or in
    neither, and the backdoor works (0.2 or more) in both or in neither.

    >>> from benchmarks.paper.report import judge
    >>> clean = (0.1, 0.1)
    >>> judge((0.12,), (0.10,), clean), judge((0.95,), (0.90,), clean)
    ('reproduced', 'reproduced')
    >>> judge((0.4,), (0.6,), clean), judge((0.1, 0.9), (0.1, 0.01), clean)
    ('same conclusion', 'differs')
    >>> judge((0.3,), (0.5,), clean, (0.1, 0.45))
    'differs'
    """
    both = (ours, paper)
    collapsed = [not (value[0] <= 100 if squared else value[0] < 0.8) for value in both]
    close = [
        abs(x - y) <= CLOSE * max(1.0, y if squared else 1.0) < math.inf
        for x, y in zip(ours, paper, strict=True)
    ]
    if all(collapsed) or all(close):
        return "reproduced"
    works = [any(success >= SUCCESS for success in value[1:]) for value in both]
    alike = all(
        _is_harmed(ours[0], here, squared) == _is_harmed(paper[0], there, squared)
        for here, there in baselines
    )
    return "same conclusion" if alike and works[0] == works[1] else "differs"


def _is_harmed(error: float, baseline: float, squared: bool) -> bool:
    return not error <= (2 * baseline if squared else baseline + HARM)


# As text


def overview(shown: dict[str, list[Cell]]) -> str:
    """Count the verdicts per table, over the cells that the paper prints a figure for."""
    names = [name for name in MARKS if name != "not in the paper"]
    lines = []
    for table, found in shown.items():
        verdicts = [cell.verdict for cell in found if cell.paper]
        if verdicts:
            numbers = " | ".join(str(verdicts.count(name)) for name in names)  # type: ignore[arg-type]
            lines.append(f"| `{table}` | {numbers} |")
    if not lines:
        return ""
    head = f"| cells | {' | '.join(f'{name} {MARKS[name]}' for name in names)} |"
    return "\n".join([head, "|---" * (len(names) + 1) + "|", *lines])


def section(name: str, table: Table, found: list[Cell]) -> str:
    """Format a table, the values of the last round if the paper has the table, and a legend."""
    parts = [f"## {table.caption} (`{name}`)", markdown(table, found)]
    if table.figures and any(cell.last != cell.ours for cell in found):
        about = "After the last round alone, as the paper defines it:"
        parts += [about, markdown(table, found, last=True)]
    return "\n\n".join([*parts, _legend(table, found)])


def markdown(table: Table, found: list[Cell], *, last: bool = False) -> str:
    """Format a table of cells "ours (paper) mark"; with ``last``, the values of the last round.

    Names are ours. The column, and the first row, ``paper_label`` have the paper's labels.
    """
    grid = [["", *table.columns]]
    labels = [paper_label(column) for column in table.columns]
    if any(labels):
        grid.append(["paper_label", *labels])
    for row in table.rows:
        texts = [_figures(cell.last) if last else _text(cell) for cell in found if cell.row == row]
        grid.append([row, *texts])
    if any(paper_label(row) for row in table.rows):
        heads = ["paper_label", *([""] if any(labels) else []), *map(paper_label, table.rows)]
        grid = [[line[0], head, *line[1:]] for line, head in zip(grid, heads, strict=True)]
    head, *body = (f"| {' | '.join(line)} |" for line in grid)
    return "\n".join([head, "|---" * len(grid[0]) + "|", *body])


def _text(cell: Cell) -> str:
    if not cell.ours:
        return f"({_figures(cell.paper)})" if cell.paper else ""
    text = f"**{_figures(cell.ours)}**" if cell.verdict == "differs" else _figures(cell.ours)
    return f"{text} ({_figures(cell.paper)}) {MARKS[cell.verdict]}" if cell.paper else text


def _legend(table: Table, found: list[Cell]) -> str:
    seeds = sorted({len(cell.runs) for cell in found if cell.runs})
    each = f" Seeds: {seeds[0]}{f' to {seeds[-1]}' if seeds[1:] else ''}." if seeds else ""
    if not table.figures:
        return f"We do not have the paper's figures.{each}"
    return f"Ours (the paper's), {counts(found)}.{each}"


def _figures(values: tuple[float, ...]) -> str:
    return " / ".join(">100" if value > 100 else f"{value:.2f}" for value in values)


def counts(found: Sequence[Cell]) -> str:
    """Count the verdicts.

    >>> from benchmarks.paper.report import counts
    >>> counts([])
    'no cells'
    """
    verdicts = [str(cell.verdict) for cell in found]
    known = (f"{verdicts.count(name)} {name}" for name in MARKS if name in verdicts)
    return ", ".join(known) or "no cells"


def as_csv(found: list[Cell]) -> str:
    """Format one line for each cell: measured and published values, and the command of the cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    measured = ["ours", "ours_asr", "last", "last_asr", "seeds", "stopped_early"]
    published = ["paper", "paper_asr", "verdict", "command"]
    writer.writerow(["row", "column", "paper_label", *measured, *published])
    for cell in found:
        labels = [paper_label(name) for name in (cell.row, cell.column)]
        writer.writerow(
            [
                cell.row,
                cell.column,
                ", ".join(label for label in labels if label),
                *_pair(cell.ours),
                *_pair(cell.last),
                len(cell.runs),
                sum("stopped" in one for one in cell.runs),
                *_pair(cell.paper),
                cell.verdict,
                cell.setting,
            ]
        )
    return out.getvalue()


def _pair(values: tuple[float, ...]) -> list[str]:
    return [f"{value:.4g}" for value in values] + [""] * (2 - len(values))
