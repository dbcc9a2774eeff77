"""One cell of a sweep, in any process."""

from __future__ import annotations

import errno
import functools
import json
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equipoise._utils.optional import import_optional
from equipoise._utils.validation import describe, is_integer
from equipoise.simulation import History, Simulator
from equipoise.sweeps._grid import Cell
from equipoise.sweeps._outcome import Outcome
from equipoise.sweeps._store import CellFolder

FULL = (errno.ENOSPC, errno.EDQUOT)  # no result can be saved any more, so the sweep ends


class Functions(NamedTuple):
    """The functions of a sweep."""

    make: Callable[..., Simulator | History]
    measure: Callable[[Simulator], Mapping[str, Any]] | None
    on_round: Callable[[Simulator], object] | None


@dataclass(frozen=True)
class Task:
    """A cell and how to run it.

    Args:
        cell: the choice.
        functions: the `Functions`, pickled once for all cells.
        folder: the folder of the sweep, or None.
        fresh: whether to run a finished cell again.
        waits: whether to wait for another process that runs the cell.
        save_every: rounds between two checkpoints.
        threads: threads of torch, or None for as many as it would use.
        driver: the process that started the sweep.
    """

    cell: Cell
    functions: bytes
    folder: Path | None
    fresh: bool
    waits: bool
    save_every: int
    threads: int | None
    driver: int


def run_cell(task: Task) -> Outcome:
    """Run a cell, unless it is finished or another process is running it."""
    _first_parent_of(os.getpid())  # known before it can die
    functions = _unpickled(task.functions)
    with _threads(task.threads), _without_interrupts(task.driver):
        if task.folder is None:
            return _computed(task, functions, None)
        files = CellFolder(task.folder, task.cell.key)
        filelock = import_optional("filelock", "sweeps")
        try:
            with files.lock().acquire(timeout=-1 if task.waits else 0):
                return _stored(task, functions, files)
        except filelock.Timeout:
            return Outcome(busy=True)


def _is_orphan(task: Task) -> bool:
    """Whether the process that started this worker has died, so that it works for nobody."""
    process = multiprocessing.current_process()
    if process.pid == task.driver:
        return False
    # joblib's own workers are children of the driver, which may die before their first cell
    # begins. Those of a cluster have parents that only they know.
    is_child = process.name.startswith("LokyProcess")
    started_by = task.driver if is_child else _first_parent_of(os.getpid())
    return os.getppid() != started_by


@functools.cache
def _first_parent_of(process: int) -> int:
    """The process that started this one, which another number replaces when it has died."""
    return os.getppid()


# The functions of the last sweep: they keep what they have loaded from cell to cell.
@functools.lru_cache(maxsize=1)
def _unpickled(functions: bytes) -> Functions:
    found: Functions = import_optional("cloudpickle", "sweeps").loads(functions)
    return found


def _stored(task: Task, functions: Functions, files: CellFolder) -> Outcome:
    if task.fresh:
        files.clear()
    # Another process may have finished the cell meanwhile.
    known = files.outcome()
    if known.history is not None:
        return known
    outcome = _computed(task, functions, files.checkpoint)
    files.save(task.cell, outcome)
    return outcome


def _computed(task: Task, functions: Functions, checkpoint: Path | None) -> Outcome:
    # Recorded, because those of many processes would fill the terminal.
    with warnings.catch_warnings(record=True) as given:
        try:
            made = functions.make(**task.cell.choice)
            history, measured = _run(made, task, functions, checkpoint)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            return Outcome(failure=traceback.format_exc())
    found = dict.fromkeys((one.category, str(one.message)) for one in given)
    return Outcome(history, measured, warnings=tuple(found))


def _run(
    made: object, task: Task, functions: Functions, checkpoint: Path | None
) -> tuple[History, Mapping[str, Any]]:
    """The history of what ``make`` returned, and what ``measure`` returned."""
    if isinstance(made, History):
        if functions.measure or functions.on_round:
            expected = "a Simulator, because of measure or on_round"
            raise ValueError(f"make must return {expected}, found a History")
        return _with_seed(made, task), {}
    if not isinstance(made, Simulator):
        raise ValueError(f"make must return a Simulator or a History, found {describe(made)}")
    if made.total is None:
        raise ValueError("make must return a Simulator(..., total=...), found one without total")

    def after_round(simulator: Simulator) -> object:
        if _is_orphan(task):
            if checkpoint is not None and _resumes(made):
                made.save(checkpoint)
            os._exit(1)
        return functions.on_round is not None and functions.on_round(simulator)

    history = made.run(
        checkpoint=checkpoint if _resumes(made) else None,
        save_every=task.save_every,
        on_round=after_round,
    )
    measured = {} if functions.measure is None else functions.measure(made)
    if not isinstance(measured, Mapping):
        raise ValueError(f"measure must return a dict, found {describe(measured)}")
    # As a file would return it, and an error here if no file can hold it.
    return _with_seed(history, task), json.loads(json.dumps(dict(measured)))


def _resumes(simulator: Simulator) -> bool:
    """Whether a run that continues from a checkpoint equals one that was not interrupted."""
    trainer = simulator.trainer
    return hasattr(trainer, "state_dict") or getattr(trainer, "stateless", False) is True


def _with_seed(history: History, task: Task) -> History:
    seed = task.cell.choice.get("seed")
    if history.seed is None and is_integer(seed):
        history.seed = int(seed)
    return history


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Let torch use that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _without_interrupts(driver: int) -> Iterator[None]:
    """Ignore Ctrl-C in a worker, which the terminal sends it as well: the driver ends it."""
    is_worker = os.getpid() != driver and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_worker else None
    try:
        yield
    finally:
        if is_worker:
            signal.signal(signal.SIGINT, before)
