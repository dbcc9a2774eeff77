"""Killed and interrupted runs keep their completed rounds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import attacks
from tests.simulation.checkpoint_runs import (
    ROUNDS,
    N,
    Remembering,
    Size,
    Wandering,
    ended,
    everything,
    everything_redrawn,
    leftovers,
    linux,
    simulator,
    trained,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def in_child(work: Callable[[], object], wait: float | None = None) -> int | None:
    """The signal that ended a process that does this work, killed after a while if asked to."""
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # of forks while there are threads
        child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    if wait is not None:
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_half_way(file: Any, array: np.ndarray, **_: Any) -> None:
    file.write(array.tobytes()[: array.nbytes // 2])
    file._fileobj.flush()
    die()


def die_afterwards(
    source: Any, target: Any, replace: Callable[[Any, Any], None] = os.replace
) -> None:
    replace(source, target)
    die()


@linux
@pytest.mark.parametrize(
    ("holder", "name", "death", "rounds"),
    [
        (zipfile.ZipFile, "writestr", die, 2),
        (np.lib.format, "write_array", die_half_way, 2),
        (os, "fsync", die, 2),
        (os, "replace", die, 2),
        (os, "replace", die_afterwards, 3),
    ],
    ids=[
        "at the beginning",
        "half-way",
        "before it is on the disk",
        "before it has its name",
        "afterwards",
    ],
)
def test_killed_while_saving(
    holder: Any, name: str, death: Callable[..., None], rounds: int, path: Path
) -> None:
    trained().run(2, checkpoint=path)

    def work() -> None:
        setattr(holder, name, death)  # in the child only
        trained().run(checkpoint=path, save_every=1)

    assert in_child(work) == signal.SIGKILL
    assert len(leftovers(path)) == (rounds == 2)
    found = trained()
    found.load(path)
    assert found.t == rounds
    assert ended(trained(), checkpoint=path) == ended(trained())


@linux
def test_killed_repeatedly(path: Path) -> None:
    def make() -> eq.Simulator:
        return simulator(
            eq.FedAvg(),
            trainer=lambda models, t: models * 1.01,
            models=torch.ones(N, 20_000),
            total=100,
            evaluate_every=20,
        )

    def work() -> None:
        make().run(checkpoint=path, save_every=1)

    chance, reached, kills = random.Random(0), [0], 0
    while (
        kills < 15
        and in_child(work, wait=chance.uniform(0.005, 0.01 + 0.01 * kills)) == signal.SIGKILL
    ):
        kills += 1
        if path.exists():
            found = make()
            found.load(path)
            reached.append(found.t)
    assert kills > 3
    assert reached == sorted(reached)
    assert ended(make(), checkpoint=path) == ended(make())


def test_old_partial_files(path: Path) -> None:
    def part(name: str, age: float) -> Path:
        file = path.with_name(name)
        file.write_bytes(b"half of a")
        os.utime(file, (time.time() - age,) * 2)
        return file

    old, young = part(f"run.npz.{'0' * 32}.part", 4000), part(f"run.npz.{'1' * 32}.part", 60)
    others = [
        part(f"run2.npz.{'0' * 32}.part", 4000),
        part("run.npz.notes.part", 4000),
        part("run.npz.old", 4000),
    ]
    simulator().run(checkpoint=path)
    assert not old.exists()
    assert young.exists()
    assert all(other.exists() for other in others)


def interrupting(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The same function, but Ctrl-C comes when it has been called for that time."""
    calls = iter(range(call + 1))

    def wrapped(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        if next(calls, None) == call:
            raise KeyboardInterrupt
        return result

    return wrapped


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (eq.LocalSGD, "train_into"),
        (attacks.Window, "forge"),
        (Remembering, "__call__"),
        (Size, "__call__"),
        (eq.History, "add"),
    ],
    ids=["training", "attack", "rule", "metric", "history"],
)
@pytest.mark.parametrize("t", [0, 2, ROUNDS - 1])
def test_ctrl_c_in_a_round(
    holder: Any, name: str, t: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part() -> eq.Simulator:
        run = trained(Remembering())
        for _ in range(t):
            run.step()
        return run

    before, whole = everything(part()), ended(trained(Remembering()))
    run = trained(Remembering())
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, interrupting(getattr(holder, name), t))
        with pytest.raises(KeyboardInterrupt):
            run.run(checkpoint=path)
    assert everything(run) == before
    assert ended(trained(Remembering()), checkpoint=path) == whole
    assert ended(run) == whole


def test_ctrl_c_after_resuming(path: Path) -> None:
    """The rounds of the checkpoint depend on how many there were to be."""
    stops = [5]

    def trainer(models: Tensor, t: int) -> Tensor:
        if t in stops:
            raise KeyboardInterrupt
        return models + 0.1 * torch.arange(4)[:, None]

    def begun() -> eq.Simulator:
        run = eq.Simulator(trainer, eq.Topology.ring(4), eq.Balance(), torch.ones(4, 2))
        with pytest.raises(KeyboardInterrupt):
            run.run(10, checkpoint=path)
        return run

    assert begun().t == 5
    again = begun()
    assert (again.t, again.total) == (5, 10)
    stops.clear()
    again.run()
    whole = eq.Simulator(trainer, eq.Topology.ring(4), eq.Balance(), torch.ones(4, 2))
    whole.run(10)
    assert torch.equal(again.models, whole.models)


INTERRUPTED = {"simulation"}  # the folder of the simulator


def interrupt_after(lines: int, work: Callable[[], object]) -> bool:
    """Whether Ctrl-C after so many lines of code of a simulator interrupted some work."""
    left = [lines]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not set(Path(frame.f_code.co_filename).parts) & INTERRUPTED:
            return None
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_ctrl_c_anywhere(path: Path) -> None:
    run, after = (simulator(Remembering(), trainer=Wandering()) for _ in range(2))
    run.run(2)
    run.save(path)
    after.run(3)
    states, found = [everything(run), everything(after)], list[int]()
    while interrupt_after(len(found), run.step):
        found.append(states.index(everything(run)))
        if found[-1] == 1:
            run.load(path)
    assert found.count(0) > 100
    assert found.count(1) > 0
    assert found == sorted(found)
    assert everything(run) == states[1]


SCRIPT = """
import sys, time
from tests.simulation.checkpoint_runs import everything_redrawn, pull

def slow(models, t, pull=pull):
    print(t, flush=True)
    time.sleep(0.02)
    return pull(models, t)

slow.__qualname__ = pull.__qualname__
run = everything_redrawn(trainer=slow, total=1000, evaluate_every=1)
try:
    run.run(checkpoint=sys.argv[1])
except KeyboardInterrupt:
    print("stopped", run.t, len(run.history), len(run.history.worst("size")[0]))
"""


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@linux
def test_ctrl_c_in_a_terminal(path: Path) -> None:
    """Functions have other addresses in another process, but it is the same run."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", SCRIPT, str(path)]
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whatever the tests were told
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=heeds
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "3":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().splitlines()[-1]
    t = int(last.split()[1])
    assert last == f"stopped {t} {t} {t}"
    assert 3 <= t < 20
    run, whole = (everything_redrawn(total=1000, evaluate_every=1) for _ in range(2))
    assert ended(run, rounds=t + 5, checkpoint=path) == ended(whole, rounds=t + 5)
