"""Many runs, spread over processes, that can be interrupted at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.paper.results import DamagedError, Store
from benchmarks.paper.run import Run, run, tail
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import load
from equipoise._utils.progress import Progress
from equipoise.simulation import Simulator

POLLED = 0.5  # seconds between two looks at how far everybody is
GRACE = 20.0  # seconds to finish a round and save it


class Job(NamedTuple):
    """A run that is wanted."""

    setting: Setting
    seed: int


def missing(store: Store, settings: Iterable[Setting], seeds: Sequence[int]) -> list[Job]:
    """The runs that the store has not, seed by seed; files that are damaged are reported, and run again."""
    known: dict[Setting, set[int]] = {}
    for setting in dict.fromkeys(settings):
        try:
            known[setting] = {one["seed"] for one in store.runs(setting)}
        except DamagedError as error:
            print(f"{error}: it is run again.", file=sys.stderr)
            known[setting] = set()
    return [Job(setting, seed) for seed in seeds for setting in known if seed not in known[setting]]


def run_all(jobs: Sequence[Job], root: str | os.PathLike[str], store: Store, processes: int) -> list[str]:
    """Run them, each in one thread of one of so many processes, and store what comes out; returns what went wrong.

    After Ctrl-C, every process saves where it is, and goes on from there the next time.
    """
    if not jobs:
        return []
    load(jobs[0].setting.data, os.fspath(root), jobs[0].seed)  # a missing file is better reported once, and now
    context = multiprocessing.get_context("spawn")
    stop, counts = context.Event(), context.Array("q", 2)  # of rounds: trained, and skipped
    executor = ProcessPoolExecutor(
        min(processes, len(jobs)), context, initializer=_begin, initargs=(stop, counts, os.getpid())
    )
    with executor, Progress(sum(job.setting.rounds for job in jobs), "round") as bar:
        pending = {executor.submit(_work, job, os.fspath(root), store.folder): job for job in jobs}
        try:
            return _collect(pending, store, counts, bar)
        finally:  # also after Ctrl-C
            stop.set()
            executor.shutdown(cancel_futures=True)


def _collect(pending: dict[Future[Run], Job], store: Store, counts: Any, bar: Progress) -> list[str]:
    """Store every run when it ends, and show how far all of them are."""
    total, problems, note = len(pending), list[str](), ""
    while pending:
        ended, _ = wait(pending, POLLED, FIRST_COMPLETED)
        for future in ended:
            job = pending.pop(future)
            try:
                store.add(job.setting, future.result())
                store.checkpoint(*job).unlink(missing_ok=True)
                worst = tail(future.result(), job.setting.task.metric)
                note = f"run {total - len(pending)}/{total}: {worst:.3f}, {job.setting.rule}, {job.setting.attack}"
            except Exception as error:
                problems.append(f"{job.setting} --seed {job.seed}: {type(error).__name__}: {error}")
        trained, skipped = counts[:]
        bar.skip(skipped - bar.skipped)
        bar.advance(note, steps=trained + skipped - bar.done)
    return problems


class StoppedError(Exception):
    """The run was told to stop."""


_shared: tuple[Event, Any, int]


def _begin(stop: Event, counts: Any, parent: int) -> None:
    """What a process does first. It is told to stop by its parent alone, or by its parent's end."""
    global _shared
    _shared = stop, counts, parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A process that waits for work from a parent that was killed would wait forever; first let it save its run."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(GRACE)
    os._exit(1)


def _work(job: Job, root: str, folder: Path) -> Run:
    stop, counts, parent = _shared
    counted = 0

    def step(simulator: Simulator) -> None:
        nonlocal counted
        with counts.get_lock():
            counts[0] += 1
            counts[1] += simulator.t - 1 - counted  # what a checkpoint had
        counted = simulator.t
        if stop.is_set() or os.getppid() != parent:
            raise StoppedError

    checkpoint = Store(folder).checkpoint(*job)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    found, _ = run(*job, root, step=step, checkpoint=checkpoint)
    with counts.get_lock():
        counts[1] += job.setting.rounds - counted
    return found
