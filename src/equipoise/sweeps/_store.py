"""The folder of a sweep: one folder for each cell, so that a sweep can be continued.

``sweep.json`` lists the cells of the last sweep. The folder of a cell holds ``cell.json``, which
describes it; ``checkpoint`` while it runs; and then ``history.json``, or ``failure.txt`` with a
traceback. Every write is atomic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from equipoise._utils.atomic_write import atomic_write
from equipoise._utils.optional import import_optional
from equipoise.simulation import History
from equipoise.sweeps._grid import Cell
from equipoise.sweeps._outcome import Outcome

STORE_FORMAT = 1
INDEX = "sweep.json"


class CellFolder:
    """The files of one cell."""

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self.path = Path(folder) / "cells" / key
        self.checkpoint = self.path / "checkpoint"

    def lock(self) -> Any:
        """A lock of this cell, which the operating system releases when a process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        # Not removed afterwards: another process may wait for it.
        return import_optional("filelock", "sweeps").FileLock(self.path / "lock")

    def outcome(self) -> Outcome:
        """The outcome in the files. A history is written last, so the others are complete then."""
        history = self.path / "history.json"
        failure = self.path / "failure.txt"
        if history.exists():
            return Outcome(History.from_json(history), self._described()["measured"])
        return Outcome(failure=failure.read_text("utf-8") if failure.exists() else "")

    def save(self, cell: Cell, outcome: Outcome) -> None:
        """Write what became of a cell."""
        self.path.mkdir(parents=True, exist_ok=True)
        if outcome.history is None:
            _write(self.path / "failure.txt", outcome.failure)
            return
        about = {
            "labels": cell.labels,
            "choice": cell.texts,
            "torch": torch.__version__,
            "measured": outcome.measured,
        }
        _write(self.path / "cell.json", json.dumps(about, indent=1) + "\n")
        outcome.history.to_json(self.path / "history.json")
        (self.path / "failure.txt").unlink(missing_ok=True)
        self.checkpoint.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget what is known, so that the cell runs again from its first round."""
        for name in ("history.json", "failure.txt", "cell.json", "checkpoint"):
            (self.path / name).unlink(missing_ok=True)

    def _described(self) -> dict[str, Any]:
        path = self.path / "cell.json"
        try:
            about: dict[str, Any] = json.loads(path.read_text("utf-8"))
            about["labels"], about["measured"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} must describe a finished cell, found {error!r}") from error
        return about


def begin(folder: Path, cells: Sequence[Cell], version: str) -> None:
    """List the cells in a folder that is new or of the same version."""
    try:
        check_version(folder, version)
    except FileNotFoundError:
        if folder.is_dir() and any(folder.iterdir()):
            expected = f"a new or empty folder, or one with {INDEX}"
            raise ValueError(f"folder must be {expected}, found other files in {folder}") from None
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"key": cell.key, "labels": cell.labels} for cell in cells]
    about = {"format": STORE_FORMAT, "version": version, "cells": listed}
    _write(folder / INDEX, json.dumps(about, indent=1) + "\n")


def check_version(folder: Path, version: str) -> dict[str, Any]:
    """The index of a folder that this version of equipoise wrote."""
    path = folder / INDEX
    try:
        about: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found = about["format"], about["version"]
        about["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must list the cells of a sweep, found {error!r}") from error
    if found != (STORE_FORMAT, version):
        expected = f"of equipoise {version}, format {STORE_FORMAT}"
        raise ValueError(
            f"folder must hold results {expected}, found equipoise {found[1]}, format {found[0]} "
            f"in {folder}: choose another folder, since versions may compute different results"
        )
    return about


def listed_cells(folder: Path, version: str) -> list[Cell]:
    """The cells of the last sweep of a folder, with labels only."""
    try:
        about = check_version(folder, version)
    except FileNotFoundError:
        raise ValueError(f"folder must hold a sweep, found no {INDEX} in {folder}") from None
    return [Cell(one["key"], one["labels"], {}, {}) for one in about["cells"]]


def _write(path: Path, text: str) -> None:
    with atomic_write(path, "result") as file:
        file.write(text.encode())
