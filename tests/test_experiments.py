"""The paper's settings as data, the runs of tables, reports, and the commands."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from benchmarks.paper import cli, figures, published, report
from benchmarks.paper import registry as names
from benchmarks.paper import run as trials
from benchmarks.paper import theorem_1 as theory
from benchmarks.paper import workers as pool
from benchmarks.paper.results import DamagedError, Store
from benchmarks.paper.run import simulator
from benchmarks.paper.setting import Setting
from benchmarks.paper.tables import TABLES, Table
from benchmarks.paper.tasks import TASKS
from equipoise._utils.progress import Progress

ROOT = Path(__file__).parent.parent
Capture = pytest.CaptureFixture[str]
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
SHORT = Setting(data="synthetic", rule="BALANCE", attack="Gauss", rounds=20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def finished(setting: Setting, *errors: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A run that ended with these errors of the worst client."""
    metric = setting.task.metric
    total = setting.rounds
    evaluated = list(range(total - len(errors), total))
    return {
        "seed": seed,
        "rounds": total,
        "seconds": 1.0,
        "evaluated": evaluated,
        f"max_{metric}": list(errors),
        **more,
    }


# Settings


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_prints_the_command_that_runs_it(name: str) -> None:
    for _, _, setting in TABLES[name].cells():
        words = shlex.split(str(setting))
        assert words[:4] == ["python", "-m", "benchmarks.paper", "run"]
        assert parsed(words[4:]) == setting


def parsed(words: list[str]) -> Setting:
    """The setting that the command line makes of its options."""
    found: list[Setting] = []
    original = cli.commands.run_one
    try:
        cli.commands.run_one = lambda setting, *_: found.append(setting) or 0  # type: ignore[assignment,func-returns-value]
        assert cli.main(["run", *words, "--results", "."]) == 0
    finally:
        cli.commands.run_one = original
    return found[0]


def test_settings_that_differ_have_files_that_differ() -> None:
    settings = {setting for table in TABLES.values() for _, _, setting in table.cells()}
    assert len({setting.slug for setting in settings}) == len(settings)
    assert all(re.fullmatch(r"[\w-]+/[\w.,=()-]+", setting.slug) for setting in settings)


def test_the_defaults_are_those_of_section_6() -> None:
    setting = Setting()
    assert (setting.graph, setting.rounds, setting.partition, setting.n) == ("regular-(20,10)", 2000, "p=0.8", 20)
    assert (setting.malicious, setting.alpha, setting.gamma, setting.kappa) == (0.2, "0.5", 0.3, 1.0)
    rates = {"synthetic": 6e-4, "mnist": 3e-4, "fashion-mnist": 6e-3, "har": 3e-3, "celeba": 5e-5}
    assert {name: task.lr for name, task in TASKS.items()} == rates
    assert {name: task.rounds for name, task in TASKS.items()} == {
        "synthetic": 300,
        "mnist": 2000,
        "fashion-mnist": 2000,
        "har": 1000,
        "celeba": 1500,
    }
    assert Setting(data="har").n == 30


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data", "cifar", "data must be one of synthetic, mnist, fashion-mnist, har, celeba, found 'cifar'"),
        ("rule", "krum", "rule must be one of FedAvg, Krum"),
        ("attack", "Gaussian", "attack must be one of No, LF"),
        ("graph", "star", "graph must be one of regular-(10,5), regular-(20,10)"),
        ("partition", "even", "partition must be iid, natural, three-classes or p=0.8 and the like, found 'even'"),
        ("partition", "p=2", "p must be"),
        ("alpha", "Case-V", "alpha must be a number in [0, 1], Case-I or Case-II, found 'Case-V'"),
        ("alpha", "1.5", "alpha must be"),
        ("gamma", -1.0, "gamma must be a finite number >= 0, found -1.0"),
        ("step", -1.0, "step must be a finite number > 0, found -1.0"),
        ("window", "last", "window must be one of all, first-half, second-half, found 'last'"),
        ("malicious", 1.2, "malicious must be"),
        ("batch", 0, "batch must be"),
    ],
)
def test_bad_settings_are_errors_that_name_the_valid_ones(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Setting(**{field: value})


def test_regression_has_no_backdoor() -> None:
    with pytest.raises(ValueError, match="attack must be another one for synthetic regression, found 'Backdoor'"):
        Setting(data="synthetic", attack="Backdoor")


def test_the_papers_network_sees_one_pixel_of_its_trigger_and_all_of_the_other_one() -> None:
    images = torch.rand(200, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = eq.models.cnn().double()(images.requires_grad_())
    (gradient,) = torch.autograd.grad(outputs.square().sum(), images)
    seen = (gradient != 0).any(0)[0]
    for attack, expected in (("Backdoor", 1), ("Backdoor-seen", 4)):
        backdoor = Setting(data="mnist", attack=attack).backdoor
        assert backdoor is not None
        marked = backdoor.trigger.stamp(torch.zeros(1, 28, 28))[0] == 1
        assert (marked & seen).sum() == expected


@pytest.mark.parametrize("data", ["synthetic", "har", "celeba"])
def test_other_data_have_no_other_trigger(data: str) -> None:
    with pytest.raises(ValueError, match=r"attack must be another one for .*, found 'Backdoor-seen'"):
        Setting(data=data, attack="Backdoor-seen")


# From a setting to a training


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"alpha": "Case-I"}, lambda run: isinstance(run.alpha, torch.Tensor) and run.alpha.unique().numel() == 20),
        ({"alpha": "Case-II"}, lambda run: isinstance(run.alpha, eq.EachRound)),
        ({"alpha": "0.9"}, lambda run: run.alpha == 0.9),
        ({"rule": "Case-III"}, lambda run: isinstance(run.rule, eq.PerClient)),
        ({"rule": "Case-IV"}, lambda run: isinstance(run.rule, eq.EachRound)),
        ({"rule": "Alone"}, lambda run: run.rule is None),
        ({"rule": "SCCLIP-10"}, lambda run: run.rule == eq.SCClip(tau=10.0)),
        ({"attack": "Gauss-200"}, lambda run: run.attack == eq.attacks.Gaussian(std=200.0)),
        ({"rule": "Variant-I"}, lambda run: run.rule == eq.Balance(0.3, 0.0)),
        ({"gamma": 0.7, "kappa": 2.0}, lambda run: run.rule == eq.Balance(0.7, 2.0)),
        ({"own": True}, lambda run: run.alpha == 0 and run.topology.degrees.unique().tolist() == [11]),
        ({"disconnect": 0.2}, lambda run: isinstance(run.topology, eq.EachRound)),
        ({"start": "different"}, lambda run: len(run.models.unique(dim=0)) == 20),
        ({"start": "same"}, lambda run: len(run.models.unique(dim=0)) == 1),
        ({"graph": "ring"}, lambda run: run.topology.degrees.unique().tolist() == [2]),
        ({"graph": "regular-(10,5)"}, lambda run: (run.n, run.topology.degrees.unique().tolist()) == (10, [5])),
        ({"graph": "femb-0.16"}, lambda run: run.topology.femb(run.malicious) == pytest.approx(0.16)),
        ({"malicious": 0.5}, lambda run: int(run.malicious.sum()) == 10),
        ({"attack": "No"}, lambda run: not run.malicious.any()),
        ({"window": "first-half"}, lambda run: run.attack == eq.attacks.Window(eq.attacks.Gaussian(), 0, 10)),
        ({"window": "second-half"}, lambda run: run.attack == eq.attacks.Window(eq.attacks.Gaussian(), 10, 20)),
        ({"nonfinite": "kept"}, lambda run: run.keep_nonfinite),
        ({"step": 3.0}, lambda run: run.trainer.lr == pytest.approx(18e-4)),
        ({"batch": 8, "local_steps": 2}, lambda run: (run.trainer.batch_size, run.trainer.steps) == (8, 2)),
    ],
)
def test_every_field_reaches_the_simulator(changes: dict[str, Any], expected: Any) -> None:
    assert expected(simulator(SHORT.changed(**changes), 0, "."))


@pytest.mark.parametrize("graph", [*names.REGULAR, *names.GRAPHS])
def test_every_graph_of_the_paper_can_be_drawn(graph: str) -> None:
    run = simulator(SHORT.changed(graph=graph, data="synthetic"), 1, ".")
    assert run.topology.is_connected(None if graph == "ring" else run.malicious)  # malicious clients cut a ring


def test_rules_and_attacks_share_data_graph_and_start() -> None:
    one, other = (
        simulator(SHORT.changed(rule=rule, attack=attack), 3, ".")
        for rule, attack in (("FedAvg", "No"), ("Krum", "Trim"))
    )
    assert torch.equal(one.models, other.models)
    assert torch.equal(one.topology.adjacency(), other.topology.adjacency())
    assert torch.equal(one.trainer(one.models, 0), other.trainer(other.models, 0))


def test_seeds_change_everything() -> None:
    one, other = (simulator(SHORT, seed, ".") for seed in (0, 1))
    assert not torch.equal(one.models, other.models)
    assert not torch.equal(one.topology.adjacency(), other.topology.adjacency())
    assert not torch.equal(one.malicious, other.malicious)


def test_the_last_five_percent_are_evaluated_five_times() -> None:
    for rounds in (300, 1000, 1500, 2000):
        evaluated = trials.evaluated(rounds)
        assert len(evaluated) == 6
        assert len([t for t in evaluated if t >= rounds - rounds // 20]) == 5
        assert rounds - 1 in evaluated
    assert all(0 <= t < rounds for rounds in range(1, 50) for t in trials.evaluated(rounds))


# Runs


def test_a_run_is_summed_up() -> None:
    found, history = trials.run(SHORT, 0, ".")
    worst = history.worst("MSE")[1]
    assert found["max_MSE"] == pytest.approx(worst, rel=1e-5)
    assert found["evaluated"] == [one.t for one in history.evaluated] == [9, 19]
    assert len(found["clients_MSE"]) == 16
    assert max(found["clients_MSE"]) == pytest.approx(worst[-1], rel=1e-5)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["seed"], found["rounds"], found["version"]) == (0, 20, eq.__version__)


def test_every_one_of_the_last_rounds_can_be_tested_which_changes_nothing_that_is_kept() -> None:
    usual, few = trials.run(SHORT, 0, ".")
    found, history = trials.run(SHORT, 0, ".", last=6)
    assert [one.t for one in history.evaluated] == [9, *range(14, 20)]
    assert history.worst("MSE")[1][-1] == few.worst("MSE")[1][-1]
    assert without_times(found) == without_times(usual)


def without_times(found: trials.Run) -> trials.Run:
    return {name: value for name, value in found.items() if name not in {"seconds", "aggregate_seconds"}}


def test_a_run_names_the_source_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may commit while it runs."""
    trials._origin.cache_clear()
    monkeypatch.setattr(trials, "_commit", lambda: "first")
    found, _ = trials.run(SHORT, 0, ".", step=lambda run: monkeypatch.setattr(trials, "_commit", lambda: "second"))
    trials._origin.cache_clear()
    assert found["commit"] == "first"


def committed(folder: Path, *files: str) -> str:
    """A new repository with these files in its only commit, whose short id is returned."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "-f", *files], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def a_clone(folder: Path, name: str = "equipoise") -> Path:
    """A folder with a project of that name; returns where its package is."""
    package = folder / "src/equipoise"
    package.mkdir(parents=True)
    for path in ("__init__.py", "rules.py"):
        (package / path).write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    return package


@needs_git
def test_the_commit_is_that_of_the_clone(tmp_path: Path) -> None:
    package = a_clone(tmp_path)
    commit = committed(tmp_path, "src", "pyproject.toml")
    (tmp_path / "notes.txt").write_text("untracked")
    assert trials._commit(package) == commit
    (package / "rules.py").write_text("changed")
    assert trials._commit(package) == f"{commit}+"


@needs_git
@pytest.mark.parametrize("tracked", ["README", "README .venv"])
def test_a_foreign_repository_has_no_commit(tracked: str, tmp_path: Path) -> None:
    """Not even if somebody committed the virtual environment."""
    packages = tmp_path / ".venv/lib/site-packages"
    source = Path(eq.__file__).parent
    shutil.copytree(source, packages / "equipoise", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "README").write_text("somebody's project")
    committed(tmp_path, *tracked.split())
    code = """import equipoise
from benchmarks.paper import run
print(equipoise.__file__, run._origin()["commit"])"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.split() == [str(packages / "equipoise/__init__.py"), "None"]


@needs_git
def test_a_package_beside_a_clone_has_no_commit(tmp_path: Path) -> None:
    """It may be older than the clone: an install that is not editable, a project that has a copy."""
    package = a_clone(tmp_path)
    installed = tmp_path / ".venv/lib/site-packages/equipoise"
    shutil.copytree(package, installed)
    committed(tmp_path, "src", "pyproject.toml")
    assert trials._commit(installed) is None
    vendored = a_clone(tmp_path / "other", name="other")
    committed(tmp_path / "other", "src", "pyproject.toml")
    assert trials._commit(vendored) is None


def interrupt_after_seven_rounds(checkpoint: Path) -> None:
    def interrupt(run: eq.Simulator) -> None:
        if run.t == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trials.run(SHORT, 0, ".", step=interrupt, checkpoint=checkpoint)


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    whole, _ = trials.run(SHORT, 0, ".")
    path = tmp_path / "unfinished"
    interrupt_after_seven_rounds(path)
    resumed: list[int] = []
    again, _ = trials.run(SHORT, 0, ".", step=lambda run: resumed.append(run.t), checkpoint=path)
    assert resumed[0] == 8
    assert without_times(again) == without_times(whole)


def test_a_damaged_checkpoint_is_reported_and_the_run_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "unfinished"
    path.write_text("half a file")
    rounds: list[int] = []
    with pytest.warns(UserWarning, match="must be a checkpoint .*: training starts anew"):
        trials.run(SHORT, 0, ".", step=lambda run: rounds.append(run.t), checkpoint=path)
    assert rounds[0] == 1


def test_a_trial_is_silent_about_guarantees() -> None:
    """A simulator warns here; a paper's setting is run as the paper says."""
    setting = Setting(data="synthetic", rule="Krum", attack="Gauss", rounds=2, malicious=0.5)
    trials.run(setting, 0, ".")
    with pytest.warns(eq.GuaranteeWarning):
        trials.simulator(setting, 0, ".").step()


def test_a_collapsed_run_ends_early_and_says_so() -> None:
    setting = Setting(data="synthetic", rule="FedAvg", attack="Feature", rounds=300, step=50.0, nonfinite="kept")
    found, _ = trials.run(setting, 0, ".")
    assert found["rounds"] < 300
    assert found["stopped"] == f"all benign models were not finite after round {found['rounds'] - 1}"
    assert found["max_MSE"][-1] is None
    assert trials.tail(found, "MSE") == math.inf


# Files


def test_results_are_kept_by_seed(store: Store) -> None:
    for seed, error in ((2, 0.5), (0, 0.25), (2, 0.125)):
        store.add(SHORT, finished(SHORT, error, seed=seed))
    assert [(run["seed"], run["max_MSE"]) for run in store.runs(SHORT)] == [(0, [0.25]), (2, [0.125])]
    assert store.runs(SHORT.changed(rule="Krum")) == []


WRITER = """
import sys
from benchmarks.paper.results import Store
from benchmarks.paper.setting import Setting

folder, first, step, count = sys.argv[1], *map(int, sys.argv[2:])
store = Store(folder)
setting = Setting(data="synthetic", rule="BALANCE", attack="Gauss", rounds=20)
run = {"rounds": 20, "seconds": 1.0, "evaluated": [19], "max_MSE": [1.0]}
print("ready", flush=True)
sys.stdin.readline()
for seed in range(first, count, step):
    store.add(setting, {"seed": seed, **run})
"""


def test_processes_that_write_together_lose_nothing(store: Store) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store.folder), str(first), "4", "200"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(4)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:  # all of them start at the same time
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate(timeout=120)
            assert writer.returncode == 0
    finally:
        for writer in writers:
            writer.kill()
    assert [run["seed"] for run in store.runs(SHORT)] == list(range(200))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"setting": {}, "runs": [{}]}', '{"setting": {}, "runs": []}', "\0\0"]
)
def test_a_corrupt_file_is_reported_and_run_again(content: str, store: Store, capsys: Capture) -> None:
    store.add(SHORT, finished(SHORT, 0.5))
    store.path(SHORT).write_text(content)
    with pytest.raises(DamagedError, match="must hold results"):
        store.runs(SHORT)
    assert pool.missing(store, [SHORT], [0]) == [pool.Job(SHORT, 0)]
    assert "must hold results" in (err := capsys.readouterr().err)
    assert "it is run again" in err
    store.add(SHORT, finished(SHORT, 0.25))
    assert len(store.runs(SHORT)) == 1


@pytest.mark.parametrize("change", [{"max_MSE": []}, {"max_MSE": None}, {"evaluated": [], "max_MSE": []}])
def test_results_without_figures_are_damaged(change: dict[str, Any], store: Store) -> None:
    store.add(SHORT, finished(SHORT, 1.0) | change)
    with pytest.raises(DamagedError, match="must hold results"):
        store.runs(SHORT)


def test_a_run_that_ended_early_is_judged_by_where_it_ended() -> None:
    late = {"rounds": 1950, "evaluated": [999, 1919, 1939, 1949], "max_TER": [0.1, 0.1, 0.1, 0.9]}
    assert trials.tail(late | {"stopped": "all benign models were not finite after round 1949"}, "TER") == 0.9


def test_equal_settings_are_equal_however_they_are_written() -> None:
    assert Setting(partition="0.80", alpha=".50") == Setting(partition="p=0.8", alpha="0.5") == Setting()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, eq.Balance()),
        ({"gamma": 0.1, "kappa": 2.0}, eq.Balance(0.1, 2.0)),
        ({"rule": "Variant-I", "gamma": 0.1}, eq.Balance(0.1, 0.0)),
        ({"rule": "Variant-II"}, eq.BalanceMedian()),
        ({"rule": "Median", "gamma": 0.1}, eq.Balance(0.1)),
    ],
)
def test_the_largest_lie_is_what_the_victims_own_limits_allow(changes: dict[str, Any], expected: Any) -> None:
    for name in ("Adapt-max", "Adapt-own"):
        one = simulator(Setting(data="synthetic", attack=name, **changes), 0, "")
        assert isinstance(one.attack, eq.attacks.Adaptive)
        assert one.attack.rule == expected
    literal = simulator(Setting(data="synthetic", attack="Adapt", **changes), 0, "").attack
    assert literal == eq.attacks.Adaptive("literal", rule=eq.Balance())  # the paper's, whatever is attacked


def test_a_file_of_another_setting_is_not_taken(store: Store) -> None:
    other = SHORT.changed(rule="Krum")
    store.add(SHORT, finished(SHORT, 0.5))
    store.path(SHORT).rename(store.path(other))
    with pytest.raises(DamagedError, match="found those of another setting"):
        store.runs(other)


def test_what_is_there_is_not_run_again(store: Store) -> None:
    store.add(SHORT, finished(SHORT, 0.5, seed=1))
    other = SHORT.changed(rule="Krum")
    jobs = pool.missing(store, [SHORT, other, SHORT], [0, 1])
    assert jobs == [(SHORT, 0), (other, 0), (other, 1)]


# Many runs


def test_processes_run_what_is_missing_and_stay_out_of_each_others_way(store: Store) -> None:
    settings = [SHORT.changed(rule=rule) for rule in ("FedAvg", "Median", "BALANCE")]
    assert pool.run_all(pool.missing(store, settings, [0, 1]), ".", store, 2) == []
    assert pool.missing(store, settings, [0, 1]) == []
    alone, _ = trials.run(settings[0], 1, ".")
    assert store.runs(settings[0])[1]["max_MSE"] == alone["max_MSE"]
    assert not list(store.folder.rglob("*.unfinished"))


def test_rounds_of_a_checkpoint_do_not_count_for_the_time_that_is_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = store.checkpoint(SHORT, 0)
    checkpoint.parent.mkdir(parents=True)
    interrupt_after_seven_rounds(checkpoint)
    bars: list[Progress] = []

    def remembered(total: int, label: str) -> Progress:
        bars.append(Progress(total, label))
        return bars[0]

    monkeypatch.setattr(pool, "Progress", remembered)
    assert pool.run_all([pool.Job(SHORT, 0)], ".", store, 1) == []
    assert (bars[0].skipped, bars[0].done, bars[0].total) == (7, SHORT.rounds, SHORT.rounds)


def test_missing_data_is_said_before_anything_is_run(tmp_path: Path, capsys: Capture) -> None:
    code = cli.main(["table", "mnist", "--root", str(tmp_path / "nowhere"), "--results", str(tmp_path)])
    assert code == 2
    assert "table: expected train-images-idx3-ubyte.gz" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for another process")
def test_after_ctrl_c_a_table_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.paper",
        "table",
        "synthetic",
        "--rows",
        "BALANCE",
        "--columns",
        "Gauss",
    ]
    command += ["--rounds", "100000", "--processes", "1", "--results", str(tmp_path)]
    pipe = subprocess.PIPE
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whatever the tests were told
    process = subprocess.Popen(command, stderr=pipe, stdout=pipe, text=True, cwd=ROOT, preexec_fn=heeds)
    checkpoint = Store(tmp_path).checkpoint(SHORT.changed(rounds=100000), 0)
    deadline = time.monotonic() + 120
    try:
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Interrupted; the same command goes on from here." in err
    assert "Traceback" not in err
    resumed = simulator(SHORT.changed(rounds=100000), 0, ".")
    resumed.load(checkpoint)
    assert resumed.t > 0


# Reports


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        ((0.12,), (0.10,), "reproduced"),
        ((0.07,), (0.10,), "reproduced"),
        ((0.14,), (0.10,), "same conclusion"),
        ((0.30,), (0.10,), "differs"),
        ((0.10,), (0.30,), "differs"),
        ((0.35,), (0.60,), "same conclusion"),
        ((1.00,), (0.82,), "reproduced"),
        ((0.95,), (0.50,), "same conclusion"),
        ((0.95,), (0.10,), "differs"),
        ((0.10, 0.02), (0.11, 0.01), "reproduced"),
        ((0.10, 0.60), (0.10, 0.73), "same conclusion"),
        ((0.10, 0.02), (0.10, 0.73), "differs"),
        ((0.90, 0.00), (0.90, 1.00), "reproduced"),
        ((0.90, 0.00), (0.50, 0.90), "differs"),
    ],
)
def test_verdicts_on_error_rates(ours: tuple[float, ...], paper: tuple[float, ...], verdict: str) -> None:
    assert report.judge(ours, paper, (0.10, 0.10)) == verdict


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        (1.08, 0.36, "same conclusion"),
        (math.inf, math.inf, "reproduced"),
        (4.0, 4.1, "reproduced"),
        (1.1, math.inf, "differs"),
        (1.1, 40, "differs"),
    ],
)
def test_verdicts_on_squared_errors(ours: float, paper: float, verdict: str) -> None:
    """An error below the noise floor cannot be reproduced, but a rule can hold, or not."""
    assert report.judge((ours,), (paper,), (1.06, 0.36), squared=True) == verdict


def test_a_verdict_asks_what_an_attack_does_to_the_rule_itself() -> None:
    """In the paper, Krum is worse than FedAvg without attack, and no worse with one: then it was not hurt."""
    assert report.judge((900.0,), (1.18,), (1.0, 0.36), squared=True) == "same conclusion"
    assert report.judge((900.0,), (1.18,), (1.0, 0.36), (1.0, 1.11), squared=True) == "differs"


def test_a_report_shows_both_and_counts(store: Store, capsys: Capture, tmp_path: Path) -> None:
    table = TABLES["mnist"]
    for rule, attack, error in (("FedAvg", "No", 0.11), ("BALANCE", "Trim", 0.30)):
        setting = table.setting(rule, attack)
        store.add(setting, finished(setting, error, error + 0.02))
    assert cli.main(["report", "mnist", "--results", str(store.folder), "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| FedAvg | 0.12 (0.10) = | (0.10) |" in out
    assert "**0.31** (0.11) !" in out
    assert "1 reproduced, 1 differs, 70 missing. Seeds: 1." in out
    assert "| FedAvg | 0.13 |" in out.split("After the last round alone")[1]
    assert (tmp_path / "report.md").read_text() == f"# Measured, and in the paper\n\n{out.rstrip()}\n"
    lines = (tmp_path / "mnist.csv").read_text().splitlines()
    assert len(lines) == 73
    command = "python -m benchmarks.paper run --data mnist --rule FedAvg --attack No"
    assert f"FedAvg,No,0.12,,0.13,,1,0,0.1,,reproduced,{command}" in lines
    assert (tmp_path / "mnist.svg").read_text().count("<svg") == 1


def test_a_report_counts_nothing_where_the_paper_prints_nothing(store: Store, capsys: Capture) -> None:
    setting = TABLES["gamma-har"].setting("BALANCE, Trim", "0.1")
    store.add(setting, finished(setting, 0.12))
    assert cli.main(["report", "gamma-har", "--results", str(store.folder)]) == 0
    assert capsys.readouterr().out.startswith("## Impact of gamma on HAR")


def test_figures_have_a_line_for_every_rule(store: Store, tmp_path: Path) -> None:
    table = TABLES["alpha"]
    for i, (_, _, setting) in enumerate(table.cells()):
        store.add(setting, finished(setting, 0.1 + i / 100))
    figure = figures.lines(table, report.cells(table, store))
    assert [ax.get_title() for ax in figure.axes] == ["Gauss", "Trim"]
    assert [len(ax.lines) for ax in figure.axes] == [4, 4]
    figure.savefig(tmp_path / "alpha.png")
    (label,) = (text for text in figure.texts if text.get_text() == "alpha")
    assert not figure.legends[0].get_window_extent().overlaps(label.get_window_extent())


def test_consensus_errors_are_no_rates(store: Store) -> None:
    """One of 1 is a disagreement, not a collapse."""
    table = TABLES["consensus"]
    for attack, error in (("No", 0.02), ("LF", 1.0), ("Gauss", 500.0)):
        setting = table.setting("FedAvg", attack)
        store.add(setting, finished(setting, 0.1, consensus=error))
    verdicts = {cell.column: cell.verdict for cell in report.cells(table, store) if cell.row == "FedAvg"}
    assert [verdicts[attack] for attack in ("No", "LF", "Gauss")] == ["reproduced", "differs", "reproduced"]


def test_a_report_of_nothing_says_so(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["report", "--results", str(tmp_path)]) == 2
    error = f"expected results of a table in {tmp_path}, found none; equipoise table NAME makes them"
    assert error in capsys.readouterr().err


def test_a_report_of_other_settings_says_so(store: Store, capsys: Capture) -> None:
    setting = Setting(data="synthetic", rounds=20)
    store.add(setting, finished(setting, 2.0))
    assert cli.main(["report", "--results", str(store.folder)]) == 2
    assert f"found 1 of other settings, such as {setting}; equipoise table" in capsys.readouterr().err


def test_folders_that_are_not_there_cannot_be_compared(store: Store, capsys: Capture) -> None:
    store.folder.mkdir()
    missing = str(store.folder / "nowhere")
    assert cli.main(["compare", str(store.folder), missing]) == 2
    assert f"expected a folder of results, found none at {missing}" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "verdict"), [(0.12, "reproduced"), (0.19, "same conclusion"), (0.21, "differs")])
def test_fedavg_without_attack_is_compared_with_the_paper(error: float, verdict: str, store: Store) -> None:
    """It would be its own baseline otherwise, and could never differ."""
    setting = TABLES["mnist"].setting("FedAvg", "No")
    store.add(setting, finished(setting, error))
    (cell,) = (cell for cell in report.cells(TABLES["mnist"], store) if cell.ours)
    assert cell.verdict == verdict


def test_a_report_names_files_that_are_damaged(store: Store, capsys: Capture) -> None:
    setting = TABLES["synthetic"].setting("Krum", "LF")
    store.add(setting, finished(setting, 1.2))
    damaged = store.path(setting.changed(attack="Trim"))
    damaged.write_text("{trunc")
    assert cli.main(["report", "synthetic", "--results", str(store.folder)]) == 0
    assert f"{damaged} must hold results, found JSONDecodeError" in capsys.readouterr().err


def test_only_tables_with_results_are_reported(store: Store, capsys: Capture) -> None:
    setting = TABLES["synthetic"].setting("Krum", "LF")
    store.add(setting, finished(setting, 1.2))
    assert cli.main(["report", "--results", str(store.folder)]) == 0
    out = capsys.readouterr().out
    assert re.findall("## (.*)", out) == ["Max.MSE on synthetic data (`synthetic`)", "What is missing"]
    assert "| `synthetic` | 1 | 0 | 0 | 62 |" in out
    assert "1.20 (1.23) =" in out


def test_a_report_says_what_is_missing_and_how_long_it_would_take(store: Store, capsys: Capture) -> None:
    """Krum has its own pace, other rules that of the data set; nothing is known about other data."""
    table = TABLES["synthetic"]
    for rule, seconds in (("Krum", 3600.0), ("Median", 720.0)):
        setting = table.setting(rule, "LF")
        store.add(setting, finished(setting, 1.2) | {"seconds": seconds})
    assert cli.main(["report", "synthetic", "celeba", "--results", str(store.folder)]) == 0
    out = capsys.readouterr().out.split("## What is missing")[1]
    hours = 6 * 1.0 + 6 * 0.2 + 7 * 7 * 0.6
    assert f"| `synthetic` | 63 | 61 | {hours:.1f} |" in out
    assert "| `celeba` | 72 | 72 | not known |" in out
    assert "`mnist`" not in out


def test_a_report_of_all_cells_misses_nothing(store: Store, capsys: Capture) -> None:
    for _, _, setting in TABLES["windows"].cells():
        store.add(setting, finished(setting, 0.5))
    assert cli.main(["report", "windows", "--results", str(store.folder)]) == 0
    assert "missing |" not in capsys.readouterr().out.split("## Median")[1]


# Comparisons


def test_what_was_run_again_is_compared_figure_by_figure(store: Store, tmp_path: Path, capsys: Capture) -> None:
    """Times and versions may differ, nothing else; settings and seeds that only one folder has do not count."""
    again, other = Store(tmp_path / "again"), SHORT.changed(rule="Krum")
    store.add(SHORT, finished(SHORT, 1.0, 1.25, commit="a", consensus=0.5))
    store.add(SHORT, finished(SHORT, 1.0, seed=1))
    store.add(other, finished(other, 1.0))
    again.add(SHORT, finished(SHORT, 1.0, 1.25, commit="b", consensus=0.5) | {"seconds": 7.0})
    again.add(SHORT, finished(SHORT, 1.0, seed=2))
    folders = [str(store.folder), str(again.folder)]
    assert cli.main(["compare", *folders]) == 0
    assert capsys.readouterr().out == "Runs in both: 1. The same in every figure: 1. Others: 0.\n"
    again.add(SHORT, finished(SHORT, 1.0, 1.5, commit="b"))
    assert cli.main(["compare", *folders]) == 1
    assert f"| `{SHORT} --seed 0` | 1.1250 | 1.2500 | max_MSE, consensus |" in capsys.readouterr().out


def test_a_run_repeats_to_the_digit(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("first", "second")]
    for folder in folders:
        assert cli.main([*shlex.split(str(SHORT))[3:], "--results", folder]) == 0
    assert cli.main(["compare", *folders]) == 0


@pytest.mark.parametrize("content", ["{", '{"setting": {"rule": "Krumm"}}'])
def test_a_comparison_names_what_cannot_be_compared(
    content: str, store: Store, tmp_path: Path, capsys: Capture
) -> None:
    store.folder.mkdir()
    assert cli.main(["compare", str(store.folder), str(tmp_path)]) == 2
    expected = f"expected results of the same settings in {store.folder} and {tmp_path}, found none"
    assert expected in capsys.readouterr().err
    path = store.path(SHORT)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert cli.main(["compare", str(store.folder), str(tmp_path)]) == 2
    assert f"{path} must hold results, found" in capsys.readouterr().err


def test_the_report_that_is_committed_is_of_the_results_that_are(capsys: Capture) -> None:
    """``equipoise report --results benchmarks/paper > ...`` after every run that is committed."""
    results = Path(__file__).parents[1] / "benchmarks/paper"
    assert cli.main(["report", "--results", str(results)]) == 0
    assert capsys.readouterr().out.rstrip() in (results / "report.md").read_text()


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.figures])
def test_published_figures_belong_to_cells(name: str) -> None:
    table: Table = TABLES[name]
    cells = {(row, column) for row, column, _ in table.cells()}
    assert cells & set(table.figures)
    if table.figures is not published.SENTENCES and name not in ("baselines",):
        assert set(table.figures) <= cells


def test_figures_of_the_paper_read_right() -> None:
    assert published.MNIST["Trim-mean", "Backdoor"] == (0.83, 0.72)
    assert published.SYNTHETIC["FedAvg", "Gauss"] == (math.inf,)
    assert len(published.MNIST) == len(published.HAR) == 72
    assert len(published.SYNTHETIC) == 63
    assert TABLES["noise-har"].figures["SCCLIP", "Feature-1000"] == published.HAR["SCCLIP", "Feature"] == (0.13,)


# Commands


def test_one_run_ends_with_a_summary_and_files(tmp_path: Path, capsys: Capture) -> None:
    words = ["run", "--data", "synthetic", "--rule", "Median", "--attack", "Trim", "--rounds", "20", "--seed", "4"]
    assert cli.main([*words, "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "python -m benchmarks.paper run --data synthetic --rule Median --attack Trim --rounds 20 --seed 4\n" in out
    assert "20 clients, 4 malicious, 20 rounds" in out
    assert re.search(r"Max\.MSE, mean of the last 5 % of rounds: \d", out)
    assert json.loads((tmp_path / "synthetic/Median.Trim.rounds=20.json").read_text())["runs"][0]["seed"] == 4
    assert (tmp_path / "synthetic/Median.Trim.rounds=20.4.csv").exists()


def test_what_was_found_is_said_even_if_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Store, "add", full)
    assert cli.main(["run", "--data", "synthetic", "--rounds", "20", "--results", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "Max.MSE, mean of the last 5 % of rounds" in out
    assert "run: no space left" in err


def test_the_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"equipoise {eq.__version__}\n"


def test_one_run_says_how_the_worst_client_varies_from_round_to_round(tmp_path: Path, capsys: Capture) -> None:
    words = ["run", "--data", "synthetic", "--rule", "FedAvg", "--rounds", "20", "--results", str(tmp_path)]
    assert cli.main([*words, "--test-last", "10"]) == 0
    out = capsys.readouterr().out
    found = re.search(r"the last 10 rounds, tested 10 times: least (.*), median (.*), 90 % (.*), largest (.*)", out)
    assert found is not None
    worst: dict[int, float] = {}
    with open(tmp_path / "synthetic/FedAvg.No.rounds=20.0.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "MSE":
                worst[int(row["round"])] = max(worst.get(int(row["round"]), 0.0), float(row["value"]))
    assert worst.keys() == {9, *range(10, 20)}
    last = sorted(worst[t] for t in range(10, 20))
    assert [float(x) for x in found.groups()] == pytest.approx([last[0], last[4], last[8], last[9]], abs=1e-4)


@pytest.mark.parametrize("words", [["run", "--data", "mnist"], ["table", "lie-dissensus"]], ids=["run", "table"])
def test_data_that_are_missing_can_be_put_there_or_downloaded(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folders = ["--root", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    assert cli.main([*words, *folders]) == 2
    error = capsys.readouterr().err
    assert "Put it there, name another folder with --root, or give --download" in error
    assert "round" not in error

    def mnist(root: Path, *, download: bool) -> None:
        raise OSError(f"asked for {root}, download={download}")

    monkeypatch.setattr(eq.data, "mnist", mnist)
    assert cli.main([*words, *folders, "--download"]) == 2
    assert f"asked for {tmp_path / 'data'}, download=True" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--rule", "Krumm"], "invalid choice: 'Krumm' (choose from FedAvg, Krum, "),
        (["run", "--attack", "x"], "invalid choice: 'x' (choose from No, LF, "),
        (["table", "nmist"], "invalid choice: 'nmist' (choose from synthetic, mnist, "),
        (["run", "--rounds", "0"], "must be an integer >= 1, found 0"),
    ],
)
def test_bad_options_name_the_valid_ones(words: list[str], message: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    assert message in capsys.readouterr().err.replace("'FedAvg', 'Krum'", "FedAvg, Krum").replace(
        "'No', 'LF'", "No, LF"
    ).replace("'synthetic', 'mnist'", "synthetic, mnist")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--graph", "star"], "run: graph must be one of regular-(10,5), "),
        (["report", "nmist"], "report: NAME must be one of synthetic, mnist, "),
        (["table", "synthetic", "--rows", "krum"], "table: --rows must be of FedAvg, Krum, "),
        (["table", "synthetic", "--columns", "Backdoor"], "table: --columns must be of No, LF, "),
    ],
)
def test_bad_names_are_errors_that_list_the_valid_ones(
    words: list[str], message: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(message)


def test_list_names_everything(capsys: Capture) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*names.RULES, *names.ATTACKS, *names.GRAPHS, *names.REGULAR, *TASKS, *TABLES):
        assert name in out


# Theorem 1


def test_the_risk_in_closed_form_is_the_mean_squared_error() -> None:
    data = eq.data.synthetic_regression(n_train=300, n_test=1, features=4)
    risk = theory.Quadratic.of(data.x, data.y)
    model = torch.randn(4, dtype=torch.float64, requires_grad=True)
    loss = (data.x.double() @ model - data.y).square().mean()
    (gradient,) = torch.autograd.grad(loss, model)
    assert risk.excess(model[None].detach()).item() + risk.floor == pytest.approx(loss.item())
    assert torch.allclose(risk.gradient(model[None].detach())[0], gradient)
    smallest, largest = risk.curvature()
    assert 0 < smallest < 2 < largest


def test_the_bound_by_hand() -> None:
    constants = theory.Constants(
        mu=2.0, L=4.0, delta=3.0, rho=5.0, psi=7.0, eta=0.05, gamma=0.1, alpha=0.5, start=100.0
    )
    assert constants.bound(2) == pytest.approx(0.9**2 * 100 + 2 * 4 * 0.05 * 9 / 2 + 2 * 0.1 * 5 * 7 * 0.5 / 0.1)
    assert constants.conditions() == {"eta": True, "gamma": True}


def test_the_theorem_is_checked_by_one_command(tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["theory", "--rounds", "5", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall("  yes$", out, re.MULTILINE)) == len(theory.ATTACKS)
    found = json.loads((tmp_path / "theorem-1.json").read_text())["attacks"]["Gauss"]
    assert len(found["excess"]) == len(found["bound"]) == 6
    assert found["holds"] is True
    assert (tmp_path / "theorem-1.svg").exists()


def test_a_theorem_without_picture_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert theory.save({"attacks": {}}, tmp_path) == [tmp_path / "theorem-1.json"]
    expected = 'No picture: matplotlib is not installed: pip install "equipoise[plots]"\n'
    assert capsys.readouterr().err == expected
