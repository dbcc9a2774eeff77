"""The scripts: goals, tables, pictures and exit codes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import attacks as attack_times
from benchmarks import evaluation, goals, kernels, peers, picture, scale, tables, workloads
from benchmarks.limits import NAMES, ONE_PASS, measured_limits, work_of
from benchmarks.racing import Row
from benchmarks.results import Results, save
from benchmarks.scale import ScaleRow
from benchmarks.workloads import RULES, WORKLOADS, Workload
from equipoise.kernels import native

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only"
)


def tiny(*arguments: str) -> list[str]:
    return ["--repeats", "1", "--naive-seconds", "0.001", *arguments]


def test_kernels_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "SCALE", (workloads.sized("40x4x40"),))
    monkeypatch.setattr(
        scale, "compared", lambda large: dict.fromkeys(("large", "reference", "same_d"), large)
    )
    file = tmp_path / "results.json"
    small = tiny(
        "--workloads",
        "8x4x60",
        "1x5x60",
        "scale",
        "--threads",
        "1",
        "2",
        "--skip-memory",
        "--markdown",
    )
    assert kernels.main([*small, "--json", str(file)]) == 0
    printed, stored = capsys.readouterr().out, json.loads(file.read_text())
    assert [(row["workload"], row["rule"]) for row in stored["rows"]] == [
        (workload, rule) for workload in ("8x4x60", "1x5x60") for rule in RULES
    ]
    assert all(
        row["ms"][threads].keys() >= {"copy", "torch", "naive"}
        for row in stored["rows"]
        for threads in "12"
    )
    assert all(printed.count(f"\n{rule} ") == 4 + (rule in scale.SCALE_RULES) for rule in RULES)
    assert [row["rule"] for row in stored["scale"]] == list(scale.SCALE_RULES)
    assert "\n| rule | 8x4x60 | 1x5x60 |\n|---|---:|---:|\n| `FedAvg` | " in printed
    assert "\n| 40x4x40 | `FedAvg` | " in printed


def test_evaluation_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {name: replace(w, n=2, examples=9) for name, w in evaluation.WORKLOADS.items()}
    monkeypatch.setattr(evaluation, "WORKLOADS", small)
    monkeypatch.setattr(evaluation, "GOAL", math.inf)
    file = tmp_path / "evaluation.json"
    assert evaluation.main(["--repeats", "1", "--json", str(file)]) == 0
    assert json.loads(file.read_text()).keys() == {"threads", *small}
    printed = capsys.readouterr().out
    assert all(f"\n| {name} | 2 | 9 | " in printed for name in small)
    for work in small.values():
        run = evaluation.Evaluation(work)
        assert all(loop() == pytest.approx(run.run_ours()) for _, loop in run.loops())


@needs_proc
def test_kernels_script_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    with pytest.raises(
        ValueError, match=r"--resume needs the settings of .*'repeats': 1.* found .*'repeats': 2"
    ):
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
        kernels.main(
            tiny("--workloads", "6x3x50", "--rules", "Median", "--skip-memory", "--markdown")
        )
    printed = capsys.readouterr().out
    assert "the native library is not used" in printed
    assert "`torch` as a multiple" in printed
    assert "`native` as a multiple" not in printed


def measured(
    growth: float = 1.0, mib: float = 5.0, two: float = 0.5, two_copies: float = 0.5, **ms: float
) -> Results:
    """Results that meet all goals, unless told otherwise, on a machine of infinite arithmetic."""
    times = {"copy": 1.0, "native": 1.0, "naive": 1000.0, "byzfl": 2000.0, **ms}
    rows = [
        Row(w, rule, {"1": times, "2": {"native": two, "copy": two_copies}}, memory_mib=mib)
        for w in WORKLOADS
        for rule in RULES
    ]
    many = [
        ScaleRow(w.name, rule, growth, 1.0, 0.1, mib)
        for w in scale.SCALE
        for rule in scale.SCALE_RULES
    ]
    return Results({}, rows, many, dict.fromkeys(NAMES.values(), math.inf))


CASES = len(WORKLOADS) * len(RULES)


SCALES = len(scale.SCALE) * len(scale.SCALE_RULES)


LARGE = len(goals.LARGER_THAN_CACHE) * len(RULES)


GROWING = len(goals.GROWTH) * len(scale.SCALE_RULES)


BARS = len(goals.NAIVE) + len(goals.BYZFL) + len(goals.COPIES)
GOALS = CASES + BARS + LARGE + CASES + SCALES + GROWING


@pytest.mark.parametrize(
    ("results", "missed"),
    [
        (measured(), 0),
        # For one client, a rule that reads the models once takes 0.55 copies, others 1.05.
        (measured(copy=1 / 1.36, two_copies=0.3), 0),
        (measured(copy=1 / 1.37, two_copies=0.3), len(ONE_PASS)),
        (measured(copy=1 / 9.0, two_copies=0.1), CASES + len(goals.COPIES)),
        (measured(naive=99.0), 2),  # median and trimmed mean on the complete graph
        (measured(naive=0.96), 8),
        (measured(naive=0.94), CASES),
        (measured(byzfl=1499.0), 2),  # median and trimmed mean on the complete graph
        (measured(byzfl=9.0), len(goals.BYZFL)),
        (measured(two=0.66), 0),
        (measured(two=0.67), LARGE),
        (measured(two=0.99, two_copies=0.75), 0),  # the copy gains as little
        (measured(mib=256.5), CASES + SCALES),
        (measured(growth=2.49), 0),
        (measured(growth=2.51), GROWING),
    ],
)
def test_goals(results: Results, missed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert goals.report_goals(results) == (missed == 0)
    assert (
        f"goals: {GOALS - missed} met, {missed} missed, 0 not measured" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("table", "case", "bar"),
    [
        (goals.BYZFL, ("2", "Krum"), 200),
        (goals.BYZFL, ("1", "Median"), 150),
        (goals.NAIVE, ("1", "Balance"), 5),
        (goals.NAIVE, ("5", "FLTrust"), 0.95),
        (goals.COPIES, ("1", "FedAvg"), 2.5),
        (goals.COPIES, ("1", "Krum"), 5.5),
    ],
)
def test_bars(table: goals.Bars, case: tuple[str, str], bar: float) -> None:
    assert table[case] == bar


RATES = {"products": 4.0, "differences": 2.0, "comparisons": 8.0}


@pytest.mark.parametrize(
    ("rule", "workload", "ms"),
    [
        # 1 ms for a copy of the models, and the rates above for a million parameters.
        ("FedAvg", Workload("", 10, 4, 1_000_000), 1 + 40 / 4),
        ("Balance", Workload("", 10, 4, 1_000_000), 1.5 + 40 / 4 + 2 * 20 / 2),
        ("FLTrust", Workload("", 10, 4, 1_000_000), 1.5 + (40 + 20) / 4),
        ("Krum", Workload("", 10, 4, 1_000_000), 1.5 + 2 * 45 / 2),
        ("Krum", Workload("", 1, 4, 1_000_000), 1.1 + 2 * 6 / 2),
        ("Median", Workload("", 1, 3, 1_000_000), 0.625 + 4 / 8),
    ],
)
def test_least_time(rule: str, workload: Workload, ms: float) -> None:
    assert work_of(rule, workload).least_ms(RATES, 1.0) == pytest.approx(ms)


@pytest.mark.parametrize(("n", "ms"), [(10, 1.5 + 0.4), (10_000, 1 + 400)])
def test_least_time_in_cache(n: int, ms: float) -> None:
    limits = RATES | {"loaded products": 1.0, "strips": 1.5}
    assert work_of("FedAvg", Workload("", n, 4, 10_000)).least_ms(limits, 1.0) == pytest.approx(ms)


def test_goal_no_code_can_meet() -> None:
    results = measured()
    row = results.find("1", "FedAvg")
    assert goals.most_copies(row, results) == 2.5
    results.limits = RATES | {"strips": 2.7}
    row.ms["1"]["copy"] = 1e9  # hides the arithmetic
    assert goals.most_copies(row, results) == 2.7


def test_machine_limits() -> None:
    limits = measured_limits()
    if limits is not None:  # there is a compiler
        assert set(limits) == {*NAMES.values(), "strips"}
        assert all(rate > 0.1 for rate in limits.values())


def test_refused_workload(capsys: pytest.CaptureFixture[str]) -> None:
    tiny_case = ["--workloads", "30x29x50", "--rules", "MDA", "Krum", "--repeats", "1"]
    assert kernels.main([*tiny_case, "--naive-seconds", "0.001", "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "MDA of equipoise fails on workload 30x29x50: MDA must search at most" in printed
    assert "| `Krum` |" in printed


def test_missed_goal(capsys: pytest.CaptureFixture[str]) -> None:
    worst = {"naive": 20.0, "byzfl": 20.0, "mib": 300.0, "growth": 6.0, "two": 0.8}
    goals.report_goals(measured(copy=0.1, two_copies=0.05, **worst))
    printed = capsys.readouterr().out
    assert "missed: workload 2, Krum, native/limit: wanted <= 2.5, found 6.67\n" in printed
    assert "missed: workload 4, Median, naive/ours: wanted >= 100, found 20\n" in printed
    assert "missed: workload 2, Krum, byzfl/native: wanted >= 200, found 20\n" in printed
    gained = "workload 2, Krum, speed-up / that of a copy"
    assert f"missed: {gained}: wanted >= 0.75, found 0.625\n" in printed
    assert "missed: workload 5, Krum, MiB: wanted <= 256, found 300\n" in printed
    where = "scale 10000x10x20000, Krum, time per edge and parameter / workload 3"
    assert f"missed: {where}: wanted <= 2.5, found 6\n" in printed


def test_unmeasured_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert goals.report_goals(Results({}))
    assert f"goals: 0 met, 0 missed, {GOALS} not measured" in capsys.readouterr().out


def test_exit_code_of_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "1", Workload("1", 6, 3, 50))
    monkeypatch.setitem(goals.NAIVE, ("1", "FedAvg"), 1e9)
    arguments = tiny("--workloads", "1", "--rules", "FedAvg", "--skip-memory")
    assert kernels.main([*arguments, "--goals"]) == 1
    assert kernels.main(arguments) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workloads", "6"],
            "expected 1, 2, 3, 4, 5, scale or clients x neighbours x parameters, found 6",
        ),
        (["--goals", "--threads", "2", "4"], "--goals need one thread among --threads, found 2 4"),
        (["--resume"], "--resume needs --json FILE"),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        kernels.parse(arguments)  # not main: if this does not fail, nothing is to be measured
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.954, "0.95"),
        (9.99, "9.99"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert tables.number(value) == text


def test_markdown_shows_misses() -> None:
    results = measured(copy=0.4, growth=3.0)
    results.settings["threads"] = [1, 2]
    printed = tables.markdown(results)
    bars = "2.50 (4) | 2.50 (2.5) | 2.50 (2.5) | 2.50 (2.5) | **4.58** (2.5)"
    assert f"| `Median` | {bars} |\n" in printed
    assert "| `Median` | 2.50 (4.5) | 2.50 | 2.50 | 2.50 | 2.50 |\n" in printed
    assert "| `Krum` | 2,000 (60) | 2,000 (200) | 2,000 | 2,000 | 2,000 |\n" in printed
    assert "| `FedAvg` | 2.00 | 2.00 (0.6) | 2.00 (0.6) | 2.00 (0.6) | 2.00 (0.6) |\n" in printed
    assert "| 10000x10x20000 | `Krum` | 3.000 | 1.000 | **3.00** (2.5) | 0.100 | 5 |" in printed
    assert "Flower" not in printed  # was not measured


def drawn(tmp_path: Path, results: Results) -> str:
    save(results, tmp_path / "results.json")
    picture.main(["--json", str(tmp_path / "results.json"), "--out", str(tmp_path / "picture.svg")])
    return (tmp_path / "picture.svg").read_text()


def test_picture_is_deterministic(tmp_path: Path) -> None:
    first = drawn(tmp_path, measured())
    assert first.startswith("<?xml")
    assert drawn(tmp_path, measured()) == first
    assert drawn(tmp_path, measured(byzfl=500.0)) != first


def test_picture_shows_limits() -> None:
    results = measured(copy=0.5, naive=30.0)
    axes = picture.picture(results).axes
    shown = {points.get_label(): points.get_offsets() for points in axes[0].collections}
    assert [x for x, _ in shown["equipoise, native"]] == [1.0] * len(RULES)
    assert [x for x, _ in shown["loop in plain torch"]] == [30.0] * len(RULES)
    assert len(shown["equipoise, torch"]) == 0
    least = {results.rules[int(y)]: x for x, y in shown["limit of the machine"]}
    assert (least["FedAvg"], least["Krum"], least["Median"]) == (0.5, 0.75, 0.5)
    assert axes[4].get_title("left") == "5: 1 client, 10 neighbors, d = 11,000,000"


def test_attacks_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["--clients", "10", "--degree", "4", "--parameters", "800", "--repeats", "1"]
    attack_times.main([*small, "--json", str(tmp_path / "times.json")])
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in attack_times.ATTACKS | attack_times.SEARCHES)
    times = json.loads((tmp_path / "times.json").read_text())
    assert {what for found in times.values() for what in found} == {
        "forge",
        "aggregate",
        "aggregate benign",
    }


def test_slow_attacks() -> None:
    times = {"LIE": {"forge": 2.0, "aggregate": 1.9}, "IPM": {"forge": 1.0, "aggregate": 1.9}}
    assert attack_times.too_slow(times) == ["LIE"]
    search = {"forge": 2.0, "aggregate": 1.9 / attack_times.MOST}
    assert attack_times.too_slow({"Adaptive": search}) == ["Adaptive"]
