"""The kernels in C and those in torch give the same results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.kernels import _weighted_sums_native, native
from equipoise.kernels.native import _calls
from tests.graphs import GRAPHS, Graph, complete, deliver, models_of, random_lies, regular
from tests.instruction_sets import instructions  # noqa: F401
from tests.native_cases import DTYPES, dtypes, matrix, seeded, weighted_sums


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything() -> list[Tensor]:
        torch.manual_seed(0)
        sums, means, shared, sorted_, dense = (torch.empty(9, 80_001) for _ in range(5))
        weighted_sums(bank, torch.rand(9, 9), dense)
        weighted_sums(bank, 0.3 * heard, sums)
        weighted_sums(bank, 0.125 * (1 - torch.eye(9)), shared)
        native.trimmed_means(
            [bank], rows, torch.full((9,), 4), torch.ones(9).long(), means, clients
        )
        native.trimmed_means_but_one([bank], clients, clients, 2, sorted_, clients)
        tiles = native.measure([bank], *torch.triu_indices(9, 9, offset=1), differ=True)
        return [
            *native.measure([bank], receivers, rows, differ=True),
            *tiles,
            sums,
            means,
            shared,
            sorted_,
            dense,
        ]

    bank = matrix(9, 80_001, torch.float32)
    clients = torch.arange(9)
    before = torch.get_num_threads()
    receivers = clients.repeat_interleave(4)
    rows = torch.stack([torch.randperm(9, generator=seeded(i))[:4] for i in range(9)]).flatten()
    heard = torch.zeros(9, 9).index_put((receivers, rows), torch.tensor(1.0))
    monkeypatch.setattr(_weighted_sums_native, "BLOCKED_ROWS", 0)
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(alone, everything(), strict=True))
    finally:
        torch.set_num_threads(before)


def test_streaming_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = eq.Topology.complete(12)
    for d in (1000, 1001):  # rows that start at whole vectors, and rows that do not
        models = matrix(12, d, torch.float32)
        for rule in (eq.FedAvg(), eq.SCClip(), eq.Median()):
            monkeypatch.setattr(_calls, "STREAMED_BYTES", 1 << 60)
            cached = rule(models, graph.deliver(models)).model
            monkeypatch.setattr(_calls, "STREAMED_BYTES", 0)
            assert torch.equal(rule(models, graph.deliver(models)).model, cached)


RULES: dict[str, Callable[[], Any]] = {
    "FedAvg": eq.FedAvg,
    "Krum": lambda: eq.Krum(tolerated=1),
    "TrimmedMean": lambda: eq.TrimmedMean(tolerated=1),
    "Median": eq.Median,
    "FLTrust": eq.FLTrust,
    "SCClip": eq.SCClip,
    "Balance": eq.Balance,
    "BalanceMedian": eq.BalanceMedian,
}


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")  # on graphs of few neighbors
@pytest.mark.parametrize("name", RULES)
@given(
    graph=st.sampled_from([*GRAPHS, regular(20, 10), complete(20)]),
    dtype=dtypes,
    seed=st.integers(0, 999),
)
@settings(max_examples=12, deadline=None)
def test_rules(name: str, graph: Graph, dtype: torch.dtype, seed: int) -> None:
    """On random graphs, with NaN, infinities, huge, equal and forged messages."""
    exact = models_of(graph, 7001, torch.float64, seed)
    models = exact.to(dtype)
    lies = {edge: lie.to(dtype) for edge, lie in random_lies(graph, exact, seed).items()}
    rule = RULES[name]()
    out = []
    for path in (nullcontext, native.disabled):
        with path():
            out.append(rule(models, deliver(graph, models, lies, seed), t=1, total=4))
    ours, theirs = out
    largest = (
        torch.stack([*models, *lies.values()]).double().nan_to_num(posinf=0, neginf=0).abs().amax(0)
    )
    assert (
        (ours.model.double() - theirs.model.double()).abs() <= 4 * DTYPES[dtype] * largest
    ).all()
    if ours.weights is not None:
        torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-5, atol=1e-6)


def test_serves() -> None:
    x = torch.ones(2, 3)
    assert all(native.serves(y, y[:, 1:]) for y in (x, x.double(), x.half(), x.bfloat16()))
    assert not any(
        native.serves(*some) for some in ([x.T], [x.to("meta")], [x, x.double()], [x.long()])
    )
    with native.disabled():
        assert not native.serves(x)
    assert native.serves(x)
