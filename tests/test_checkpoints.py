"""Runs that are interrupted, killed or damaged go on to exactly the same end, or say why they cannot."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks
from equipoise._utils.rng import stream
from equipoise.simulation import checkpoints
from equipoise.simulation.history import Round

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")

N, D, ROUNDS = 6, 5, 5
MALICIOUS = [0, 3]
GRAPH = eq.Topology.regular(N, 4, seed=1, malicious=MALICIOUS)
GOALS = 1 + 0.1 * torch.randn(N, D, generator=stream(0, "goals"), dtype=torch.float64)
X, Y = torch.randn(N, 9, 4, generator=stream(0, "x")), torch.randint(3, (N, 9), generator=stream(0, "y"))

linux = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes")


# Runs of every kind


def pull(models: Tensor, t: int) -> Tensor:
    """Local training on a quadratic loss."""
    return models + 0.5 * (GOALS[: len(models), : models.shape[1]].to(models.dtype) - models)


class Size:
    """A metric."""

    def __call__(self, models: Tensor) -> Tensor:
        return models.double().norm(dim=1)


def simulator(rule: Any = eq.Balance(), **options: Any) -> eq.Simulator:  # noqa: B008
    settings: dict[str, Any] = {
        "trainer": pull,
        "topology": GRAPH,
        "models": torch.ones(N, D, dtype=torch.float64),
        "attack": attacks.Gaussian(),
        "malicious": MALICIOUS,
        "metrics": {"size": Size()},
        "total": ROUNDS,
    }
    return eq.Simulator(rule=rule, **settings | options)


def sgd(momentum: float = 0.9, data: tuple[Tensor, Tensor] = (X, Y), **options: Any) -> eq.LocalSGD:
    clients = list(zip(*data, strict=True))
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "momentum": momentum}
    return eq.LocalSGD(eq.models.logistic_regression(4, 3), nn.functional.cross_entropy, clients, **settings | options)


def trained(rule: Any = eq.FedAvg(), **options: Any) -> eq.Simulator:  # noqa: B008
    """With real training, momentum and data that are poisoned for a while."""
    start = torch.randn(15, generator=stream(0, "start")).expand(N, -1)
    window = attacks.Window(attacks.LabelFlip({0: 1, 1: 2, 2: 0}), 1, 3)
    return simulator(rule, **{"trainer": sgd(), "models": start, "attack": window} | options)


class Remembering:
    """A rule with a state: the mean of all aggregates so far."""

    def __call__(self, own: Tensor, received: Any, *, state: Any = None, **_: Any) -> eq.Aggregated:
        before = state or {"sum": torch.zeros_like(own), "count": torch.tensor(0)}
        now = {"sum": before["sum"] + eq.Median()(own, received).model, "count": before["count"] + 1}
        return eq.Aggregated(now["sum"] / now["count"], None, now)


class Wandering:
    """A trainer of one's own, with a state."""

    def __init__(self) -> None:
        self.places = torch.zeros(N, D, dtype=torch.bfloat16)

    def __call__(self, models: Tensor, t: int) -> Tensor:
        self.places = self.places + torch.randn(N, D, generator=stream(0, "wander", t)).bfloat16()
        return models + self.places

    def state_dict(self) -> dict[str, Tensor]:
        return {"places": self.places}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.places = state["places"].clone()


def everything_redrawn(**options: Any) -> eq.Simulator:
    """Cases II and IV of the paper, and clients that disconnect."""
    rules = [eq.Median(), eq.Balance(), eq.Krum(), eq.TrimmedMean()]
    return simulator(
        eq.EachRound(lambda t, generator: eq.PerClient.drawn(rules, N, generator)),
        topology=eq.EachRound(lambda t, generator: GRAPH.drop(0.3, generator)),
        alpha=eq.EachRound(lambda t, generator: torch.rand(N, generator=generator)),
        **options,
    )


RUNS: dict[str, Callable[[], eq.Simulator]] = {
    "plain": simulator,
    "momentum, and poison for a while": trained,
    "a learning rate for every round": lambda: trained(trainer=sgd(lr=lambda t: 0.1 * 0.5**t)),
    "losses": lambda: trained(eq.UBAR()),
    "several exchanges": lambda: trained(eq.LEARN()),
    "everything redrawn": everything_redrawn,
    "a rule with a state": lambda: simulator(Remembering()),
    "a trainer of one's own": lambda: simulator(trainer=Wandering()),
    "local training only": lambda: simulator(None),
    "measured now and then": lambda: simulator(
        evaluate_every=2, metrics={"a": Size(), "b": lambda models: models[:, 0].double()}
    ),
    "not measured": lambda: simulator(metrics=None),
    "one client": lambda: simulator(
        topology=eq.Topology.complete(1), models=torch.ones(1, D), malicious=None, attack=None
    ),
    "NaN": lambda: simulator(eq.FedAvg(), attack=attacks.NonFinite(), keep_nonfinite=True),
    "bfloat16": lambda: simulator(models=torch.ones(N, D, dtype=torch.bfloat16)),
    "float16": lambda: simulator(models=torch.ones(N, D, dtype=torch.float16)),
}
every_kind = pytest.mark.parametrize("make", RUNS.values(), ids=list(RUNS))


@cache
def undisturbed(make: Callable[[], eq.Simulator]) -> dict[str, Any]:
    return ended(make())


def everything(run: eq.Simulator, *, seconds: bool = False) -> dict[str, Any]:
    """All that changes from round to round, bit by bit."""
    history = run.history.to_dict()
    rounds = [one if seconds else one | {"seconds": None} for one in history["rounds"]]
    trainer = run.trainer.state_dict() if hasattr(run.trainer, "state_dict") else None
    rule_state = run.state.rule_state
    return {
        "models": bits(run.models),
        "t": run.t,
        "total": run.total,
        "state": rule_state and {name: bits(x) for name, x in rule_state.items()},
        "trainer": trainer and {name: bits(x) for name, x in trainer.items()},
        "history": json.dumps(history | {"rounds": rounds}),  # as text, so that order counts
        "diverged": run.history.diverged,
    }


def bits(x: Tensor) -> tuple[Any, ...]:
    return str(x.dtype), tuple(x.shape), x.contiguous().view(torch.uint8 if x.dim() else x.dtype).numpy().tobytes()


def ended(run: eq.Simulator, **options: Any) -> dict[str, Any]:
    run.run(**options)
    return everything(run)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.npz"


def leftovers(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.part"))


# Bit by bit


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@every_kind
@pytest.mark.parametrize("cut", range(ROUNDS + 1))
def test_a_run_goes_on_from_any_round_as_if_nothing_had_happened(
    make: Callable[[], eq.Simulator], cut: int, path: Path
) -> None:
    first = make()
    for _ in range(cut):
        first.step()
    first.save(path)
    second = make()
    second.load(path)
    assert everything(second, seconds=True) == everything(first, seconds=True)
    assert second.t == cut
    assert ended(second) == undisturbed(make)


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@every_kind
def test_a_run_that_ends_in_every_round_is_the_same_run(make: Callable[[], eq.Simulator], path: Path) -> None:
    for rounds in range(1, ROUNDS + 1):
        run = make()
        assert len(run.run(rounds, checkpoint=path)) == rounds
    assert everything(run) == undisturbed(make)


def test_a_simulator_that_was_used_forgets_what_it_did(path: Path) -> None:
    for make in (trained, RUNS["a rule with a state"]):
        used = make()
        make().save(path)
        used.run()
        used.load(path)
        assert everything(used) == everything(make())
        assert ended(used) == ended(make())


def test_models_lie_in_memory_as_torch_would_have_them(path: Path) -> None:
    """The last digits of a sum may depend on the alignment of its terms."""
    run = trained()
    run.run(2)
    for _ in range(5):
        run.save(path)
        run.load(path)
        assert run.models.data_ptr() % 64 == 0


def test_the_name_is_that_of_the_simulator(path: Path) -> None:
    simulator(name="then").run(2, checkpoint=path)
    assert simulator(name="now").run(checkpoint=path).name == "now"


def test_numpy_reads_it_without_pickle(path: Path) -> None:
    run = trained()
    run.run(2, checkpoint=path)
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["models"], run.models.numpy())
        assert set(archive) == {"about.json", "models", "numbers", "trainer/velocity"}


# Rounds and total


def test_rounds_count_from_the_start(path: Path) -> None:
    assert len(simulator().run(2, checkpoint=path)) == 2
    assert len(simulator().run(3, checkpoint=path)) == 3
    run = simulator()
    run.load(path)
    assert len(run.run(1)) == 4
    assert len(simulator().run(checkpoint=path)) == ROUNDS


def test_a_finished_run_returns_at_once_and_leaves_the_file(path: Path) -> None:
    def fails(models: Tensor, t: int) -> Tensor:
        raise AssertionError("a round too many")

    whole = simulator()
    whole.run(checkpoint=path)
    before, fails.__qualname__ = os.stat(path), pull.__qualname__
    again = simulator(trainer=fails)
    assert again.run(ROUNDS, checkpoint=path) == whole.history
    assert everything(again) == everything(whole)
    assert os.stat(path) == before


def test_total_comes_from_the_checkpoint_if_nobody_gives_another(path: Path) -> None:
    simulator().run(2, checkpoint=path)
    run = simulator(total=None)
    run.load(path)
    assert run.total == ROUNDS
    assert ended(run) == ended(simulator())
    assert ended(simulator(total=None), rounds=ROUNDS, checkpoint=path) == ended(simulator())


def test_a_checkpoint_that_knows_no_total_fits_any(path: Path) -> None:
    run, whole = simulator(eq.FedAvg(), total=None), simulator(eq.FedAvg())
    run.step()
    run.save(path)
    assert ended(simulator(eq.FedAvg()), checkpoint=path) == ended(whole)


def test_a_run_cannot_become_longer_than_it_was_to_be(path: Path) -> None:
    """BALANCE accepts less and less until total: the first rounds would have been others."""
    simulator(total=None).run(2, checkpoint=path)
    longer = simulator(total=None)
    with pytest.raises(ValueError, match=r"run\.npz must be a checkpoint of the same run, found total 2 instead of 4$"):
        longer.run(4, checkpoint=path)
    assert (longer.total, longer.t, len(longer.history)) == (None, 0, 0)


def test_fewer_rounds_than_there_are(path: Path) -> None:
    simulator().run(4, checkpoint=path)
    run = simulator()
    with pytest.raises(ValueError, match=r"rounds must be at least the 4 of .*run\.npz, found 3"):
        run.run(3, checkpoint=path)
    assert everything(run) == everything(simulator())


@pytest.mark.parametrize("every", [0, -1, 1.5, None])
def test_save_every_is_a_number_of_rounds(every: Any, path: Path) -> None:
    with pytest.raises(ValueError, match=f"save_every must be an integer at least 1, found {every}"):
        simulator().run(checkpoint=path, save_every=every)


def test_when_it_is_saved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = checkpoints.save
    monkeypatch.setattr(checkpoints, "save", lambda path, state, run: (saved.append(state.t), save(path, state, run)))
    simulator().run(checkpoint=path, save_every=2)
    assert saved == [0, 2, 4, 5]
    simulator().run(checkpoint=path)
    assert saved == [0, 2, 4, 5]


# Killed


def in_child(work: Callable[[], object], wait: float | None = None) -> int | None:
    """The signal that ended a process that does this work, killed after a while if asked to."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of forks while there are threads
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


def die_afterwards(source: Any, target: Any, replace: Callable[[Any, Any], None] = os.replace) -> None:
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
    ids=["at the beginning", "half-way", "before it is on the disk", "before it has its name", "afterwards"],
)
def test_who_is_killed_while_saving_leaves_a_checkpoint(
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
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(path: Path) -> None:
    def make() -> eq.Simulator:
        return simulator(
            eq.FedAvg(), trainer=lambda models, t: models * 1.01, models=torch.ones(N, 20_000), total=100, evaluate_every=20
        )

    def work() -> None:
        make().run(checkpoint=path, save_every=1)

    chance, reached, kills = random.Random(0), [0], 0
    while kills < 15 and in_child(work, wait=chance.uniform(0.005, 0.01 + 0.01 * kills)) == signal.SIGKILL:
        kills += 1
        if path.exists():
            found = make()
            found.load(path)
            reached.append(found.t)
    assert kills > 3
    assert reached == sorted(reached)
    assert ended(make(), checkpoint=path) == ended(make())


def test_what_killed_runs_left_is_deleted_when_it_is_old(path: Path) -> None:
    def part(name: str, age: float) -> Path:
        file = path.with_name(name)
        file.write_bytes(b"half of a")
        os.utime(file, (time.time() - age,) * 2)
        return file

    old, young = part(f"run.npz.{'0' * 32}.part", 4000), part(f"run.npz.{'1' * 32}.part", 60)
    others = [part(f"run2.npz.{'0' * 32}.part", 4000), part("run.npz.notes.part", 4000), part("run.npz.old", 4000)]
    simulator().run(checkpoint=path)
    assert not old.exists()
    assert young.exists()
    assert all(other.exists() for other in others)


# Interrupted


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
        (eq.LocalSGD, "__call__"),
        (attacks.Window, "forge"),
        (Remembering, "__call__"),
        (Size, "__call__"),
        (eq.History, "add"),
    ],
    ids=["training", "attack", "rule", "metric", "history"],
)
@pytest.mark.parametrize("t", [0, 2, ROUNDS - 1])
def test_ctrl_c_leaves_the_rounds_that_are_complete(
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


def test_ctrl_c_in_the_first_round_after_resuming_forgets_nothing(path: Path) -> None:
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


INTERRUPTED = {"simulator.py", "simulation", "history.py", "rounds.py"}  # files, and a folder of them


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


def test_ctrl_c_anywhere_in_a_round_leaves_it_undone_or_done(path: Path) -> None:
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
from tests.test_checkpoints import everything_redrawn, pull

def slow(models, t, pull=pull):
    print(t, flush=True)
    time.sleep(0.02)
    return pull(models, t)

slow.__qualname__ = pull.__qualname__
run = everything_redrawn(trainer=slow, total=1000)
try:
    run.run(checkpoint=sys.argv[1])
except KeyboardInterrupt:
    print("stopped", run.t, len(run.history), len(run.history.worst("size")[0]))
"""


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@linux
def test_ctrl_c_in_a_terminal(path: Path) -> None:
    """And in another process, functions lie elsewhere in memory: it is the same run all the same."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", SCRIPT, str(path)]
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whatever the tests were told
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=heeds) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "3":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().splitlines()[-1]
    t = int(last.split()[1])
    assert last == f"stopped {t} {t} {t}"
    assert 3 <= t < 20
    run, whole = everything_redrawn(total=1000), everything_redrawn(total=1000)
    assert ended(run, rounds=t + 5, checkpoint=path) == ended(whole, rounds=t + 5)


# Not saved


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@linux
@pytest.mark.parametrize("room", [0, 100, 1500, 3000, 20_000])
def test_a_full_disk_leaves_the_checkpoint_before(room: int, path: Path) -> None:
    def make() -> eq.Simulator:
        return simulator(models=torch.ones(N, 1000, dtype=torch.float64), trainer=lambda models, t: 0.9 * models)

    make().run(2, checkpoint=path)
    run, before = make(), path.read_bytes()
    with no_file_longer_than(room), pytest.raises(OSError, match=r"checkpoint could not be saved: .*run\.npz'"):
        run.run(checkpoint=path, save_every=1)
    assert path.read_bytes() == before
    assert leftovers(path) == []
    assert run.t == len(run.history) == 3
    assert ended(make(), checkpoint=path) == ended(make())


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere."""
    root = os.geteuid() == 0
    os.seteuid(65534) if root else None
    try:
        yield
    finally:
        os.seteuid(0) if root else None


@pytest.fixture
def read_only() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        simulator().run(2, checkpoint=Path(folder) / "run.npz")
        os.chmod(folder, 0o555)
        yield Path(folder) / "run.npz"
        os.chmod(folder, 0o755)


@linux
def test_a_read_only_folder(read_only: Path) -> None:
    before = read_only.read_bytes()
    with (
        unprivileged(),
        pytest.raises(PermissionError, match=r"checkpoint could not be saved: Permission denied: .*npz"),
    ):
        simulator().run(checkpoint=read_only, save_every=1)
    assert read_only.read_bytes() == before


def test_a_place_where_nothing_can_be_saved_is_known_before_the_first_round(tmp_path: Path) -> None:
    def fails(models: Tensor, t: int) -> Tensor:
        raise AssertionError("work that will be lost")

    run = simulator(trainer=fails, total=None)
    with pytest.raises(FileNotFoundError, match=r"checkpoint could not be saved: No such file.*nowhere.run\.npz"):
        run.run(3, checkpoint=tmp_path / "nowhere" / "run.npz")
    with pytest.raises(IsADirectoryError):
        run.run(3, checkpoint=tmp_path)
    assert run.total is None
    assert list(tmp_path.iterdir()) == []


def test_links_stay_links(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere / "run.npz")
    simulator().run(2, checkpoint=path)
    simulator().run(3, checkpoint=path)
    assert path.is_symlink()
    assert [file.name for file in elsewhere.iterdir()] == ["run.npz"]


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ([torch.ones(1)], "dict of tensors to be saved, found list"),
        ({"a": {"b": torch.ones(1)}, "c": 1}, "dict of tensors to be saved, found a dict of dict, int"),
        ({1: torch.ones(1)}, r"plain strings as keys to be saved, found \[1\]"),
        ({"a\0b": torch.ones(1)}, "plain strings as keys to be saved, found"),
    ],
)
def test_states_that_are_no_plain_data(state: Any, found: str, path: Path) -> None:
    class Odd:
        def __call__(self, own: Tensor, received: Any, **_: Any) -> eq.Aggregated:
            return eq.Aggregated(own, None, state)

    with pytest.raises(ValueError, match=f"state of the rule must (be a|have) {found}"):
        simulator(Odd()).run(checkpoint=path)
    again = simulator(Odd())
    again.load(path)  # the one from the start
    assert everything(again) == everything(simulator(Odd()))


# Damaged, and foreign


def refused(path: Path, match: str) -> None:
    """Neither loading nor running changes anything, or starts over."""
    run, content = trained(), path.read_bytes()
    run.step()
    before = everything(run, seconds=True)
    for attempt in (run.load, lambda path: run.run(checkpoint=path)):
        with pytest.raises(ValueError, match=f"{path.name} must be a checkpoint.*{match}"):
            attempt(path)
        assert everything(run, seconds=True) == before
        assert path.read_bytes() == content


@pytest.fixture
def small(path: Path) -> Path:
    trained().run(2, checkpoint=path)
    return path


def test_no_part_of_a_checkpoint_is_a_checkpoint(small: Path) -> None:
    run = trained()
    run.step()
    before = everything(run, seconds=True)
    for length in reversed(range(small.stat().st_size)):
        os.truncate(small, length)
        with pytest.raises(ValueError, match="format 2, found another file, or a damaged one"):
            run.load(small)
        assert everything(run, seconds=True) == before


def overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(position)
        file.write(data)


def test_damage_is_noticed_unless_it_says_nothing(small: Path) -> None:
    """What says nothing is, for example, the date in an archive."""
    content, chance, run, unnoticed = small.read_bytes(), random.Random(0), trained(), 0
    run.load(small)
    saved = everything(run, seconds=True)
    for position in range(0, len(content), 2):
        length = chance.choice([1, 1, 1, 30])
        overwrite(small, position, bytes(x ^ (1 << chance.randrange(8)) for x in content[position : position + length]))
        with suppress(ValueError):
            run.load(small)
            unnoticed += 1
        assert everything(run, seconds=True) == saved
        overwrite(small, position, content[position : position + length])
    assert unnoticed < len(content) / 20


def test_an_array_that_says_it_is_smaller_is_damaged(path: Path) -> None:
    """Then its checksum, at the end of what it was, must be looked at all the same."""

    def make() -> eq.Simulator:
        return simulator(Remembering(), trainer=lambda models, t: 0.9 * models, models=torch.ones(N, 2000))

    make().run(2, checkpoint=path)
    content = path.read_bytes()
    overwrite(path, content.index(b"(6, 2000)", content.index(b"rule/sum.npy")), b"(6, 1000)")
    with pytest.raises(ValueError, match=r"found another file, or a damaged one: BadZipFile: Bad CRC-32.*rule/sum"):
        make().load(path)


class Payload:
    """What runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def edited(path: Path, **members: Any) -> None:
    """The same archive, with some members replaced; its checksums are right."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for name, new in members.items():
        content |= {f"{name}.npy": new} if name != "about" else {"about.json": new(json.loads(content["about.json"]))}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data if isinstance(data, bytes) else json.dumps(data))


def pickled_array(payload: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([payload], dtype=object), allow_pickle=True)
    return file.getvalue()


def test_nothing_is_ever_unpickled(small: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    array = pickled_array(Payload(marker))
    np.load(io.BytesIO(array), allow_pickle=True)
    assert marker.is_dir()
    marker.rmdir()

    edited(small, models=array)
    refused(small, r"models of shape \(1,\) in \d+ bytes")
    edited(small, models=pickle.dumps(Payload(marker)))
    refused(small, "the magic string is not correct")
    small.write_bytes(pickle.dumps(Payload(marker)))
    refused(small, "not a zip file")
    torch.save({"models": Payload(marker)}, small)
    refused(small, "no item named 'about.json'")
    assert not marker.exists()


def test_other_files(path: Path) -> None:
    files: dict[str, Callable[[], object]] = {
        "not a zip file": lambda: path.write_bytes(b""),
        "File is not": lambda: path.write_text("round,client\n"),
        "no item named 'about.json'": lambda: np.savez(path, models=np.ones((N, 15))),
        "about.json": lambda: torch.save(torch.ones(N, 15), path),
        "JSONDecodeError": lambda: zipfile.ZipFile(path, "w").writestr("about.json", "models"),
    }
    for match, write in files.items():
        write()
        refused(path, match)


def saved_array(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_an_older_format_is_named(small: Path) -> None:
    edited(small, about=lambda about: about | {"format": 1})
    refused(small, "of format 2, .*: ValueError: format 1, which this version does not read")


LAYOUT = {"layouts": [[[], [], []]], "rounds": [[0, 0, []], [1, 0, []]]}
FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "settings are missing": ({"settings": None}, "TypeError"),
    "t is negative": ({"t": -1}, "t must be an integer from 0 to 5, found -1"),
    "t is a word": ({"t": "two"}, "t must be an integer from 0 to 5, found 'two'"),
    "t is a float": ({"t": 2.0}, "t must be an integer from 0 to 5, found 2.0"),
    "t is beyond total": ({"t": 10**9}, "t must be an integer from 0 to 5, found 1000000000"),
    "t is beyond the history": ({"t": 3}, "one record for each of the t = 3 rounds, found 2"),
    "t is before the history": ({"t": 1}, "one record for each of the t = 1 rounds, found 2"),
    "no layout": ({"history": LAYOUT | {"layouts": []}}, "IndexError"),
    "no numbers": ({"history": LAYOUT}, r"numbers float64 \(\d+,\) instead of float64 \(0,\)"),
    "more numbers": ({"history": LAYOUT | {"layouts": [[[], ["a"], []]]}}, r"of float64 \(2,\)"),
    "history of nothing": ({"history": {}}, "KeyError"),
    "dtypes are missing": ({"dtypes": {}}, r"members .*'models.npy'.* instead of \['about.json'\]"),
    "dtypes are a list": ({"dtypes": []}, "members"),
    "a state is missing": ({"dtypes": {"models": "float32", "rule/a": "float32"}}, "members"),
    "stateful is a number": ({"stateful": 1}, "stateful 1"),
}


@pytest.mark.parametrize(("edit", "match"), FORGERIES.values(), ids=list(FORGERIES))
def test_a_forged_field_is_refused(edit: dict[str, Any], match: str, small: Path) -> None:
    edited(small, about=lambda about: about | edit)
    refused(small, f"format 2, found another file, or a damaged one: .*{match}")


@pytest.mark.parametrize(
    ("layout", "diverged", "match"),
    [
        ([["size"], ["bytes", "bytes"], []], [], "rounds that would not be written like this"),
        ([["size"], "ab", []], [], "rounds that would not be written like this"),
        ([["size"], [1, 2], []], [], "values must map names to numbers"),
        ([["size"], ["bytes", "consensus"], []], [N], "diverged must be an integer from 0 to 5"),
        ([["size"], ["bytes", "consensus"], []], "one", "diverged must be"),
    ],
    ids=str,
)
def test_records_that_make_no_sense(layout: Any, diverged: Any, match: str, small: Path) -> None:
    history = {"layouts": [layout], "rounds": [[0, 0, diverged], [1, 0, []]]}
    numbers = saved_array(np.ones(2 * (N + 2)))
    edited(small, about=lambda about: about | {"history": history}, numbers=numbers)
    refused(small, match)


@pytest.mark.parametrize(
    ("rounds", "match"),
    [
        ([0, 2], "history must hold consecutive rounds, found round 2 in place of 1"),
        ([1, 2], "history must hold consecutive rounds, found round 1 in place of 0"),
        ([1, 0], "round must come after round 1, found round 0"),
        ([0, 0], "round must come after round 0, found round 0"),
        ([0, 10**9], "history must hold consecutive rounds, found round 1000000000 in place of 1"),
        ([-1, 0], "t must be an integer at least 0, found -1"),
    ],
    ids=str,
)
def test_rounds_that_are_not_consecutive(rounds: list[int], match: str, small: Path) -> None:
    def renumbered(about: dict[str, Any]) -> dict[str, Any]:
        history = about["history"]
        records = [[t, *old[1:]] for t, old in zip(rounds, history["rounds"], strict=True)]
        return about | {"history": history | {"rounds": records}}

    edited(small, about=renumbered)
    refused(small, match)


def leaves(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in nested lists and dicts, and of the lists and dicts themselves."""
    if place:
        yield place
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from leaves(data[key], (*place, key))


def test_every_value_of_a_checkpoint_matters(small: Path) -> None:
    """Except for names of metrics, the clients that diverged, and an empty state instead of none.

    A checkpoint without a total fits any.
    """
    with zipfile.ZipFile(small) as archive:
        about = json.loads(archive.read("about.json"))
    original = small.read_bytes()
    run = trained()
    before = everything(run, seconds=True)
    free = {("history", "layouts", 0, kind, i) for kind in range(3) for i in range(9)}
    free |= {("history", "rounds", t, 2) for t in range(2)}
    places = [place for place in leaves(about) if place not in free]
    harmless = [(("settings", "total"), None), (("stateful",), True)]
    assert len(places) > 30
    for place in places:
        for forged in (None, -1, 10**9, 0.5, "forged", [], {}, [[]], True):
            changed = json.loads(json.dumps(about))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if inner[place[-1]] == forged or (place, forged) in harmless:
                continue
            inner[place[-1]] = forged
            edited(small, about=lambda _, changed=changed: changed)
            with pytest.raises(ValueError, match="must be a checkpoint of"):
                run.load(small)
            assert everything(run, seconds=True) == before, (place, forged)
            small.write_bytes(original)


def test_models_that_are_not_finite_must_have_diverged(small: Path) -> None:
    models = np.zeros((N, 15), dtype=np.float32)
    for broken in (np.nan, np.inf, -np.inf):
        forged = models.copy()
        forged[4, 7] = broken
        edited(small, models=saved_array(forged))
        refused(small, "models must be finite unless the history says otherwise, found client 4")

    def diverged(about: dict[str, Any]) -> dict[str, Any]:
        first, last = about["history"]["rounds"]
        return about | {"history": about["history"] | {"rounds": [first, [*last[:2], [4]]]}}

    edited(small, about=diverged)
    run = trained()
    run.load(small)
    assert run.history.diverged == {4: 1}


def test_models_of_malicious_clients_may_be_anything(small: Path) -> None:
    models = np.zeros((N, 15), dtype=np.float32)
    models[MALICIOUS] = np.nan
    edited(small, models=saved_array(models))
    run = trained()
    run.load(small)
    assert run.models.isnan().any(1).nonzero().flatten().tolist() == MALICIOUS


ARRAYS: dict[str, tuple[str, Any, str]] = {
    "fewer clients": ("models", np.ones((N - 1, 15), "f4"), r"models float32 \(5, 15\) instead of"),
    "fewer parameters": ("models", np.ones((N, 14), "f4"), r"models float32 \(6, 14\) instead of"),
    "another dtype": ("models", np.ones((N, 15)), "models of dtype float64 instead of float32"),
    "integers": ("models", np.ones((N, 15), "i4"), "models of dtype int32 instead of float32"),
    "one model": ("models", np.ones(15, "f4"), r"models float32 \(15,\) instead of float32"),
    "big-endian": ("models", np.ones((N, 15), dtype=">f4"), "byte order"),
    "no number": ("numbers", np.ones(0), r"numbers float64 \(0,\) instead of float64"),
    "a number more": ("numbers", np.ones(999), r"numbers float64 \(999,\) instead of float64"),
    "numbers in rows": ("numbers", np.ones((7, 6)), r"numbers float64 \(7, 6\) instead of float64"),
    "a smaller momentum": ("trainer/velocity", np.ones((N, 14), "f4"), "found another trainer"),
}


@pytest.mark.parametrize(("name", "array", "match"), ARRAYS.values(), ids=list(ARRAYS))
def test_forged_arrays_are_refused(name: str, array: Any, match: str, small: Path) -> None:
    edited(small, **{name: saved_array(array)})
    refused(small, match)


def test_arrays_that_nobody_asked_for_are_refused(small: Path) -> None:
    extra = saved_array(np.ones(3, dtype=np.float32))
    content = small.read_bytes()
    edited(small, **{"rule/sum": extra})
    refused(small, "members .* instead of")
    for name in ("rule/sum", "other"):
        small.write_bytes(content)
        edited(
            small,
            about=lambda about, name=name: about | {"dtypes": about["dtypes"] | {name: "float32"}},
            **{name: extra},
        )
        refused(small, f"arrays of unknown use, {name}")


def test_an_array_is_as_large_as_its_shape(small: Path) -> None:
    """numpy would first allocate what a header asks for."""
    header = saved_array(np.ones((N, 15), dtype=np.float32))
    edited(small, models=header.replace(b"(6, 15), }       ", b"(6, 15000000000)}"))
    refused(small, r"models of shape \(6, 15000000000\) in 360 bytes")
    edited(small, models=header + b"more")
    refused(small, r"models of shape \(6, 15\) in 364 bytes")


def test_a_checkpoint_is_not_compressed(small: Path) -> None:
    """So that a small file cannot take much memory."""
    with zipfile.ZipFile(small) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    refused(small, "compressed members")


def test_members_do_not_share_their_bytes(small: Path) -> None:
    with zipfile.ZipFile(small, "a") as archive:
        archive.filelist.extend([archive.getinfo("models.npy")] * 100)
        archive._didModify = True  # type: ignore[attr-defined]
    refused(small, "members that are larger than the file")


def test_a_settings_entry_cannot_be_left_out(small: Path) -> None:
    def without(about: dict[str, Any], entry: str) -> dict[str, Any]:
        settings = {key: value for key, value in about["settings"].items() if key != entry}
        return about | {"settings": settings}

    content = small.read_bytes()
    for entry in ("malicious", "total", "samples", "data", "rule", "trainer", "seed"):
        edited(small, about=partial(without, entry=entry))
        refused(small, f"{entry}")
        small.write_bytes(content)


def test_what_could_not_be_loaded_is_not_saved(path: Path) -> None:
    run = simulator()
    run.run(2)
    state = run.state
    run.state = replace(state, t=3)
    with pytest.raises(ValueError, match="one record for each of the t = 3 rounds, found 2"):
        run.save(path)
    run.state = state
    run.models[1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"models must be finite .*, found client 1"):
        run.save(path)
    assert not path.exists()


def test_a_checkpoint_without_total_must_fit_that_of_the_simulator(path: Path) -> None:
    run = simulator(eq.FedAvg(), total=None)
    for _ in range(4):
        run.step()
    run.save(path)
    short = simulator(eq.FedAvg(), total=3)
    with pytest.raises(ValueError, match=r"run\.npz must be .* at most total = 3 rounds, found 4"):
        short.load(path)
    assert everything(short) == everything(simulator(eq.FedAvg(), total=3))


def test_an_archive_without_an_entry(small: Path) -> None:
    for entry in ("format", "settings", "t", "history", "stateful", "dtypes"):
        content = small.read_bytes()
        edited(small, about=lambda about, entry=entry: {key: about[key] for key in about if key != entry})
        refused(small, f"KeyError: '{entry}'")
        small.write_bytes(content)


# Of another run


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"seed": 1}, "seed 0 instead of 1$"),
        ({"total": 7}, "total 5 instead of 7$"),
        ({"malicious": [0]}, r"malicious \[0, 3\] instead of \[0\]$"),
        ({"malicious": []}, r"malicious \[0, 3\] instead of \[\]$"),
        ({"rule": eq.Median()}, r"rule FedAvg\(.*\) instead of Median\(\)$"),
        ({"rule": None}, r"rule FedAvg\(.*\) instead of None$"),
        ({"attack": None}, r"attack Window\(.* instead of None.*$"),
        (
            {"attack": attacks.Window(attacks.LabelFlip({0: 1, 1: 2, 2: 0}), 1, 4)},
            r"attack Window.*stop=3\) instead of Window.*stop=4\)$",
        ),
        ({"alpha": 0.4}, "alpha 0.5 instead of 0.4$"),
        ({"alpha": torch.full((N,), 0.5)}, r"alpha 0.5 instead of float32 \(6,\) with checksum"),
        ({"tolerated": 1}, "tolerated None instead of 1$"),
        ({"keep_nonfinite": True}, "keep_nonfinite False instead of True$"),
        ({"topology": eq.Topology.regular(N, 4, seed=2)}, r"topology Topology\(n=6.* instead of .*Topology\(n=6"),
        ({"topology": lambda t: GRAPH}, r"topology Topology\(n=6.* instead of <function <lambda>>"),
        ({"models": torch.ones(N, 15, dtype=torch.float64)}, r"models float32 \(6, 15\) instead of float64 \(6, 15\)$"),
        ({"trainer": sgd(0.0)}, "trainer .*momentum=0.9.* instead of .*momentum=0.0"),
        ({"trainer": sgd(lr=0.2)}, "trainer .*lr=0.1.* instead of .*lr=0.2"),
        ({"trainer": sgd(lr=lambda t: 0.1)}, "trainer .*lr=0.1.* instead of .*lr=<lambda>"),
        ({"trainer": sgd(seed=1)}, "trainer .*seed=0.* instead of .*seed=1"),
        ({"trainer": sgd(reduction="sum")}, "trainer .*'mean'.* instead of .*'sum'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_another_run(options: dict[str, Any], found: str, small: Path) -> None:
    run, content = trained(**options), small.read_bytes()
    before = everything(run)
    for attempt in (run.load, lambda path: run.run(checkpoint=path)):
        with pytest.raises(ValueError, match=rf"run\.npz must be a checkpoint of the same run, found {found}"):
            attempt(small)
        assert everything(run) == before
        assert small.read_bytes() == content


def test_everything_that_differs_is_named(small: Path) -> None:
    with pytest.raises(ValueError, match=r"found malicious \[0, 3\] instead of \[0\]; alpha 0.5 instead of 1; seed 0"):
        trained(malicious=[0], alpha=1, seed=2).load(small)


def test_momentum_cannot_be_gained_on_the_way(path: Path) -> None:
    trained(trainer=sgd(0.0)).run(2, checkpoint=path)
    with pytest.raises(ValueError, match=r"found trainer .*momentum=0\.0.* instead of .*momentum=0\.9"):
        trained().run(checkpoint=path)


def test_other_sizes(path: Path) -> None:
    def sized(n: int, d: int) -> eq.Simulator:
        options = {"trainer": lambda models, t: models, "topology": eq.Topology.complete(n), "models": torch.ones(n, d)}
        return simulator(**options | {"malicious": [0]})

    sized(6, 5).run(2, checkpoint=path)
    for n, d in ((7, 5), (6, 4), (5, 6)):
        with pytest.raises(ValueError, match=rf"found models float32 \(6, 5\) instead of float32 \({n}, {d}\)"):
            sized(n, d).run(checkpoint=path)


def test_other_data(small: Path) -> None:
    clients = [(x[:8], y[:8]) for x, y in zip(X, Y, strict=True)]
    model = eq.models.logistic_regression(4, 3)
    other = eq.LocalSGD(model, nn.functional.cross_entropy, clients, lr=0.1, batch_size=3, momentum=0.9)
    message = r"found samples int64 \(6,\) with checksum \w+ instead of .*; data \w+ instead of"
    with pytest.raises(ValueError, match=message):
        trained(trainer=other).load(small)


@pytest.mark.parametrize("change", ["pixel", "label", "order", "owners"])
def test_other_data_of_equal_sizes(change: str, small: Path) -> None:
    x, y = X.clone(), Y.clone()
    if change == "pixel":
        x[5, 8, 3] = x[5, 8, 3].nextafter(torch.tensor(9.0))
    elif change == "label":
        y[5, 8] = (y[5, 8] + 1) % 3
    elif change == "order":
        x[2], y[2] = X[2].flip(0), Y[2].flip(0)
    else:
        x, y = X.roll(1, 0), Y.roll(1, 0)
    run = trained(trainer=sgd(data=(x, y)))
    before = everything(run)
    with pytest.raises(ValueError, match=r"the same run, found data \w{32} instead of \w{32}$"):
        run.run(checkpoint=small)
    assert everything(run) == before
    same = trained(trainer=sgd(data=(X.clone(), Y.clone())))
    assert ended(same, checkpoint=small) == ended(trained())


def test_a_trainer_of_ones_own_may_have_a_fingerprint(path: Path) -> None:
    class Fingerprinted:
        def __init__(self, found: Any) -> None:
            self.found = found

        def __call__(self, models: Tensor, t: int) -> Tensor:
            return 0.9 * models

        def fingerprint(self) -> Any:
            return self.found

        __repr__ = object.__repr__

    simulator(trainer=Fingerprinted("one")).run(2, checkpoint=path)
    assert simulator(trainer=Fingerprinted("one")).run(3, checkpoint=path)
    with pytest.raises(ValueError, match="of the same run, found data one instead of other"):
        simulator(trainer=Fingerprinted("other")).run(checkpoint=path)
    with pytest.raises(ValueError, match=r"fingerprint\(\) must return a string, found int"):
        simulator(trainer=Fingerprinted(7)).save(path)


def test_alpha_is_compared_to_the_last_digit(path: Path) -> None:
    alpha = torch.full((N,), 0.5, dtype=torch.float64)
    simulator(alpha=alpha).run(2, checkpoint=path)
    simulator(alpha=alpha.clone()).run(3, checkpoint=path)
    with pytest.raises(ValueError, match=r"found alpha float64 \(6,\) with checksum"):
        simulator(alpha=alpha.nextafter(torch.ones(()).double())).run(checkpoint=path)


def test_long_settings_are_shown_where_they_differ(path: Path) -> None:
    rules = [eq.Balance(gamma=0.1 * i) for i in range(1, N + 1)]
    simulator(eq.PerClient(rules)).run(2, checkpoint=path)
    with pytest.raises(ValueError, match=r"found rule .*") as error:
        simulator(eq.PerClient([*rules[:-1], eq.Krum()])).load(path)
    assert "instead of ..." in str(error.value)
    assert "Krum" in str(error.value)
    assert len(str(error.value)) < 500


def test_states_of_trainers_do_not_get_lost(path: Path) -> None:
    simulator(trainer=Wandering()).run(2, checkpoint=path)
    edited(path, about=lambda about: about | {"settings": about["settings"] | {"trainer": "<function pull>"}})
    run = simulator()
    with pytest.raises(
        ValueError, match=r"run\.npz must be .* the same run, found one of a trainer with a state, places"
    ):
        run.load(path)
    assert everything(run) == everything(simulator())


def test_a_trainer_that_does_not_take_its_state(path: Path) -> None:
    class Picky(Wandering):
        def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
            super().load_state_dict(state)
            if picky:
                picky.clear()
                raise KeyError("velocity")

    picky: list[bool] = []
    simulator(trainer=Picky()).run(2, checkpoint=path)
    fresh = simulator(trainer=Picky())
    before = everything(fresh)
    picky.append(True)
    with pytest.raises(ValueError, match=r"run\.npz must be .* the same run, found another trainer: 'velocity'"):
        fresh.load(path)
    assert everything(fresh) == before


# Large ones


def test_numbers_are_not_saved_as_text(path: Path) -> None:
    """That of 20 clients after 2,000 rounds would take longer to write than all else."""
    run = simulator(models=torch.randn(20, 10), topology=eq.Topology.ring(20), total=5000)
    for t in range(2000):
        run.history.add(Round(t, {"error": [0.1] * 20}, {"bytes": 1.0, "consensus": 0.1}, {"train": 0.1, "mix": 0.1}))
    run.state = replace(run.state, t=2000)
    run.save(path)
    with zipfile.ZipFile(path) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    assert sizes["numbers.npy"] == pytest.approx(2000 * 24 * 8, rel=0.01)
    assert sizes["about.json"] < 2000 * 16  # which round, and which numbers it has
