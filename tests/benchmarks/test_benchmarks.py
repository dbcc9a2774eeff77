"""The benchmark compares like with like, and runs."""

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from benchmarks import attacks as attack_times
from benchmarks import goals, kernels, memory, naive, peers, picture, racing, scale, tables, workloads
from benchmarks import rounds as round_times
from benchmarks.naive import Opponent
from benchmarks.racing import Row
from benchmarks.results import Results, save
from benchmarks.scale import ScaleRow
from benchmarks.workloads import RULES, WORKLOADS, Round, Workload
from equipoise.kernels import native

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
GRAPHS = {
    "sparse, even degree": Workload("", 12, 4, 700),
    "sparse, odd degree": Workload("", 12, 5, 700),
    "complete": Workload("", 12, 11, 700),
    "one client": Workload("", 1, 10, 700),
}
every_graph = pytest.mark.parametrize("workload", GRAPHS.values(), ids=list(GRAPHS))
needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
needs_byzfl = pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed")
needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed")


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    racing.use_threads(threads)


def test_every_rule_has_a_naive_loop() -> None:
    assert list(naive.RULES) == list(RULES)


def with_an_outlier(workload: Workload) -> Round:
    """One client is far away, so that distances decide something."""
    work = Round(workload)
    work.models[-1] *= 3
    return work


@every_graph
@pytest.mark.parametrize("rule", RULES)
def test_naive_loops_agree_with_the_library(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    theirs = work.one_by_one(peers.opponents(rule, work)["naive"], workload.n)
    assert_close(theirs, work.ours(rule).model)


@every_graph
@pytest.mark.parametrize("rule", RULES)
def test_contestants_of_the_library_agree(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    runs = racing.contestants(rule, work)
    expected = work.ours(rule).model.clone()
    for name in runs.keys() & {"native", "fresh", "torch"}:
        assert_close(runs[name]().model, expected)
    assert runs["copy"]() is work.target
    assert torch.equal(work.target, work.models)


@every_graph
def test_there_is_room_for_the_aggregate(workload: Workload) -> None:
    work = Round(workload)
    assert work.out.shape == work.ours("Median").model.shape
    assert work.out.data_ptr() == work.target.data_ptr()


def test_torch_is_measured_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, tuple[bool, bool]] = {}
    in_torch: list[bool] = []

    @contextmanager
    def disabled() -> Iterator[None]:
        in_torch.append(True)
        yield
        in_torch.pop()

    def spy(own: Tensor, received: Any, out: Tensor | None = None, **_: Any) -> eq.Aggregated:
        used[name] = bool(in_torch), out is not None
        return eq.Aggregated(own)

    monkeypatch.setattr(native, "available", lambda: True)
    monkeypatch.setattr(native, "disabled", disabled)
    monkeypatch.setitem(RULES, "Median", spy)
    for name, run in racing.contestants("Median", Round(GRAPHS["complete"])).items():  # noqa: B007
        run()
    assert used == {"native": (False, True), "fresh": (False, False), "torch": (True, True)}


@needs_byzfl
@every_graph
@pytest.mark.parametrize("rule", ["FedAvg", "TrimmedMean", "Median"])
def test_byzfl_agrees_where_definitions_do(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    theirs = work.one_by_one(peers.opponents(rule, work)["byzfl"], work.n)
    assert_close(theirs, work.ours(rule).model)


@needs_byzfl
def test_byzfl_krum_takes_a_received_model() -> None:
    work = Round(GRAPHS["sparse, odd degree"])
    theirs = work.one_by_one(peers.opponents("Krum", work)["byzfl"], work.n)
    received = work.models[work.topology.senders]
    assert (received == theirs[:, None]).all(2).any(1).all()


@needs_flower
@every_graph
@pytest.mark.parametrize("rule", ["FedAvg", "Krum", "TrimmedMean", "Median"])
def test_flower_agrees(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    theirs = work.one_by_one(peers.opponents(rule, work)["flower"], work.n)
    assert theirs.dtype == torch.float32
    assert_close(theirs, work.ours(rule).model)


@pytest.mark.parametrize("degree", range(5, 100))
def test_flower_trims_as_many(degree: int) -> None:
    found: dict[str, float] = {}

    def trimmed(results: list[Any], proportiontocut: float) -> list[Any]:
        found["trimmed"] = int(proportiontocut * len(results))
        return results[0][0]

    trim = Workload("", 1, degree, 1).tolerated
    peers.flower_call(trimmed, trim, torch.zeros(1), torch.zeros(degree, 1))
    assert found["trimmed"] == trim


@needs_flower
def test_flower_is_entered_without_its_services() -> None:
    peers.flower_aggregates()
    assert "flwr" not in sys.modules


@pytest.mark.parametrize("find", [peers.byzfl_rule, peers.flower_rule])
def test_rules_without_a_counterpart(find: Callable[[str, int], Opponent | None]) -> None:
    assert find("Balance", 1) is None


def test_who_takes_a_list_gets_no_copy() -> None:
    models = torch.rand(5, 3)
    rows = torch.tensor([4, 1])
    assert torch.equal(torch.stack(naive.listed(models, rows)), naive.gathered(models, rows))
    assert [view.data_ptr() for view in naive.listed(models, rows)] == [models[4].data_ptr(), models[1].data_ptr()]


def test_some_of_the_clients_are_spread_over_the_graph() -> None:
    work = Round(Workload("", 12, 4, 5))
    some = work.one_by_one(Opponent(lambda own, received: own), 3)
    assert_close(some, work.models[[0, 4, 8]])


def test_loops_over_some_clients_are_scaled_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "race", lambda runs, *_, **__: {"1": dict.fromkeys(runs, 2.0)})
    monkeypatch.setattr(racing, "affordable", lambda work, opponent, seconds: 3)
    workload = GRAPHS["complete"]
    row = racing.measure_time(workload, Round(workload), "SCClip", 1, 1.0)
    assert (row.time("copy"), row.time("ours"), row.time("naive")) == (2.0, 2.0, 8.0)
    assert tables.peer_cell(row, "naive", "1", workload.n) == "4.00*"
    assert tables.peer_cell(row, "byzfl", "1", workload.n).strip() == "-"


def clock(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Runs take these times, one after the other."""
    times = iter(seconds)

    def seconds_of(run: Callable[[], object]) -> float:
        run()
        return next(times)

    monkeypatch.setattr(racing, "seconds_of", seconds_of)


def test_the_best_turn_counts_and_every_other_time_the_order_is_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 5, 7, 2, 6, 9, 9)
    order: list[str] = []
    assert racing.race({name: partial(order.append, name) for name in "ab"}, 3) == {"1": {"a": 5e3, "b": 2e3}}
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_threads_take_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, *range(1, 9))
    threads: list[int] = []
    run = lambda: threads.append(torch.get_num_threads())  # noqa: E731
    found = racing.race({"a": run, "b": run}, 2, (1, 2))
    assert threads == [1, 2, 1, 2, 2, 1, 2, 1]
    assert found == {"1": {"a": 1e3, "b": 3e3}, "2": {"a": 2e3, "b": 4e3}}


def test_who_is_slow_has_as_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 100, 1, 1, 100, 99, 1)
    assert racing.race({"slow": int, "quick": int}, 3)["1"] == {"slow": 99e3, "quick": 1e3}


def test_everybody_finds_the_same_in_the_cache() -> None:
    done: list[str] = []
    racing.race({"a": partial(done.append, "a"), "b": partial(done.append, "b")}, 1, before=partial(done.append, "-"))
    assert done == ["-", "a", "-", "b"]


def test_an_opponent_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(own: Tensor, received: Tensor) -> Tensor:
        raise RuntimeError("input tensor is too large")

    monkeypatch.setattr(peers, "byzfl_rule", lambda rule, tolerated: Opponent(too_large))
    workload = GRAPHS["complete"]
    row = racing.measure_time(workload, Round(workload), "Median", 1, 0.0)
    assert row.failures == {"byzfl": "input tensor is too large"}
    assert tables.peer_cell(row, "byzfl", "1", workload.n).strip() == "fails"
    results = Results({"byzfl": "1", "flower": "1", "native": True, "memory": False}, [row])
    assert "Median of byzfl fails on workload : input tensor is too large" in tables.notes(results)


def test_ratios_are_of_the_same_number_of_threads() -> None:
    row = Row("1", "Median", {"1": {"copy": 2.0, "native": 6.0, "torch": 9.0}, "2": {"copy": 1.0, "native": 4.0}})
    assert row.ratio("native", "copy") == 3
    assert row.ratio("ours", "copy", 2) == 4
    assert row.ratio("torch", "copy", 2) is None
    assert row.speed_up("native", 2) == 1.5
    assert row.speed_up("torch", 2) is None
    assert Row("1", "Median", {"1": {"torch": 9.0}}).time("ours") == 9


@needs_proc
def test_memory_is_what_is_used_beyond_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(own: Tensor, received: Any, **_: Any) -> eq.Aggregated:
        held = torch.ones(40 * memory.MIB // 4)
        return eq.Aggregated(own + held[0])

    monkeypatch.setitem(RULES, "Greedy", greedy)
    assert 35 < memory.extra_mib(Workload("", 4, 3, 3_000_000), "Greedy", 1) < 50


# Scale.


def test_many_clients_are_compared_with_workload_3_and_with_equally_many_parameters() -> None:
    for large in scale.SCALE:
        found = scale.compared(large)
        assert found["reference"] is WORKLOADS["3"]
        assert (found["same_d"].n, found["same_d"].degree, found["same_d"].d) == (1_000, large.degree, large.d)


def test_time_per_edge_and_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "compared", lambda large: {"large": large, "reference": small, "same_d": small})
    monkeypatch.setattr(scale, "race", lambda runs, repeats: {"1": {"large": 12.0, "reference": 1.0, "same_d": 4.0}})
    small = Workload("", 5, 2, 10)
    row = scale.ScaleRace(Workload("many", 20, 2, 10)).measure("Median", 1, memory=False)
    assert (row.large, row.reference, row.same_d) == (12e6 / 400, 1e6 / 100, 4e6 / 100)
    assert (row.growth, row.memory_mib) == (3, None)


# The script.


def tiny(*arguments: str) -> list[str]:
    return ["--repeats", "1", "--naive-seconds", "0.001", *arguments]


def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "SCALE", (workloads.sized("40x4x40"),))
    monkeypatch.setattr(scale, "compared", lambda large: dict.fromkeys(("large", "reference", "same_d"), large))
    file = tmp_path / "results.json"
    small = tiny("--workloads", "8x4x60", "1x5x60", "scale", "--threads", "1", "2", "--skip-memory", "--markdown")
    assert kernels.main([*small, "--json", str(file)]) == 0
    printed, stored = capsys.readouterr().out, json.loads(file.read_text())
    assert [(row["workload"], row["rule"]) for row in stored["rows"]] == [
        (workload, rule) for workload in ("8x4x60", "1x5x60") for rule in RULES
    ]
    assert all(row["ms"][threads].keys() >= {"copy", "torch", "naive"} for row in stored["rows"] for threads in "12")
    assert all(printed.count(f"\n{rule} ") == 4 + (rule in scale.SCALE_RULES) for rule in RULES)
    assert [row["rule"] for row in stored["scale"]] == list(scale.SCALE_RULES)
    assert "\n| rule | 8x4x60 | 1x5x60 |\n|---|---:|---:|\n| `FedAvg` | " in printed
    assert "\n| 40x4x40 | `FedAvg` | " in printed


@needs_proc
def test_a_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also measures memory, in a process of its own."""
    file = tmp_path / "results.json"
    arguments = tiny("--workloads", "6x3x50", "--json", str(file), "--resume", "--rules", "Median")
    kernels.main(arguments)
    stored = json.loads(file.read_text())
    assert 0 <= stored["rows"][0]["memory_mib"] < goals.MOST_MIB
    stored["rows"][0]["ms"]["1"] |= {"native": 123456.0, "torch": 123456.0}
    file.write_text(json.dumps(stored))
    capsys.readouterr()
    kernels.main(arguments)
    assert "123456.0" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"--resume needs the settings of .*'repeats': 1.* found .*'repeats': 2"):
        kernels.main([*arguments, "--repeats", "2"])


def test_without_peers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peers, "package_folder", lambda name: None)
    peers.byzfl_aggregators.cache_clear()
    peers.flower_aggregates.cache_clear()
    kernels.main(tiny("--workloads", "6x3x50", "--rules", "Median", "--skip-memory"))
    peers.byzfl_aggregators.cache_clear()
    peers.flower_aggregates.cache_clear()
    printed = capsys.readouterr().out
    assert "byzfl is not installed" in printed
    assert "flwr is not installed" in printed


def test_without_the_native_library(capsys: pytest.CaptureFixture[str]) -> None:
    with native.disabled():
        kernels.main(tiny("--workloads", "6x3x50", "--rules", "Median", "--skip-memory", "--markdown"))
    printed = capsys.readouterr().out
    assert "the native library is not used" in printed
    assert "`torch` as a multiple" in printed
    assert "`native` as a multiple" not in printed


# Goals.


def measured(growth: float = 1.0, mib: float = 5.0, two: float = 0.5, **ms: float) -> Results:
    """Results that meet all goals, unless told otherwise."""
    times = {"copy": 1.0, "native": 1.0, "naive": 1000.0, "byzfl": 2000.0, **ms}
    rows = [Row(w, rule, {"1": times, "2": {"native": two}}, memory_mib=mib) for w in WORKLOADS for rule in RULES]
    many = [ScaleRow(w.name, rule, growth, 1.0, 0.1, mib) for w in scale.SCALE for rule in scale.SCALE_RULES]
    return Results({}, rows, many)


CASES = len(WORKLOADS) * len(RULES)
SCALES = len(scale.SCALE) * len(scale.SCALE_RULES)
LARGE = len(goals.LARGER_THAN_CACHE) * len(RULES)
GOALS = len(goals.COPIES) + len(goals.NAIVE) + len(goals.BYZFL) + LARGE + CASES + 2 * SCALES


@pytest.mark.parametrize(
    ("results", "missed"),
    [
        (measured(), 0),
        (measured(copy=1 / 1.19), 0),
        (measured(copy=1 / 1.21), 2),  # median and trimmed mean for one client
        (measured(copy=1 / 6.01), len(goals.COPIES)),
        (measured(naive=99.0), 2),  # median and trimmed mean on the complete graph
        (measured(naive=0.96), 8),
        (measured(naive=0.94), CASES),
        (measured(byzfl=1499.0), 2),  # median and trimmed mean on the complete graph
        (measured(byzfl=9.0), len(goals.BYZFL)),
        (measured(two=1 / 1.61), 0),
        (measured(two=1 / 1.59), LARGE),
        (measured(mib=256.5), CASES + SCALES),
        (measured(growth=1.49), 0),
        (measured(growth=1.51), SCALES),
    ],
)
def test_goals(results: Results, missed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert goals.report_goals(results) == (missed == 0)
    assert f"goals: {GOALS - missed} met, {missed} missed, 0 not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "case", "bar"),
    [
        (goals.COPIES, ("1", "FedAvg"), 2),
        (goals.COPIES, ("5", "FedAvg"), 2.2),
        (goals.COPIES, ("3", "UBAR"), 3.5),
        (goals.COPIES, ("4", "SCClip"), 5),
        (goals.COPIES, ("3", "Krum"), 6),
        (goals.COPIES, ("2", "Median"), 4),
        (goals.COPIES, ("3", "TrimmedMean"), 2.8),
        (goals.BYZFL, ("2", "Krum"), 200),
        (goals.BYZFL, ("1", "Median"), 150),
        (goals.NAIVE, ("1", "Balance"), 5),
        (goals.NAIVE, ("5", "FLTrust"), 0.95),
    ],
)
def test_bars(table: goals.Bars, case: tuple[str, str], bar: float) -> None:
    assert table[case] == bar


def test_a_missed_goal_says_what_was_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    goals.report_goals(measured(copy=0.1, naive=20.0, byzfl=20.0, mib=300.0, growth=6.0, two=0.8))
    printed = capsys.readouterr().out
    assert "missed: workload 5, Krum, native/copy: wanted <= 1.5, found 10\n" in printed
    assert "missed: workload 4, Median, naive/ours: wanted >= 100, found 20\n" in printed
    assert "missed: workload 2, Krum, byzfl/native: wanted >= 200, found 20\n" in printed
    assert "missed: workload 2, Krum, two threads: wanted >= 1.6, found 1.25\n" in printed
    assert "missed: workload 5, Krum, MiB: wanted <= 256, found 300\n" in printed
    where = "scale 100000x10x1000, Krum, time per edge and parameter / workload 3"
    assert f"missed: {where}: wanted <= 1.5, found 6\n" in printed


def test_what_was_not_measured_is_no_goal_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert goals.report_goals(Results({}))
    assert f"goals: 0 met, 0 missed, {GOALS} not measured" in capsys.readouterr().out


def test_missed_goals_are_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "1", Workload("1", 6, 3, 50))
    monkeypatch.setitem(goals.NAIVE, ("1", "FedAvg"), 1e9)
    arguments = tiny("--workloads", "1", "--rules", "FedAvg", "--skip-memory")
    assert kernels.main([*arguments, "--goals"]) == 1
    assert kernels.main(arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "6"], "expected 1, 2, 3, 4, 5, scale or clients x neighbours x parameters, found 6"),
        (["--goals", "--threads", "2", "4"], "--goals need one thread among --threads, found 2 4"),
        (["--resume"], "--resume needs --json FILE"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.parse(arguments)  # not main: if this does not fail, nothing is to be measured
    assert message in capsys.readouterr().err


# Tables and the picture.


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.954, "0.95"), (9.99, "9.99"), (9.999, "10.0"), (99.96, "100"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert tables.number(value) == text


def test_markdown_shows_bars_and_what_misses_them() -> None:
    results = measured(copy=0.4, growth=2.0)
    results.settings["threads"] = [1, 2]
    printed = tables.markdown(results)
    assert "| `Median` | **2.50** (2) | 2.50 (4) | 2.50 (2.8) | 2.50 (3.5) | **2.50** (1.2) |\n" in printed
    assert "| `Krum` | 2,000 (60) | 2,000 (200) | 2,000 | 2,000 | 2,000 |\n" in printed
    assert "| `FedAvg` | 2.00 | 2.00 (1.6) | 2.00 (1.6) | 2.00 (1.6) | 2.00 (1.6) |\n" in printed
    assert "| 10000x10x20000 | `Krum` | 2.000 | 1.000 | **2.00** (1.5) | 0.100 | 5 |" in printed
    assert "Flower" not in printed  # was not measured


def drawn(tmp_path: Path, results: Results) -> str:
    save(results, tmp_path / "results.json")
    picture.main(["--json", str(tmp_path / "results.json"), "--out", str(tmp_path / "picture.svg")])
    return (tmp_path / "picture.svg").read_text()


def test_the_picture_depends_on_the_numbers_alone(tmp_path: Path) -> None:
    first = drawn(tmp_path, measured())
    assert first.startswith("<?xml")
    assert drawn(tmp_path, measured()) == first
    assert drawn(tmp_path, measured(byzfl=500.0)) != first


def test_the_picture_shows_multiples_of_a_copy_and_goals() -> None:
    results = measured(copy=0.5, naive=30.0)
    axes = picture.picture(results).axes
    shown = {points.get_label(): points.get_offsets() for points in axes[0].collections}
    assert [x for x, _ in shown["equipoise, native"]] == [2.0] * len(RULES)
    assert [x for x, _ in shown["loop in plain torch"]] == [60.0] * len(RULES)
    assert len(shown["equipoise, torch"]) == 0
    goal = dict(zip(RULES, [math.nan] * len(RULES), strict=True)) | {
        results.rules[int(y)]: x for x, y in shown["goal for native"]
    }
    assert (goal["FedAvg"], goal["Krum"], goal["Median"]) == (2.0, 2.5, 2.0)
    assert math.isnan(goal["BalanceMedian"])
    assert axes[4].get_title("left") == "5: 1 client that hears 10, d = 11,000,000"


# Attacks and rounds.


def test_the_benchmark_of_attacks_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["--clients", "10", "--degree", "4", "--parameters", "800", "--repeats", "1"]
    attack_times.main([*small, "--json", str(tmp_path / "times.json")])
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in attack_times.ATTACKS | attack_times.SEARCHES)
    times = json.loads((tmp_path / "times.json").read_text())
    assert {what for found in times.values() for what in found} == {"forge", "aggregate", "aggregate benign"}


def test_attacks_that_cost_too_much_are_named() -> None:
    times = {"LIE": {"forge": 2.0, "aggregate": 1.9}, "IPM": {"forge": 1.0, "aggregate": 1.9}}
    assert attack_times.too_slow(times) == ["LIE"]
    search = {"forge": 2.0, "aggregate": 1.9 / attack_times.MOST}
    assert attack_times.too_slow({"Adaptive": search}) == ["Adaptive"]


def test_the_benchmark_of_rounds_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = ["--rules", "FedAvg", "--sizes", "30", "--features", "4", "--classes", "2", "--rounds", "1"]
    round_times.main([*few, "--json", str(tmp_path / "times.json")])
    printed = capsys.readouterr().out
    assert "| FedAvg |" in printed
    assert "| 30 | 10 |" in printed
    times = json.loads((tmp_path / "times.json").read_text())
    assert set(times["phases"]["FedAvg"]) == set(round_times.PHASES)
    assert times["scale"]["30"]["seconds"] > 0


def test_shares_of_a_round() -> None:
    seconds = {"train": 3.0, "aggregate": 0.4, "mix": 0.6}
    assert round_times.overhead(seconds) == 0.25
    assert round_times.aggregating(seconds) == 0.1


def test_rules_that_take_too_much_of_a_round_are_named() -> None:
    slow, quick = {"train": 0.96, "aggregate": 0.04}, {"train": 0.98, "aggregate": 0.02}
    times = {"FedAvg": {"train": 0.8, "aggregate": 0.0, "mix": 0.2}, "Median": slow, "Krum": quick, "UBAR": slow}
    missed = {
        "All but training above 15 %": ["FedAvg"],
        "Aggregation not below 3 %, UBAR and LEARN exempt": ["Median"],
    }
    assert round_times.too_slow(times | {"LEARN": slow}, threads=1) == missed
    assert list(round_times.too_slow(times, threads=2).values()) == [["FedAvg"]]


def test_a_slow_round_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        round_times, "phase_table", lambda rules, rounds: {"Median": {"train": 1.0, "aggregate": share}}
    )
    for share, code in ((0.1, 1), (0.01, 0)):  # noqa: B007
        assert round_times.main(["--sizes"]) == code
