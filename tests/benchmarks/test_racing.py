"""Contestants agree, and their times and memory are measured fairly."""

import importlib.util
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
from benchmarks import (
    memory,
    naive,
    naive_received,
    peers,
    racing,
    scale,
    tables,
)
from benchmarks.naive import Opponent
from benchmarks.racing import Row
from benchmarks.results import Results
from benchmarks.workloads import FURTHER_RULES, RULES, WORKLOADS, Round, Workload
from equipoise.kernels import native

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


GRAPHS = {
    "sparse, even degree": Workload("", 12, 4, 700),
    "sparse, odd degree": Workload("", 12, 5, 700),
    "complete": Workload("", 12, 11, 700),
    "one client": Workload("", 1, 10, 700),
}


every_graph = pytest.mark.parametrize("workload", GRAPHS.values(), ids=list(GRAPHS))


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only"
)


needs_byzfl = pytest.mark.skipif(
    importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed"
)


needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="flwr is not installed"
)


def test_each_rule_has_a_loop() -> None:
    assert list(naive.RULES) == list(RULES)
    assert list(naive_received.RULES) == list(FURTHER_RULES)


def with_an_outlier(workload: Workload) -> Round:
    """One client is far away, so that distances decide something."""
    work = Round(workload)
    work.models[-1] *= 3
    return work


@every_graph
@pytest.mark.parametrize("rule", RULES)
def test_naive_loops_agree(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    theirs = work.one_by_one(peers.opponents(rule, work)["naive"], workload.n)
    assert_close(theirs, work.ours(rule).model)


@pytest.mark.parametrize("rule", [rule for rule in FURTHER_RULES if rule != "Bucketing"])
def test_further_loops_agree(rule: str) -> None:
    work = with_an_outlier(GRAPHS["sparse, odd degree"])
    theirs = work.one_by_one(peers.opponents(rule, work)["naive"], work.n)
    torch.testing.assert_close(theirs, work.ours(rule).model, rtol=1e-4, atol=1e-4)


@every_graph
@pytest.mark.parametrize("rule", RULES)
def test_backends_agree(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    runs = racing.contestants(rule, work)
    expected = work.ours(rule).model.clone()
    for name in runs.keys() & {"native", "fresh", "torch"}:
        assert_close(runs[name]().model, expected)
    assert runs["copy"]() is work.target
    assert torch.equal(work.target, work.models)


@every_graph
def test_output_is_allocated(workload: Workload) -> None:
    work = Round(workload)
    assert work.out.shape == work.ours("Median").model.shape
    assert work.out.data_ptr() == work.target.data_ptr()


def test_torch_without_native(monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize("rule", ["FedAvg", "TrimmedMean", "Median", "NNA"])
def test_byzfl_agrees(rule: str, workload: Workload) -> None:
    work = with_an_outlier(workload)
    theirs = work.one_by_one(peers.opponents(rule, work)["byzfl"], work.n)
    assert_close(theirs, work.ours(rule).model)


@needs_byzfl
def test_byzfl_krum() -> None:
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
def test_flower_trims(degree: int) -> None:
    found: dict[str, float] = {}

    def trimmed(results: list[Any], proportiontocut: float) -> list[Any]:
        found["trimmed"] = int(proportiontocut * len(results))
        return results[0][0]

    trim = Workload("", 1, degree, 1).tolerated
    peers.flower_call(trimmed, trim, torch.zeros(1), torch.zeros(degree, 1))
    assert found["trimmed"] == trim


@needs_flower
def test_flower_without_services() -> None:
    peers.flower_aggregates()
    assert "flwr" not in sys.modules


@pytest.mark.parametrize("find", [peers.byzfl_rule, peers.flower_rule])
def test_missing_counterparts(find: Callable[[str, int], Opponent | None]) -> None:
    assert find("Balance", 1) is None


def test_lists_are_views() -> None:
    models = torch.rand(5, 3)
    rows = torch.tensor([4, 1])
    assert torch.equal(torch.stack(naive.listed(models, rows)), naive.gathered(models, rows))
    assert [view.data_ptr() for view in naive.listed(models, rows)] == [
        models[4].data_ptr(),
        models[1].data_ptr(),
    ]


def test_sampled_clients() -> None:
    work = Round(Workload("", 12, 4, 5))
    some = work.one_by_one(Opponent(lambda own, received: own), 3)
    assert_close(some, work.models[[0, 4, 8]])


def test_sampled_time_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_order_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 5, 7, 2, 6, 9, 9)
    order: list[str] = []
    assert racing.race({name: partial(order.append, name) for name in "ab"}, 3) == {
        "1": {"a": 5e3, "b": 2e3}
    }
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, *range(1, 9))
    threads: list[int] = []
    run = lambda: threads.append(torch.get_num_threads())  # noqa: E731
    found = racing.race({"a": run, "b": run}, 2, (1, 2))
    assert threads == [1, 2, 1, 2, 2, 1, 2, 1]
    assert found == {"1": {"a": 1e3, "b": 3e3}, "2": {"a": 2e3, "b": 4e3}}


def test_equal_number_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 100, 1, 1, 100, 99, 1)
    assert racing.race({"slow": int, "quick": int}, 3)["1"] == {"slow": 99e3, "quick": 1e3}


def test_cache_is_flushed() -> None:
    done: list[str] = []
    racing.race(
        {"a": partial(done.append, "a"), "b": partial(done.append, "b")},
        1,
        before=partial(done.append, "-"),
    )
    assert done == ["-", "a", "-", "b"]


def test_failing_opponent(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(own: Tensor, received: Tensor) -> Tensor:
        raise RuntimeError("input tensor is too large")

    monkeypatch.setattr(peers, "byzfl_rule", lambda rule, tolerated: Opponent(too_large))
    workload = GRAPHS["complete"]
    row = racing.measure_time(workload, Round(workload), "Median", 1, 0.0)
    assert row.failures == {"byzfl": "input tensor is too large"}
    assert tables.peer_cell(row, "byzfl", "1", workload.n).strip() == "fails"
    results = Results({"byzfl": "1", "flower": "1", "native": True, "memory": False}, [row])
    assert "Median of byzfl fails on workload : input tensor is too large" in tables.notes(results)


def test_ratios_per_threads() -> None:
    row = Row(
        "1",
        "Median",
        {"1": {"copy": 2.0, "native": 6.0, "torch": 9.0}, "2": {"copy": 1.0, "native": 4.0}},
    )
    assert row.ratio("native", "copy") == 3
    assert row.ratio("ours", "copy", 2) == 4
    assert row.ratio("torch", "copy", 2) is None
    assert row.speed_up("native", 2) == 1.5
    assert row.speed_up("torch", 2) is None
    assert Row("1", "Median", {"1": {"torch": 9.0}}).time("ours") == 9


@needs_proc
def test_memory_beyond_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(own: Tensor, received: Any, **_: Any) -> eq.Aggregated:
        held = torch.ones(40 * memory.MIB // 4)
        return eq.Aggregated(own + held[0])

    monkeypatch.setitem(RULES, "Greedy", greedy)
    assert 35 < memory.extra_mib(Workload("", 4, 3, 3_000_000), "Greedy", 1) < 50


def test_scale_baselines() -> None:
    for large in scale.SCALE:
        found = scale.compared(large)
        assert found["reference"] is WORKLOADS["3"]
        assert (found["same_d"].n, found["same_d"].degree, found["same_d"].d) == (
            1_000,
            large.degree,
            large.d,
        )


def test_time_per_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scale, "compared", lambda large: {"large": large, "reference": small, "same_d": small}
    )
    monkeypatch.setattr(
        scale, "race", lambda runs, repeats: {"1": {"large": 12.0, "reference": 1.0, "same_d": 4.0}}
    )
    small = Workload("", 5, 2, 10)
    row = scale.ScaleRace(Workload("many", 20, 2, 10)).measure("Median", 1, memory=False)
    assert (row.large, row.reference, row.same_d) == (12e6 / 400, 1e6 / 100, 4e6 / 100)
    assert (row.growth, row.memory_mib) == (3, None)
