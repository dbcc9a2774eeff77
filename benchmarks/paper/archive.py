"""Published results as CSV files: one for each data set, one row for each setting and seed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.paper.run import Run
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import TASKS
from equipoise._utils.atomic_write import atomic_write

Known: TypeAlias = dict[Setting, list[Run]]
SCALARS: dict[str, type] = {
    "seed": int,
    "trained": int,
    "seconds": float,
    "stopped": str,
    "consensus": float,
    "accepted_benign": float,
    "accepted_malicious": float,
    "bytes": float,
    "aggregate_seconds": float,
    "norm": float,
    "version": str,
    "commit": str,
    "torch": str,
}
"""Fields of a run with one value. All others are lists, whose items are separated by spaces."""

NOT_FINITE = "nan"
REQUIRED = ("seed", "trained", "seconds", "evaluated")


class DamagedError(ValueError):
    """A file that must hold results holds something else."""


class Archive:
    """A folder of published results.

    Values that are not finite are None in a run, and ``nan`` in a file. Fields that a run does not
    have are empty.

    >>> import tempfile
    >>> from benchmarks.paper.setting import Setting
    >>> archive = Archive(tempfile.mkdtemp())
    >>> setting = Setting(data="synthetic", rule="Krum")
    >>> run = {"seed": 3, "trained": 300, "seconds": 1.0, "evaluated": [299], "max_MSE": [1.2]}
    >>> archive.add([(setting, run)])
    >>> [run["seed"] for run in archive.runs(setting)], archive.path(setting).name
    ([3], 'synthetic.csv')
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._known: dict[str, Known] = {}

    def path(self, setting: Setting) -> Path:
        """Return the file with the results of a setting."""
        return self._file(setting.data)

    def settings(self) -> list[Setting]:
        """Return all settings that have results.

        Raises:
            DamagedError: a file is not a valid file of results.
        """
        return [setting for data in TASKS for setting in self._read(data)]

    def runs(self, setting: Setting) -> list[Run]:
        """Return the runs of a setting, sorted by seed; empty if there are none.

        Raises:
            DamagedError: the file is not a valid file of results; the message names the line.
        """
        return list(self._read(setting.data).get(setting, ()))

    def add(self, found: Iterable[tuple[Setting, Run]]) -> None:
        """Add runs, which replace earlier ones of the same setting and seed.

        Raises:
            DamagedError: a run is incomplete, or a file is damaged; it is not changed then.
        """
        found = list(found)
        for setting, run in found:
            _check_run("the run", setting, run)
        changed: set[str] = set()
        # Read again: another command may have added runs since.
        self._known.clear()
        for setting, run in found:
            known = self._read(setting.data)
            others = [one for one in known.get(setting, ()) if one["seed"] != run["seed"]]
            known[setting] = sorted([*others, run], key=lambda one: int(one["seed"]))
            changed.add(setting.data)
        for data in changed:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._file(data), "result") as file:
                file.write(_text(data, self._known[data]).encode())

    def _file(self, data: str) -> Path:
        return self.folder / f"{data}.csv"

    def _read(self, data: str) -> Known:
        if data not in self._known:
            path = self._file(data)
            content = path.read_bytes() if path.exists() else None
            self._known[data] = {} if content is None else _parse(path, data, content)
        return self._known[data]


def columns(data: str) -> list[str]:
    """Return the columns of a data set's file."""
    metrics = ("MSE",) if TASKS[data].metric == "MSE" else ("TER", "ASR")
    lists = [f"{kind}_{metric}" for metric in metrics for kind in ("max", "mean", "clients")]
    before, after = list(SCALARS)[:4], list(SCALARS)[4:]
    return [*Setting.names(), *before, "evaluated", *lists, *after, "command"]


def _text(data: str, known: Known) -> str:
    """Format a file. Rows are sorted, so that a new run changes one line."""
    names = columns(data)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for setting in sorted(known, key=lambda one: one.slug):
        for run in known[setting]:
            command = f"{setting} --seed {run['seed']}"
            row = {**run, **asdict(setting), "command": command}
            writer.writerow([_format(row[name]) if name in row else "" for name in names])
    return out.getvalue()


def _format(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_format, value))
    return NOT_FINITE if value is None else str(value)


def _parse(path: Path, data: str, content: bytes) -> Known:
    known: Known = {}
    names = columns(data)
    try:
        reader = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        if (head := next(reader, None)) != names:
            raise DamagedError(
                f"{path} must have these columns in line 1: {', '.join(names)}; "
                f"found {', '.join(head or ['nothing'])}"
            )
        for cells in reader:
            place = f"{path}, line {reader.line_num},"
            if len(cells) != len(names):
                raise DamagedError(f"{place} must have {len(names)} fields, found {len(cells)}")
            setting, run = _parse_row(place, data, dict(zip(names, cells, strict=True)))
            runs = known.setdefault(setting, [])
            if any(one["seed"] == run["seed"] for one in runs):
                raise DamagedError(
                    f"{place} must be another run, found a second one of {setting} "
                    f"--seed {run['seed']}"
                )
            runs.append(run)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedError(f"{path} must hold results as CSV, found: {error}") from error
    for runs in known.values():
        runs.sort(key=lambda one: int(one["seed"]))
    return known


def _parse_row(place: str, data: str, row: dict[str, str]) -> tuple[Setting, Run]:
    del row["command"]  # derived from the other fields
    try:
        options = {
            field.name: _convert(row.pop(field.name), field.type) for field in fields(Setting)
        }
        setting = Setting(**options)
        run = {
            name: _convert(text, SCALARS[name].__name__) if name in SCALARS else _items(name, text)
            for name, text in row.items()
            if text
        }
    except ValueError as error:
        raise DamagedError(f"{place} must be a result, found: {error}") from error
    if setting.data != data:
        raise DamagedError(f"{place} must be a result of {data}, found one of {setting.data}")
    _check_run(place, setting, run)
    return setting, run


def _convert(text: str, kind: object) -> Any:
    """Convert a field to the type of that name."""
    if kind == "bool":
        if text not in ("True", "False"):
            raise ValueError(f"True or False expected, found {text!r}")
        return text == "True"
    if text == NOT_FINITE:
        return None
    return {"int": int, "float": float, "str": str}[str(kind)](text)


def _items(name: str, text: str) -> list[Any]:
    kind = "int" if name == "evaluated" else "float"
    return [_convert(item, kind) for item in text.split(" ")]


def _check_run(place: str, setting: Setting, run: Run) -> None:
    """Raise unless the run has the fields that reports need."""
    metrics = [setting.task.metric, *(["ASR"] if setting.backdoor else [])]
    lists = [f"max_{metric}" for metric in metrics]
    for name in (*REQUIRED, *lists):
        if run.get(name) in (None, []):
            raise DamagedError(f"{place} must have a value for {name}, found none")
    for name in lists:
        if len(run[name]) != len(run["evaluated"]):
            raise DamagedError(
                f"{place} must have {len(run['evaluated'])} values for {name}, as evaluated has, "
                f"found {len(run[name])}"
            )
    unknown = set(run) - set(columns(setting.data))
    if unknown:
        raise DamagedError(
            f"{place} must have known fields only, found {', '.join(sorted(unknown))}"
        )
