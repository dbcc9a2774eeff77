"""Many simulations: every cell of a grid, in several processes."""

from __future__ import annotations

import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from equipoise._utils.identity import digest, identity
from equipoise._utils.optional import import_optional
from equipoise._utils.validation import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    is_integer,
)
from equipoise._utils.version import __version__
from equipoise.simulation import History, Simulator
from equipoise.sweeps._driver import Progress, backend_context, known_backends, run_all
from equipoise.sweeps._grid import Cell, cells_of
from equipoise.sweeps._outcome import Outcome
from equipoise.sweeps._results import CellResult, Results
from equipoise.sweeps._store import CellFolder, begin, listed_cells
from equipoise.sweeps._worker import Functions, Task


def sweep(
    make: Callable[..., Simulator | History],
    grid: Iterable[Mapping[str, Any]] | None = None,
    /,
    *,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    backend: str | None = None,
    recompute: bool | Callable[..., bool] = False,
    measure: Callable[[Simulator], Mapping[str, Any]] | None = None,
    on_round: Callable[[Simulator], object] | None = None,
    save_every: int = 100,
    threads: int | None = 1,
    progress: bool = True,
    **axes: Sequence[Any] | Mapping[str, Any],
) -> Results:
    """Run a simulation for every choice of arguments, and return all results.

    The grid is the product of the ``axes``. Alternatively, or in addition, it is a list of dicts,
    one for each choice.

    With a ``folder``, a sweep can be interrupted at any time, even by a power failure: the same
    call goes on from the last checkpoints, and does not run finished cells again. Several processes
    and machines may share a folder and thus the work. A cell is known by its choice, by the version
    of equipoise, and by the source of the functions, including your own functions and the values
    that they use: another learning rate in the script is another cell.

    A cell that raises an error is a failure, with its traceback in the results; the sweep goes on.
    Failed cells run again in the next call. Only a full disk ends a sweep.

    Args:
        make: ``make(**choice)`` returns a `Simulator` that knows its ``total``, or the `History` of
            a run. It runs in another process, so it also makes, or loads, its data.
        grid: choices, as dicts of arguments.
        folder: where to keep results and checkpoints; None keeps results in memory.
        workers: number of processes; -1 for all cores. One runs in this process.
        backend: a backend of joblib, such as ``"ray"`` or ``"dask"``, instead of processes on this
            machine. ``joblib.parallel_config`` works as well. The folder must then be on a file
            system of all machines.
        recompute: run finished cells again: True for all, or a function that is called like
            ``make`` and returns whether to.
        measure: ``measure(simulator)`` after the last round returns a dict of further results, such
            as ``{"norm": 1.5}``, which become columns of the tables.
        on_round: called with the simulator after each round; a cell ends early if it returns True.
        save_every: number of rounds between two checkpoints of a cell. Simulations whose trainer
            has a memory but no ``state_dict`` start again instead.
        threads: threads of torch in each process; None leaves the number to torch. With several
            processes, one each is fastest, and results do not depend on the number of cores.
        progress: show a line with the cells done, running and failed, and the time left.
        **axes: the arguments of ``make``, each with a list of its values, or with a dict that gives
            the values names.

    >>> def make(rule, seed):
    ...     def trainer(models, t):
    ...         return models - 0.1 * (models - seed)
    ...     graph = eq.Topology.ring(4)
    ...     return eq.Simulator(trainer, graph, rule, torch.ones(4, 1), total=20,
    ...                         metrics={"distance": lambda models: (models - seed).abs().sum(1)})
    >>> rules = [eq.Median(), eq.FedAvg()]
    >>> results = eq.sweep(make, rule=rules, seed=range(3), progress=False)
    >>> print(results.table(rows="rule", value="max_distance"))
            max_distance
    rule
    Median   0.08 ± 0.07
    FedAvg   0.08 ± 0.07
    """
    functions = Functions(make, measure, on_round)
    _check_functions(functions)
    _check_resources(workers, threads, backend)
    check_count("save_every", save_every, 1)
    check_flag("progress", progress)
    if not callable(recompute):
        check_flag("recompute", recompute)
    cells = cells_of(grid, axes, f"{__version__} {digest(identity(tuple(functions)))}")
    _check_arguments(make, cells[0])
    # Absolute: a worker may have another working directory.
    place = None if folder is None else Path(folder).absolute()
    fresh = _keys_to_recompute(recompute, cells)
    known = _known(place, cells, fresh)
    pickled = import_optional("cloudpickle", "sweeps").dumps(functions)
    tasks = [
        Task(
            cell=cell,
            functions=pickled,
            folder=place,
            fresh=cell.key in fresh,
            waits=False,
            save_every=save_every,
            threads=threads,
            driver=os.getpid(),
        )
        for cell in cells
        if cell.key not in known
    ]
    warned = Counter[tuple[type[Warning], str]]()
    with (
        backend_context(workers, backend),
        Progress(len(cells), len(known), shown=progress) as line,
        # Closed at once after Ctrl-C: this ends the workers.
        closing(run_all(tasks, line)) as outcomes,
    ):
        for task, outcome in outcomes:
            known[task.cell.key] = outcome
            warned.update(outcome.warnings)
            if outcome.failure:
                line.fail()
    for (category, text), count in warned.items():
        warnings.warn(f"{text} (in {count} of {len(cells)} cells)", category, stacklevel=2)
    return Results([_result(cell, known[cell.key]) for cell in cells])


def read(folder: str | os.PathLike[str]) -> Results:
    """The results of the last sweep that ran in a folder, as far as they exist.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> def make(rate):
    ...     return eq.History(1, rounds=[eq.Round(0, {"error": [rate]})])
    >>> _ = eq.sweep(make, rate=[0.5, 0.25], folder=folder, progress=False)
    >>> eq.sweeps.read(folder).summary()[["rate", "max_error"]]
       rate  max_error
    0  0.50       0.50
    1  0.25       0.25
    """
    place = Path(folder)
    cells = listed_cells(place, __version__)
    return Results([_result(cell, CellFolder(place, cell.key).outcome()) for cell in cells])


def _check_functions(functions: Functions) -> None:
    check_callable("make", functions.make)
    if functions.measure is not None:
        check_callable("measure", functions.measure)
    if functions.on_round is not None:
        check_callable("on_round", functions.on_round)


def _check_resources(workers: object, threads: object, backend: str | None) -> None:
    if workers is not None and (not is_integer(workers) or (workers < 1 and workers != -1)):
        expected = "an integer at least 1, or -1 for all cores"
        raise ValueError(f"workers must be {expected}, found {workers!r}")
    if threads is not None:
        check_count("threads", threads, 1)
    if backend is not None:
        check_choice("backend", backend, known_backends())


def _check_arguments(make: Callable[..., object], cell: Cell) -> None:
    """Raise unless ``make`` accepts the arguments of a cell; all cells have the same names."""
    try:
        # A decorator may accept other arguments than the function that it wraps.
        signature = inspect.signature(make, follow_wrapped=False)
    except (TypeError, ValueError):  # not every callable in C has a signature
        return
    try:
        signature.bind(**cell.choice)
    except TypeError as error:
        names = ", ".join(cell.choice)
        raise ValueError(f"make must accept the arguments of the sweep, {names}: {error}") from None


def _known(folder: Path | None, cells: Sequence[Cell], fresh: set[str]) -> dict[str, Outcome]:
    """The outcomes of finished cells, by key."""
    if folder is None:
        return {}
    begin(folder, cells, __version__)
    found = {
        cell.key: CellFolder(folder, cell.key).outcome() for cell in cells if cell.key not in fresh
    }
    return {key: outcome for key, outcome in found.items() if outcome.history is not None}


def _keys_to_recompute(recompute: bool | Callable[..., bool], cells: Sequence[Cell]) -> set[str]:
    if callable(recompute):
        return {cell.key for cell in cells if recompute(**cell.choice)}
    return {cell.key for cell in cells} if recompute else set()


def _result(cell: Cell, outcome: Outcome) -> CellResult:
    if outcome.history is not None and not outcome.history.name:
        outcome.history.name = ", ".join(map(str, cell.labels.values()))
    return CellResult(cell.labels, outcome.history, outcome.failure, outcome.measured, cell.choice)
