"""Many runs, distributed over processes. They can be interrupted at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.paper.results import Store
from benchmarks.paper.run import Run, run, tail
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import load
from equipoise._utils.progress import progress_bar, skip
from equipoise.simulation import Simulator

POLLED = 0.5  # seconds between two updates of the progress bar
GRACE = 20.0  # seconds to finish a round and save it


class Job(NamedTuple):
    """A setting and a seed to run."""

    setting: Setting
    seed: int


def missing(store: Store, settings: Iterable[Setting], seeds: Sequence[int]) -> list[Job]:
    """Return the runs that the store does not have, seed by seed."""
    known = {one: {run["seed"] for run in store.runs(one)} for one in settings}
    return [Job(one, seed) for seed in seeds for one in known if seed not in known[one]]


def run_all(
    jobs: Sequence[Job], root: str | os.PathLike[str], store: Store, processes: int
) -> list[str]:
    """Run the jobs in single-threaded processes and store the results; returns error messages.

    After Ctrl-C, each process saves a checkpoint, from which the next call resumes.
    """
    if not jobs:
        return []
    # Report missing data once, instead of once per job.
    load(jobs[0].setting.data, os.fspath(root), jobs[0].seed)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    counts = context.Array("q", 2)  # rounds: trained, and skipped because a checkpoint had them
    executor = ProcessPoolExecutor(
        min(processes, len(jobs)), context, initializer=_begin, initargs=(stop, counts, os.getpid())
    )
    with executor, progress_bar(sum(job.setting.rounds for job in jobs), "round") as bar:
        pending = {executor.submit(_work, job, os.fspath(root), store.folder): job for job in jobs}
        try:
            return _collect(pending, store, counts, bar)
        finally:  # also after Ctrl-C
            stop.set()
            executor.shutdown(cancel_futures=True)


def _collect(pending: dict[Future[Run], Job], store: Store, counts: Any, bar: Any) -> list[str]:
    """Store each run when it ends, and show the progress of all of them."""
    total = len(pending)
    problems: list[str] = []
    note = ""
    while pending:
        ended, _ = wait(pending, POLLED, FIRST_COMPLETED)
        for future in ended:
            job = pending.pop(future)
            try:
                store.add(job.setting, future.result())
                store.checkpoint(*job).unlink(missing_ok=True)
                worst = tail(future.result(), job.setting.task.metric)
                names = f"{job.setting.rule}, {job.setting.attack}"
                note = f"run {total - len(pending)}/{total}: {worst:.3f}, {names}"
            except Exception as error:
                command = f"{job.setting} --seed {job.seed}"
                problems.append(f"{command}: {type(error).__name__}: {error}")
        trained, skipped = counts[:]
        skip(bar, skipped - bar.initial)
        bar.set_postfix_str(note, refresh=False)
        bar.update(trained + skipped - bar.n)
    return problems


class StoppedError(Exception):
    """The run was told to stop."""


_shared: tuple[Event, Any, int]


def _begin(stop: Event, counts: Any, parent: int) -> None:
    """Initialize a process. Only its parent stops it, or the end of its parent."""
    global _shared
    _shared = stop, counts, parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Exit after the parent was killed: otherwise, the process would wait for work forever."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(GRACE)  # the run in progress notices, too, and saves its checkpoint
    os._exit(1)


def _work(job: Job, root: str, folder: Path) -> Run:
    stop, counts, parent = _shared
    counted = 0

    def step(simulator: Simulator) -> None:
        nonlocal counted
        with counts.get_lock():
            counts[0] += 1
            counts[1] += simulator.t - 1 - counted  # rounds of a checkpoint
        counted = simulator.t
        if stop.is_set() or os.getppid() != parent:
            raise StoppedError

    checkpoint = Store(folder).checkpoint(*job)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    found, _ = run(*job, root, step=step, checkpoint=checkpoint)
    with counts.get_lock():
        counts[1] += job.setting.rounds - counted
    return found
