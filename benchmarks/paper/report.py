"""What was measured next to what the paper prints, cell by cell, with a verdict."""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

from benchmarks.paper.results import DamagedError, Store
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
CLOSE = 0.03  # how far a reproduced rate may be off; of a mean squared error, as a share
HARM = 0.1  # more error than FedAvg without attack: the rule was hurt. For a mean squared error, a factor of 2
SUCCESS = 0.2  # of a backdoor: it works
FIRST = ("FedAvg", "No")  # what all others are compared with


@dataclass(frozen=True)
class Cell:
    """One cell: what was measured, the mean over seeds, and what the paper prints."""

    row: str
    column: str
    setting: Setting
    runs: tuple[Run, ...]
    ours: tuple[float, ...]
    last: tuple[float, ...]
    paper: tuple[float, ...]
    verdict: Verdict


def cells(table: Table, store: Store, **changes: object) -> list[Cell]:
    """All cells of a table, judged by the mean of the worst client's errors over the last 5 % of rounds."""
    found = [_cell(table, store, *cell) for cell in table.cells(**changes)]
    ours = {(cell.row, cell.column): cell.ours[0] for cell in found if cell.ours}
    paper = {(cell.row, cell.column): cell.paper[0] for cell in found if cell.paper}
    return [_judged(cell, table.measure, *_baselines(cell, ours, paper)) for cell in found]


def _cell(table: Table, store: Store, row: str, column: str, setting: Setting) -> Cell:
    try:
        runs = tuple(store.runs(setting))
    except DamagedError as error:
        print(f"{error}: it counts as missing.", file=sys.stderr)
        runs = ()
    names = [setting.task.metric, *(["ASR"] if setting.backdoor else [])]
    ours: tuple[float, ...]
    last: tuple[float, ...]
    if table.measure == "consensus":
        ours = last = (_mean([one.get("consensus") for one in runs]),) if runs else ()
    else:
        ours = tuple(mean(tail(one, name) for one in runs) for name in names) if runs else ()
        last = tuple(_mean([one[f"max_{name}"][-1] for one in runs]) for name in names) if runs else ()
    return Cell(row, column, setting, runs, ours, last, table.figures.get((row, column), ()), "missing")


def _mean(values: list[float | None]) -> float:
    """The mean, infinite if a value is missing: JSON has no infinities."""
    return mean([math.inf if value is None else value for value in values])


def _baselines(cell: Cell, *known: dict[tuple[str, str], float]) -> list[tuple[float, float]]:
    """Errors without attack, here and in the paper: FedAvg's, or the least of the table, and the row's own.

    FedAvg without attack would be its own baseline, and nothing could be said against it: the paper's figure is.
    """
    if (cell.row, cell.column) == FIRST:
        return [(figure, figure) for figure in cell.paper[:1]]
    first = [errors.get(FIRST, min(errors.values(), default=math.nan)) for errors in known]
    own = [errors.get((cell.row, "No"), math.nan) for errors in known]
    return [(ours, paper) for ours, paper in (first, own) if not math.isnan(ours + paper)]


def _judged(cell: Cell, measure: str, *baselines: tuple[float, float]) -> Cell:
    if not cell.ours:
        return cell
    if not cell.paper:
        return replace(cell, verdict="not in the paper")
    squared = cell.setting.task.metric == "MSE" or measure == "consensus"
    return replace(cell, verdict=judge(cell.ours, cell.paper, *baselines, squared=squared))


def judge(
    ours: tuple[float, ...], paper: tuple[float, ...], *baselines: tuple[float, float], squared: bool = False
) -> Verdict:
    """How one cell compares: errors, and for a backdoor its success.

    ``baselines`` are errors without attack, here and in the paper: those of FedAvg, and of the rule itself. A cell is
    reproduced if all figures are within 0.03 of the paper's (squared ones: or 3 %), or both errors are those of models
    that have collapsed. The conclusion is the same if, against each baseline, the error is small (up to 0.1 more, or
    twice a mean squared error) in both or in neither, and the backdoor works (0.2 or more) in both or in neither.

    >>> from benchmarks.paper.report import judge
    >>> judge((0.12,), (0.10,), (0.1, 0.1)), judge((0.95,), (0.90,), (0.1, 0.1)), judge((0.4,), (0.6,), (0.1, 0.1))
    ('reproduced', 'reproduced', 'same conclusion')
    >>> judge((0.1, 0.9), (0.1, 0.01), (0.1, 0.1)), judge((0.3,), (0.5,), (0.1, 0.1), (0.1, 0.45))
    ('differs', 'differs')
    """
    both = (ours, paper)
    collapsed = [not (value[0] <= 100 if squared else value[0] < 0.8) for value in both]
    close = [abs(x - y) <= CLOSE * max(1.0, y if squared else 1.0) < math.inf for x, y in zip(ours, paper, strict=True)]
    if all(collapsed) or all(close):
        return "reproduced"
    works = [any(success >= SUCCESS for success in value[1:]) for value in both]
    alike = all(_hurt(ours[0], here, squared) == _hurt(paper[0], there, squared) for here, there in baselines)
    return "same conclusion" if alike and works[0] == works[1] else "differs"


def _hurt(error: float, baseline: float, squared: bool) -> bool:
    return not error <= (2 * baseline if squared else baseline + HARM)


# As text


def overview(shown: dict[str, list[Cell]]) -> str:
    """How many cells of each table have which verdict, of those that the paper prints a figure for."""
    names = [name for name in MARKS if name != "not in the paper"]
    known = {table: [str(cell.verdict) for cell in found if cell.paper] for table, found in shown.items()}
    lines = [
        f"| `{table}` | {' | '.join(str(verdicts.count(name)) for name in names)} |"
        for table, verdicts in known.items()
        if verdicts
    ]
    head = [f"| cells | {' | '.join(f'{name} {MARKS[name]}' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    return "\n".join([*head, *lines]) if lines else ""


def section(name: str, table: Table, found: list[Cell]) -> str:
    """A table by what it is judged by, if the paper has it also after the last round alone, and a legend."""
    parts = [f"## {table.caption} (`{name}`)", markdown(table, found)]
    if table.figures and any(cell.last != cell.ours for cell in found):
        parts += ["After the last round alone, as the paper defines it:", markdown(table, found, last=True)]
    return "\n\n".join([*parts, _legend(table, found)])


def markdown(table: Table, found: list[Cell], *, last: bool = False) -> str:
    """A table of cells "ours (paper) mark"; with ``last``, of what was measured after the last round."""
    lines = [f"| | {' | '.join(table.columns)} |", "|---" * (len(table.columns) + 1) + "|"]
    for row in table.rows:
        texts = [_figures(cell.last) if last else _text(cell) for cell in found if cell.row == row]
        lines.append(f"| {row} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _text(cell: Cell) -> str:
    if not cell.ours:
        return f"({_figures(cell.paper)})" if cell.paper else ""
    text = f"**{_figures(cell.ours)}**" if cell.verdict == "differs" else _figures(cell.ours)
    return f"{text} ({_figures(cell.paper)}) {MARKS[cell.verdict]}" if cell.paper else text


def _legend(table: Table, found: list[Cell]) -> str:
    seeds = sorted({len(cell.runs) for cell in found if cell.runs})
    each = f" Seeds: {seeds[0]}{f' to {seeds[-1]}' if seeds[1:] else ''}." if seeds else ""
    if not table.figures:
        return f"The paper's figures are not known here.{each}"
    return f"Ours (the paper's), {counts(found)}.{each}"


def _figures(values: tuple[float, ...]) -> str:
    return " / ".join(">100" if value > 100 else f"{value:.2f}" for value in values)


def counts(found: list[Cell]) -> str:
    """How many cells have which verdict.

    >>> from benchmarks.paper.report import counts
    >>> counts([])
    'no cells'
    """
    verdicts = [cell.verdict for cell in found]
    return ", ".join(f"{verdicts.count(name)} {name}" for name in MARKS if name in verdicts) or "no cells"


def as_csv(found: list[Cell]) -> str:
    """One line for each cell: what was measured, how often, the paper's figure, and the command that checks it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *("row", "column", "ours", "ours_asr", "last", "last_asr", "seeds", "stopped_early", "paper", "paper_asr"),
            *("verdict", "command"),
        ]
    )
    for cell in found:
        pairs = [*_pair(cell.ours), *_pair(cell.last)]
        stopped = sum("stopped" in one for one in cell.runs)
        rest = [len(cell.runs), stopped, *_pair(cell.paper), cell.verdict, str(cell.setting)]
        writer.writerow([cell.row, cell.column, *pairs, *rest])
    return out.getvalue()


def _pair(values: tuple[float, ...]) -> list[str]:
    return [f"{value:.4g}" for value in values] + [""] * (2 - len(values))
