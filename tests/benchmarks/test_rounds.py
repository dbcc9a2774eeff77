"""The race of rounds: contenders agree, bars, tables, the picture and the commands."""

import importlib.util
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import equipoise as eq
from benchmarks import (
    batched,
    naive,
    round_bars,
    round_contenders,
    round_costs,
    round_limits,
    round_lines,
    round_phases,
    round_picture,
    round_race,
    round_results,
    round_tables,
    rounds,
)
from benchmarks.results import save
from benchmarks.round_limits import Limit
from benchmarks.round_race import Turns
from benchmarks.round_results import Alone, Cell, RoundResults
from benchmarks.round_workloads import TASKS, Setting, group_norm, mlp, resnet8
from benchmarks.workloads import RULES

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only"
)

# Batches of all examples and messages of zeros: no random number makes a difference.
SMALL = {
    name: replace(TASKS[name], n=10, degree=6, examples=6, batch=6, std=0.0, rounds=1, **changes)
    for name, changes in {
        "A": {"build": partial(eq.models.cnn, (1, 12, 12)), "shape": (1, 12, 12)},
        "C": {},
        "D": {"build": partial(mlp, 12, 8), "shape": (12,)},
        "E-BN": {"build": partial(resnet8, nn.BatchNorm2d, (8, 16)), "shape": (3, 8, 8)},
        "E-GN": {"build": partial(resnet8, group_norm, (8, 16)), "shape": (3, 8, 8)},
    }.items()
}


# Contenders.


@pytest.mark.parametrize("rule", batched.RULES)
@pytest.mark.parametrize("name", SMALL)
def test_contenders_agree(name: str, rule: str) -> None:
    setting = Setting(SMALL[name])
    found = round_contenders.contenders(setting, rule)
    if rule == "Krum":
        found.pop("byzfl", None)  # sums over one neighbor more
    for contender in found.values():
        contender.round()
        contender.round()
    ours = found["ours"].models
    assert not torch.allclose(ours, setting.initial, rtol=0, atol=1e-3)
    for contender in found.values():
        torch.testing.assert_close(contender.models, ours, rtol=1e-4, atol=1e-4)


def test_contenders_of_each_task() -> None:
    byzfl = {"byzfl"} if importlib.util.find_spec("byzfl") else set()
    loops = {"ours", "plain", "vmap", "plain, benign", "vmap, benign", "vmap, benign, chunks"}
    images = round_contenders.contenders(Setting(SMALL["A"]), "Median")
    assert set(images) == loops | {"channels-last", "channels-last, benign"} | byzfl
    vectors = round_contenders.contenders(Setting(SMALL["D"]), "Balance")
    assert set(vectors) == loops


@pytest.mark.parametrize("rule", batched.RULES)
def test_batched_rules(rule: str) -> None:
    generator = torch.Generator().manual_seed(0)
    own = 1 + 0.1 * torch.randn(4, 50, generator=generator)
    received = 1 + 0.1 * torch.randn(4, 7, 50, generator=generator)
    received[:, 0] *= 9
    tolerated = torch.tensor([0, 1, 2, 3])
    inputs = {"t": 1, "total": 10}
    each = [
        naive.RULES[rule](own[i], received[i], tolerated=int(tolerated[i]), **inputs)
        for i in range(4)
    ]
    for rules in (batched.RULES, batched.RULES_IN_CACHE):
        together = rules[rule](own, received, tolerated=tolerated, **inputs)
        torch.testing.assert_close(together, torch.stack(each))


def test_balance_that_accepts_nothing() -> None:
    own = torch.ones(2, 3)
    received = torch.full((2, 4, 3), 9.0)
    assert torch.equal(batched.balance(own, received, t=0, total=1), own)


@pytest.mark.parametrize(("name", "d"), [("A", 139_960), ("B", 3_372), ("C", 650), ("D", 159_010)])
def test_sizes_of_models(name: str, d: int) -> None:
    assert len(eq.flatten(TASKS[name].build())) == d


def test_size_of_resnet8() -> None:
    assert len(eq.flatten(TASKS["E-BN"].build())) == 78_042


def test_a_fifth_is_malicious() -> None:
    setting = Setting(SMALL["D"])
    assert list(setting.malicious) == [8, 9]
    known = setting.topology.senders
    assert torch.equal(setting.tolerated, ((known == 8) | (known == 9)).sum(1))


# Measurement.


class Counter:
    """A contender that notes the order of the calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls
        self.models = torch.empty(0)

    def round(self) -> None:
        self.calls.append(self.name)


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    found = round_race.race({name: Counter(name, calls) for name in "ab"}, turns=3, rounds=2)
    assert "".join(calls) == "aaabbb" + "aabb" + "bbaa" + "aabb"
    assert len(found["a"].cpu) == len(found["b"].wall) == len(found["b"].faults) == 3


def test_summary_of_turns() -> None:
    turns = Turns([4.0, 1.0, 2.0, 3.0, 2.0], [9.0], [1.0, 7.0, 3.0])
    assert (turns.best, turns.median, turns.spread, turns.usual_faults) == (1.0, 2.0, 0.5, 3.0)
    assert Turns([4.0]).spread == 0


@needs_proc
def test_memory_in_another_process() -> None:
    task = replace(TASKS["C"], n=20, degree=6)
    alone = round_costs.measure_alone(task, rounds=1)
    assert alone is not None
    assert alone.models_mib == pytest.approx(20 * 650 * 4 / 2**20)
    assert alone.peak_mib >= 0
    assert alone.faults >= 0


def test_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_costs, "SMALL", replace(SMALL["D"], rounds=2))
    costs = round_costs.measure_costs(turns=1, task=SMALL["D"])
    names = {f"one client, {rule}" for rule in round_costs.ONE_CLIENT}
    assert set(costs) == {"momentum", "overhead"} | names
    assert costs["one client, Median"] > 0


# Limits.


def test_multiply_adds_by_hand() -> None:
    layers = round_limits.layers_of(
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
        ),
        torch.rand(5, 1, 7, 7),
    )
    # Of 5 x 5 sums, pooling reads 4 x 4; the gradient of the inputs is not needed.
    pooled = 5 * 2 * 16 * 9
    assert layers[0].multiply_adds == pooled + pooled / 4
    assert layers[1].multiply_adds == 3 * 5 * 8 * 3


@pytest.mark.parametrize("name", ["C", "E-BN"])
def test_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_limits, "measured_limits", lambda: {"products": 2.0})
    found = round_limits.measure_limit(SMALL[name], 1)
    assert found.arithmetic is not None
    assert min(found.arithmetic, found.memory, found.products) > 0
    monkeypatch.setattr(round_limits, "measured_limits", lambda: None)
    assert round_limits.measure_limit(SMALL[name], 1).arithmetic is None


# Reports.


def measured(ours: float = 0.2, faults: float = 10.0, peak: float = 5.0, cost: float = 0.1):
    """Results that meet all bars, unless told otherwise; contenders take 1 ms."""
    names = ("plain", "channels-last", "vmap")
    others = {name: Turns([1.0, 1.2], [1.0, 1.2], [0.0, 0.0]) for name in names}
    turns = Turns([ours, 2 * ours], [ours, ours], [faults, faults])
    cells = [
        Cell(workload, rule, {"ours": turns, **others}, {"train": 0.15, "mix": 0.05})
        for workload in TASKS
        for rule in ("Balance", "Krum")
    ]
    alone = {name: Alone(peak, 1.0, 1.0, faults) for name in TASKS}
    keys = ["momentum", "overhead", *(f"one client, {rule}" for rule in round_costs.ONE_CLIENT)]
    limits = {name: Limit(0.01, 0.02, 0.1) for name in TASKS}
    return RoundResults({"turns": 2}, cells, alone, dict.fromkeys(keys, cost), limits)


@pytest.mark.parametrize(
    ("results", "missed"),
    [
        (measured(), 0),
        (measured(ours=0.26), 1),  # D
        (measured(ours=0.31), 2),  # and A
        (measured(ours=0.36), 3),  # and C
        (measured(ours=0.71), 4),  # and B
        (measured(ours=0.86), 6),  # and E
        (measured(ours=1.01), 6 + 12),
        (measured(faults=1001.0), 1),
        (measured(peak=6.1), 1),
        (measured(cost=0.21), 3),
        (measured(cost=1.15), 4),  # and momentum
        (measured(cost=1.25), 5),  # and the overhead
    ],
)
def test_bars(results: RoundResults, missed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert round_bars.report_bars(results) == (missed == 0)
    printed = capsys.readouterr().out
    assert printed.count("\nmissed") == missed
    assert printed.count("\nmet") == 25 - missed


def test_bar_of_the_faster_contender() -> None:
    results = measured(ours=0.5)
    for cell in results.cells:
        cell.contenders["channels-last"].cpu[:] = [0.4]
    found = {bar.name: bar.value for bar in round_bars.bars(results)}
    assert found["E-GN, Balance, ours / plain or channels-last"] == 1.25
    assert found["D, Balance, ours / plain"] == 0.5


def test_unmeasured_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert round_bars.report_bars(RoundResults({}))
    assert capsys.readouterr().out.count("\nnot measured") == 13


def test_markdown() -> None:
    printed = round_tables.markdown(measured())
    assert "| workload, rule | ours | plain | channels-last | vmap |\n" in printed
    assert "| A, `Balance` | 0.20 ± 33 % | 1.00 ± 9 % |" in printed
    assert "| A, `Balance` | 0.20 (0.27) |" in printed
    assert "| D | 10 | 5.00 | 1.00 | 1.00 | 2.50 |" in printed
    assert "| momentum | 0.10 |" in printed
    assert "| D | 0.15 | 0.01 | 0.02 | 0.10 | 1.50 |" in printed
    assert printed.index("Milliseconds") < printed.index("divided")


def drawn(tmp_path: Path, results: RoundResults) -> str:
    save(results, tmp_path / "rounds.json")
    target = tmp_path / "rounds.svg"
    round_picture.main(["--json", str(tmp_path / "rounds.json"), "--out", str(target)])
    return target.read_text()


def test_picture_is_deterministic(tmp_path: Path) -> None:
    first = drawn(tmp_path, measured())
    assert first.startswith("<?xml")
    assert drawn(tmp_path, measured()) == first
    assert drawn(tmp_path, measured(ours=0.3)) != first


def test_picture_shows_best_turns() -> None:
    axes = round_picture.picture(measured()).axes
    assert axes[0].get_title("left") == "A: the paper's CNN, 20 clients, 10 neighbors"
    assert axes[0].collections[0].get_offsets().tolist() == [[0.2, 0.0]]


def test_legend_has_all_contenders() -> None:
    results = measured()
    results.cells[-1].contenders["byzfl"] = Turns([1.0], [1.0], [0.0])
    (legend,) = round_picture.picture(results).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == [
        "equipoise",
        "plain loop",
        "channels last",
        "vmap",
        "plain loop, byzfl's rules",
    ]


def test_each_contender_has_a_mark() -> None:
    for name in ("A", "D"):
        found = round_contenders.contenders(Setting(SMALL[name]), "Median")
        assert set(found) <= set(round_picture.MARKS)


# Commands.


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a race of small tasks."""
    for name, task in SMALL.items():
        monkeypatch.setitem(TASKS, name, task)
    return ["--turns", "1", "--workloads", "C", "E-BN", "--rules", "Median"]


def test_rounds_script(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rounds.json"
    assert rounds.main([*tiny, "--skip-costs", "--markdown", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "\nC     Median      ours " in printed
    assert "phases of ours: train " in printed
    assert "| E-BN, `Median` | " in printed
    results = round_results.load(file)
    assert [cell.workload for cell in results.cells] == ["C", "E-BN"]
    assert results.cells[0].contenders["vmap"].best > 0


def test_rounds_script_resumes(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rounds.json"
    arguments = [*tiny, "--skip-costs", "--json", str(file), "--resume"]
    rounds.main(arguments)
    stored = json.loads(file.read_text())
    stored["cells"][0]["contenders"]["ours"]["cpu"] = [123456.0]
    file.write_text(json.dumps(stored))
    capsys.readouterr()
    rounds.main(arguments)
    assert "123456.00" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match=r"--resume needs the settings of .*'turns': 1.*'turns': 2"
    ):
        rounds.main([*arguments, "--turns", "2"])


def test_rounds_script_measures_costs(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rounds.json"
    monkeypatch.setattr(rounds, "measure_alone", lambda task: Alone(1.0, 1.0, 1.0, 1.0))
    monkeypatch.setattr(rounds, "measure_costs", lambda turns: {"momentum": 1.0})
    monkeypatch.setattr(rounds, "measure_limit", lambda task, turns: Limit(None, 1.0, 1.0))
    rounds.main([*tiny, "--json", str(file)])
    results = round_results.load(file)
    assert set(results.alone) == {"C", "E-BN"}
    assert results.costs == {"momentum": 1.0}
    assert results.limits == dict.fromkeys(["C", "E-BN"], Limit(None, 1.0, 1.0))


@pytest.mark.parametrize(("ours", "code"), [(0.2, 0), (0.3, 1)])
def test_exit_code_of_bars(ours: float, code: int, tmp_path: Path) -> None:
    results = measured(ours)
    arguments = ["--turns", "2", "--rules", "Balance", "Krum", "--resume", "--bars"]
    file = tmp_path / "rounds.json"
    results.settings = rounds.settings_of(rounds.parser().parse_args(arguments))
    save(results, file)
    assert rounds.main([*arguments, "--json", str(file)]) == code


def test_resume_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rounds.main(["--resume"])
    assert "--resume needs --json FILE" in capsys.readouterr().err


def test_phases_script(tiny: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rules", "FedAvg", "LEARN", "--sizes", "30", "--features", "4", "--classes", "2"]
    assert round_phases.main([*few, "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "| `LEARN` |" in printed
    assert "| 30 | 10 |" in printed
    assert set(round_phases.RULES) == {*RULES, "LEARN"}


def test_lines_script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_lines, "MODELS", {"linear": round_lines.MODELS["linear"]})
    round_lines.main()
    rows = capsys.readouterr().out.splitlines()[2:]
    counts = [[int(x.replace(",", "")) for x in row.split("|")[2:-1]] for row in rows]
    for total, calls, *parts in counts:
        assert total > sum(parts) > 0
        assert calls > 0
    # The attack by columns executes more of the library than Gaussian noise.
    assert counts[0][0] < counts[1][0]
