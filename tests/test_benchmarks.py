"""The benchmark compares like with like, and runs."""

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from benchmarks import attacks as attack_times
from benchmarks import kernels, naive
from benchmarks import rounds as round_times

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
GRAPHS = {
    "sparse, even degree": kernels.Workload("", 12, 4, 700),
    "sparse, odd degree": kernels.Workload("", 12, 5, 700),
    "complete": kernels.Workload("", 12, 11, 700),
    "one client": kernels.Workload("", 1, 10, 700),
}
needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
needs_byzfl = pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed")


def test_every_rule_has_a_naive_loop() -> None:
    assert list(naive.RULES) == list(kernels.RULES)


@pytest.mark.parametrize("workload", GRAPHS.values(), ids=list(GRAPHS))
@pytest.mark.parametrize("rule", kernels.RULES)
def test_naive_loops_agree_with_the_library(rule: str, workload: kernels.Workload) -> None:
    work = kernels.Round(workload)
    # one client is far away, so that distances decide something
    work.models[-1] *= 3
    theirs = work.one_by_one(kernels.opponents(rule, work)["naive"], workload.n)
    assert_close(theirs, work.ours(rule).model)


@needs_byzfl
@pytest.mark.parametrize("rule", ["FedAvg", "TrimmedMean", "Median"])
def test_byzfl_agrees_where_definitions_do(rule: str) -> None:
    work = kernels.Round(GRAPHS["sparse, even degree"])
    theirs = work.one_by_one(kernels.opponents(rule, work)["byzfl"], work.n)
    assert_close(theirs, work.ours(rule).model)


@needs_byzfl
def test_byzfl_krum_takes_a_received_model() -> None:
    work = kernels.Round(GRAPHS["sparse, odd degree"])
    theirs = work.one_by_one(kernels.opponents("Krum", work)["byzfl"], work.n)
    received = work.models[work.topology.senders]
    assert (received == theirs[:, None]).all(2).any(1).all()


def test_rules_without_a_counterpart_in_byzfl() -> None:
    assert kernels.byzfl_rule("Balance", 1) is None


def test_some_of_the_clients_are_spread_over_the_graph() -> None:
    work = kernels.Round(kernels.Workload("", 12, 4, 5))
    some = work.one_by_one(lambda own, received: own, 3)
    assert_close(some, work.models[[0, 4, 8]])


def test_loops_over_some_clients_are_scaled_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "race", lambda runs, repeats: dict.fromkeys(runs, 2.0))
    monkeypatch.setattr(kernels, "affordable", lambda work, aggregate, seconds: 3)
    workload = GRAPHS["complete"]
    row = kernels.measure_time(workload, kernels.Round(workload), "SCClip", 1, 1.0)
    assert row.ms == {"copy": 2.0, "ours": 2.0, "naive": 8.0}
    assert kernels.cell(row, "naive", workload.n) == "4.00*"
    assert kernels.cell(row, "byzfl", workload.n).strip() == "-"


def clock(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Runs take these times, one after the other."""
    times = iter(seconds)

    def seconds_of(run: Callable[[], object]) -> float:
        run()
        return next(times)

    monkeypatch.setattr(kernels, "seconds_of", seconds_of)


def test_the_best_repetition_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 5, 7, 6, 2)
    order: list[str] = []
    assert kernels.race({name: partial(order.append, name) for name in "ab"}, 2) == {"a": 5e3, "b": 2e3}
    assert order == ["a", "b", "a", "b"]


def test_who_is_slow_gets_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 11, 9, 8)
    assert kernels.race({"slow": int, "quick": int}, 3) == {"slow": 11e3, "quick": 8e3}


def test_an_opponent_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(own: Tensor, received: Tensor) -> Tensor:
        raise RuntimeError("input tensor is too large")

    monkeypatch.setattr(kernels, "byzfl_rule", lambda rule, tolerated: too_large)
    workload = GRAPHS["complete"]
    row = kernels.measure_time(workload, kernels.Round(workload), "Median", 1, 0.0)
    assert row.failures == {"byzfl": "input tensor is too large"}
    assert kernels.cell(row, "byzfl", workload.n).strip() == "fails"
    results = kernels.Results({"byzfl": "1", "memory": False}, [row])
    assert "Median of byzfl fails on workload : input tensor is too large" in kernels.notes(results)


@needs_proc
def test_memory_is_what_is_used_beyond_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(own: Tensor, received: Any, **_: Any) -> eq.Aggregated:
        held = torch.ones(40 * kernels.MIB // 4)
        return eq.Aggregated(own + held[0])

    monkeypatch.setitem(kernels.RULES, "Greedy", greedy)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert 35 < kernels.extra_mib(kernels.Workload("", 4, 3, 3_000_000), "Greedy", 1) < 50


def tiny(*arguments: str) -> list[str]:
    return ["--repeats", "1", "--naive-seconds", "0.001", *arguments]


def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (kernels.Workload(str(n), n, 4, 40) for n in (10, 40))
    monkeypatch.setattr(kernels, "SCALING", (small, large))
    file = tmp_path / "results.json"
    arguments = tiny("--workloads", "8x4x60", "1x5x60", "scaling", "--skip-memory", "--json", str(file))
    assert kernels.main(arguments) == 0
    printed = capsys.readouterr().out
    stored = json.loads(file.read_text())
    assert [(row["workload"], row["rule"]) for row in stored["rows"]] == [
        (workload, rule) for workload in ("8x4x60", "1x5x60") for rule in kernels.RULES
    ]
    assert all(row["ms"].keys() >= {"copy", "ours", "naive"} for row in stored["rows"])
    assert all(printed.count(f"\n{rule} ") == 2 + (rule in kernels.SCALING_RULES) for rule in kernels.RULES)
    assert stored["scaling"].keys() == {"Median", "Balance"}


@needs_proc
def test_a_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also measures memory, in a process of its own."""
    file = tmp_path / "results.json"
    arguments = tiny("--workloads", "6x3x50", "--json", str(file), "--resume", "--rules", "Median")
    kernels.main(arguments)
    stored = json.loads(file.read_text())
    assert 0 <= stored["rows"][0]["memory_mib"] < kernels.MOST_MIB
    stored["rows"][0]["ms"]["ours"] = 123456.0
    file.write_text(json.dumps(stored))
    capsys.readouterr()
    kernels.main(arguments)
    assert "123456.0" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"--resume needs the settings of .*'repeats': 1.* found .*'repeats': 2"):
        kernels.main([*arguments, "--repeats", "2"])


def test_without_byzfl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "byzfl_aggregators", lambda: None)
    kernels.main(tiny("--workloads", "6x3x50", "--rules", "Median", "--skip-memory"))
    assert "byzfl is not installed" in capsys.readouterr().out


def measured(naive_ms: float = 1000.0, mib: float = 5.0, growth: float = 4.0) -> kernels.Results:
    """Results that meet all goals, unless told otherwise."""
    times = {"copy": 0.5, "ours": 1.0, "naive": naive_ms}
    rows = [kernels.Row(w, rule, times, memory_mib=mib) for w in kernels.WORKLOADS for rule in kernels.RULES]
    return kernels.Results({}, rows, {rule: {"1000": 1.0, "4000": growth} for rule in kernels.SCALING_RULES})


GOALS = 2 * len(kernels.WORKLOADS) * len(kernels.RULES) + 2


@pytest.mark.parametrize(
    ("results", "missed"),
    [
        (measured(), 0),
        (measured(naive_ms=99.0), 2),  # median and trimmed mean on the complete graph
        (measured(naive_ms=0.96), len(kernels.RATIOS)),
        (measured(naive_ms=0.94), len(kernels.WORKLOADS) * len(kernels.RULES)),
        (measured(mib=256.5), len(kernels.WORKLOADS) * len(kernels.RULES)),
        (measured(growth=5.1), 2),
        (measured(growth=3.1), 2),
    ],
)
def test_goals(results: kernels.Results, missed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.report_goals(results) == (missed == 0)
    assert f"goals: {GOALS - missed} met, {missed} missed, 0 not measured" in capsys.readouterr().out


def test_a_missed_goal_says_what_was_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.report_goals(measured(naive_ms=20.0, mib=300.0, growth=6.0))
    printed = capsys.readouterr().out
    assert "missed: workload 4, Median, naive/ours: wanted >= 100, found 20\n" in printed
    assert "missed: workload 5, Krum, MiB: wanted <= 256, found 300\n" in printed
    assert "missed: scaling, Balance, time for 4 times the clients: wanted 3.2 to 5, found 6\n" in printed


def test_what_was_not_measured_is_no_goal_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.report_goals(kernels.Results({}))
    assert f"goals: 0 met, 0 missed, {GOALS} not measured" in capsys.readouterr().out


def test_missed_goals_are_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.WORKLOADS, "1", kernels.Workload("1", 6, 3, 50))
    monkeypatch.setitem(kernels.RATIOS, ("1", "FedAvg"), 1e9)
    arguments = tiny("--workloads", "1", "--rules", "FedAvg", "--skip-memory")
    assert kernels.main([*arguments, "--goals"]) == 1
    assert kernels.main(arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "6"], "expected 1, 2, 3, 4, 5, scaling or clients x neighbours x parameters, found 6"),
        (["--goals", "--threads", "2"], "--goals are for one thread, found --threads 2"),
        (["--resume"], "--resume needs --json FILE"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.main(arguments)
    assert message in capsys.readouterr().err


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


def test_the_share_of_everything_but_training() -> None:
    assert round_times.overhead({"train": 3.0, "aggregate": 0.5, "mix": 0.5}) == 0.25
