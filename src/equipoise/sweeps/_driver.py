"""The processes of a sweep, on one machine or a cluster, and its progress line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any

from equipoise._utils.optional import import_optional
from equipoise.sweeps._outcome import Outcome
from equipoise.sweeps._worker import Task, run_cell

DIED = "The worker process died: it was killed, ran out of memory, or crashed in native code.\n"

Result = tuple[Task, Outcome]


def run_all(tasks: Sequence[Task], progress: Progress) -> Generator[Result, None, None]:
    """Run cells in the processes of joblib's backend, and return their outcomes as they end."""
    left = {task.cell.key: task for task in tasks}
    busy: list[Task] = []
    # Those that another sweep is running come last, so that two sweeps share the work.
    for waits in (False, True):
        if waits:
            left = {task.cell.key: replace(task, waits=True) for task in busy}
        while left:
            try:
                for task, outcome in _run_in_parallel(list(left.values()), progress):
                    del left[task.cell.key]
                    if outcome.busy:
                        busy.append(task)
                    else:
                        yield task, outcome
            except BrokenProcessPool:
                # No more than that many were running, and cells start in order.
                suspects = list(left.values())[: progress.workers]
                for task in suspects:
                    del left[task.cell.key]
                    outcome = _run_alone(task)
                    progress.count()
                    yield task, outcome


def _run_in_parallel(tasks: Sequence[Task], progress: Progress) -> Iterator[Result]:
    joblib = import_optional("joblib", "sweeps")
    # A cell takes much longer than handing it over, so no worker needs a second one in advance.
    options: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "n_jobs"}
    calls = [joblib.delayed(_run_task)(task) for task in tasks]
    try:
        parallel = joblib.Parallel(return_as="generator_unordered", **options)
    except ValueError:
        # Ray's backend returns all outcomes at the end. Its workers store them until then.
        yield from _counting_parallel(joblib, progress.count)(**options)(calls)
        return
    with closing(parallel(calls)) as results:
        for task, outcome in results:
            if not outcome.busy:
                progress.count()
            yield task, outcome


def _counting_parallel(joblib: Any, count: Callable[[], None]) -> Any:
    """A ``joblib.Parallel`` that calls ``count`` whenever a task has ended."""

    class CountingParallel(joblib.Parallel):  # type: ignore[misc]
        def print_progress(self) -> None:
            count()

    return CountingParallel


def _run_task(task: Task) -> Result:
    return task, run_cell(task)


def _run_alone(task: Task) -> Outcome:
    """Run a cell in a process of its own, whose death shows that this cell is the cause."""
    joblib = import_optional("joblib", "sweeps")
    try:
        # With one job, it would be this process.
        with joblib.parallel_config(backend="loky", n_jobs=2):
            (outcome,) = joblib.Parallel()([joblib.delayed(run_cell)(task)])
    except BrokenProcessPool:
        return Outcome(failure=DIED)
    found: Outcome = outcome
    return found


def known_backends() -> list[str]:
    """The names of joblib's backends, those of other packages included."""
    parallel = import_optional("joblib.parallel", "sweeps")
    return sorted({*parallel.BACKENDS, *parallel.EXTERNAL_BACKENDS, "ray"})


def backend_context(workers: int | None, backend: str | None) -> AbstractContextManager[Any]:
    """The backend and the number of workers, or those of an enclosing ``parallel_config``."""
    joblib = import_optional("joblib", "sweeps")
    if backend == "ray":
        import_optional("ray.util.joblib", "ray").register_ray()
    options: dict[str, Any] = {} if backend is None else {"backend": backend}
    if backend == "ray":
        # Otherwise Ray counts no processor for a worker, and puts all of them on one machine.
        options["ray_remote_args"] = {"num_cpus": 1}
    if workers is not None or backend is not None:
        # -1: as many as the machine or the cluster has processors.
        options["n_jobs"] = -1 if workers is None else workers
    context: AbstractContextManager[Any] = (
        joblib.parallel_config(**options) if options else nullcontext()
    )
    return context


class Progress:
    """One line: cells done, running and failed, and the time left."""

    def __init__(self, total: int, done: int, *, shown: bool) -> None:
        joblib = import_optional("joblib", "sweeps")
        self.workers: int = max(1, joblib.effective_n_jobs(None))
        self._failed = 0
        self._bar = import_optional("tqdm", "sweeps").tqdm(
            total=total,
            initial=done,
            unit="cell",
            # Cells differ in cost: the mean of all predicts the rest best.
            smoothing=0.0,
            dynamic_ncols=True,
            disable=not shown or sys.stderr is None or sys.stderr.closed,
        )
        self._note(done)
        self._bar.refresh()

    def count(self) -> None:
        """Count a cell as done."""
        self._note(done=self._bar.n + 1)
        self._bar.update()

    def fail(self) -> None:
        """Count a cell as failed, too."""
        self._failed += 1
        self._note(done=self._bar.n)

    def _note(self, done: int) -> None:
        running = min(self.workers, self._bar.total - done)
        self._bar.set_postfix_str(f"{running} running, {self._failed} failed", refresh=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.refresh()  # the last failure may be newer than the last update
        self._bar.close()
