"""The kernels in C and those in torch cannot be told apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.kernels import _selection_networks as networks
from equipoise.kernels import native
from equipoise.kernels._blocks import new_output
from tests.graphs import GRAPHS, Graph, complete, deliver, models_of, random_lies, regular
from tests.instruction_sets import instructions  # noqa: F401

DTYPES = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def matrix(rows: int, d: int, dtype: torch.dtype, *, offset: int = 0, gap: int = 0, seed: int = 0) -> Tensor:
    """Random rows that may start anywhere in memory and be any distance apart."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, offset + d + gap, generator=generator, dtype=torch.float64).to(dtype)
    return memory[:, offset : offset + d]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


shapes = st.tuples(
    st.integers(1, 9), st.sampled_from([1, 3, 7, 8, 16, 33, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4097, 9000])
)
places = st.tuples(st.integers(0, 9), st.integers(0, 9))
dtypes = st.sampled_from(list(DTYPES))


@given(shape=shapes, place=places, dtype=dtypes, share=st.sampled_from([0.0, 0.1, 0.5, 1.0]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_pairs(shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype, share: float, seed: int) -> None:
    """Few pairs are measured one by one, many in tiles."""
    (rows, d), (offset, gap) = shape, place
    a, b = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed), matrix(rows + 1, d, dtype, seed=seed + 1)
    both = torch.cat([a, b]).double()
    left, right = torch.triu_indices(len(both), len(both))
    some = torch.rand(len(left), generator=seeded(seed)) < share
    left, right = left[some], right[some]
    scale, tolerance = both[left].square().sum(1) + both[right].square().sum(1) + 1e-30, min(DTYPES[dtype], 2e-6)
    for differ, truth in ((True, (both[left] - both[right]).square()), (False, both[left] * both[right])):
        measured, squares = native.measure([a, b], left, right, differ=differ)
        assert ((measured - truth.sum(1)).abs() <= tolerance * scale).all()
        torch.testing.assert_close(squares, both.square().sum(1), rtol=2e-6, atol=0)


@given(shape=shapes, place=places, dtype=dtypes)
@settings(max_examples=40, deadline=None)
def test_norms(shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype) -> None:
    x = matrix(*shape, dtype, offset=place[0], gap=place[1])
    torch.testing.assert_close(native.squared_norms(x), x.double().square().sum(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-6])
@pytest.mark.parametrize("pairs", [15, 4], ids=["tiles", "pairs"])
def test_distances_near_consensus_hold_1e_6(spread: float, pairs: int) -> None:
    middle = torch.randn(1, 50_000, generator=seeded(0))
    a = middle + spread * matrix(6, 50_000, torch.float32)
    left, right = torch.triu_indices(6, 6, offset=1)[:, :pairs]
    exact = (a.double()[left] - a.double()[right]).square().sum(1)
    torch.testing.assert_close(native.measure([a], left, right, differ=True)[0], exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1.0, 3e3])
@pytest.mark.parametrize("d", [4096, 100_000])
def test_sums_of_equal_numbers_hold_1e_6(value: float, d: int) -> None:
    """The worst case of rounding: all errors point the same way."""
    a = torch.tensor([[0.0], [value]]).expand(2, d).contiguous()
    exact = d * a[1, :1].double().square()
    measured, squares = native.measure([a], torch.tensor([0]), torch.tensor([1]), differ=True)
    torch.testing.assert_close(measured, exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(squares[1:], exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(native.squared_norms(a)[1:], exact, rtol=1e-6, atol=0)


def test_a_pair_is_measured_alike_in_any_company() -> None:
    a = matrix(9, 2500, torch.float32)
    left, right = torch.triu_indices(9, 9, offset=1)[:, :20]
    together = native.measure([a], left, right, differ=True)[0]
    alone = [native.measure([a], left[p : p + 1], right[p : p + 1], differ=True)[0] for p in range(len(left))]
    assert torch.equal(together, torch.cat(alone))


@given(
    shape=shapes,
    place=places,
    dtype=dtypes,
    n=st.integers(0, 14),
    share=st.sampled_from([0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_weighted_sums(
    shape: tuple[int, int], place: tuple[int, int], dtype: torch.dtype, n: int, share: float, seed: int
) -> None:
    """Few weights go along edges, many are a matrix."""
    (rows, d), (offset, gap) = shape, place
    a, b = matrix(rows, d, dtype, offset=offset, gap=gap, seed=seed), matrix(2, d, dtype, seed=seed + 1)
    both = torch.cat([a, b]).double()
    weights = torch.randn(n, rows + 2, dtype=torch.float64, generator=seeded(seed))
    weights *= torch.rand(n, rows + 2, generator=seeded(seed + 1)) < share
    receivers, columns = weights.nonzero(as_tuple=True)
    out = new_output(a, n, d)
    assert native.weighted_sums([a, b], receivers, columns, weights[receivers, columns], out)
    scale = weights.abs() @ both.abs() + torch.finfo(dtype).tiny
    assert ((out.double() - weights @ both).abs() <= DTYPES[dtype] * scale).all()


@given(count=st.integers(1, 30), d=st.sampled_from([1, 5, 64, 70, 300]), dtype=dtypes, seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_sums_of_all_but_one(count: int, d: int, dtype: torch.dtype, seed: int) -> None:
    bank = matrix(count + 2, d, dtype, offset=3, seed=seed)
    rows = torch.randperm(count + 2, generator=seeded(seed))[:count]
    left_out = torch.randint(-1, count, (7,), generator=seeded(seed))
    receivers, out = torch.tensor([5, 0, 1, 2, 8, 4, 6]), torch.full((9, d), torch.nan, dtype=dtype)
    assert native.sums_but_one([bank], rows, left_out, 0.25, out, receivers)
    heard = torch.arange(count) != left_out[:, None]
    truth = 0.25 * heard.double() @ bank.double()[rows]
    scale = 0.25 * heard.double() @ bank.double()[rows].abs() + torch.finfo(dtype).tiny
    assert ((out[receivers].double() - truth).abs() <= DTYPES[dtype] * scale).all()
    assert out[[3, 7]].isnan().all()  # nobody asked for them


@given(counts=st.lists(st.integers(1, 32), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_every_receiver_may_drop_another_number_of_values(counts: list[int], seed: int) -> None:
    values, out = matrix(32, 100, torch.float32, seed=seed), torch.empty(len(counts), 100)
    heard = [torch.randperm(32, generator=seeded(seed + i))[:count] for i, count in enumerate(counts)]
    trims = [(seed + i) % ((count + 1) // 2) for i, count in enumerate(counts)]
    sizes, everybody = torch.tensor(counts), torch.arange(len(counts))
    assert native.trimmed_means([values], torch.cat(heard), sizes, torch.tensor(trims), out, everybody)
    for rows, trim, found in zip(heard, trims, out, strict=True):
        expected = values[rows].sort(0).values[trim : len(rows) - trim].mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [0, 63, 299])
@pytest.mark.parametrize("dtype", DTYPES)
def test_means_tell_whether_their_values_are_finite(bad: float, column: int, dtype: torch.dtype) -> None:
    bank, out, both = matrix(4, 300, dtype), torch.empty(2, 300, dtype=dtype), torch.tensor([0, 1])
    bank[3, column] = bad
    threes, ones = torch.tensor([3, 3]), torch.tensor([1, 1])
    assert native.trimmed_means([bank], torch.tensor([0, 1, 2, 0, 2, 1]), threes, ones, out, both)
    assert not native.trimmed_means([bank], torch.tensor([0, 1, 2, 0, 2, 3]), threes, ones, out, both)
    assert native.trimmed_means_but_one([bank], torch.arange(3), both, 0, out, both)
    assert not native.trimmed_means_but_one([bank], torch.arange(4), both, 1, out, both)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [0, 63, 299])
def test_sums_tell_whether_they_are_finite(bad: float, column: int) -> None:
    bank, out = matrix(4, 300, torch.float32), torch.empty(2, 300)
    edges = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), torch.ones(3, dtype=torch.float64)
    assert native.weighted_sums([bank], *edges, out)
    bank[2, column] = bad
    assert not native.weighted_sums([bank], *edges, out)
    assert not native.sums_but_one([bank], torch.arange(4), torch.tensor([0, 1]), 1.0, out, torch.tensor([0, 1]))
    assert native.sums_but_one([bank], torch.arange(4), torch.tensor([2, 2]), 1.0, out, torch.tensor([0, 1]))


def test_a_row_spoils_only_who_hears_it() -> None:
    bank, out = matrix(8, 300, torch.float32), torch.empty(8, 300)
    bank[5, 7] = torch.nan
    receivers, rows = (torch.ones(8, 8) - torch.eye(8).roll(5, 0)).bool().nonzero(as_tuple=True)
    heard = (rows != 5) | (receivers == 0)
    assert not native.weighted_sums([bank], receivers[heard], rows[heard], torch.ones(int(heard.sum())).double(), out)
    assert out.isnan().nonzero().tolist() == [[0, 7]]


@given(count=st.integers(1, 40), d=st.sampled_from([1, 5, 8, 31, 256, 300]), dtype=dtypes, place=places, data=st.data())
@settings(max_examples=120, deadline=None)
def test_trimmed_means(count: int, d: int, dtype: torch.dtype, place: tuple[int, int], data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (count - 1) // 2))
    values = matrix(count + 2, d, dtype, offset=place[0], gap=place[1], seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows = torch.stack([torch.randperm(count + 2, generator=seeded(r))[:count] for r in range(3)])
    out, receivers = torch.full((4, d), torch.nan, dtype=dtype), torch.tensor([3, 0, 1])
    counts, trims = torch.full((3,), count), torch.full((3,), trim)
    assert native.trimmed_means([values[:1], values[1:]], rows.flatten(), counts, trims, out, receivers)
    expected = values[rows].double().sort(1).values[:, trim : count - trim].mean(1)
    tolerance = max(1e-5, DTYPES[dtype] * 2)
    torch.testing.assert_close(out[receivers].double(), expected, rtol=tolerance, atol=tolerance)
    assert out[2].isnan().all()  # nobody asked for it


@pytest.mark.parametrize("count", range(1, 40))
def test_every_way_of_selecting_is_exact_on_whole_numbers(count: int) -> None:
    """Compiled networks, sorted halves, and networks from a list; negative numbers, zeros of both signs."""
    values = torch.randint(-3, 4, (count, 200), generator=seeded(count)).float()
    values[values == 0] *= torch.tensor(-1.0)
    for trim in range((count + 1) // 2):
        out = torch.empty(1, 200)
        one, everything = torch.tensor([0]), torch.arange(count)
        native.trimmed_means([values], everything, torch.tensor([count]), torch.tensor([trim]), out, one)
        kept = values.sort(0).values[trim : count - trim]
        torch.testing.assert_close(out[0], kept.mean(0), rtol=1e-6, atol=1e-6)
        if len(kept) == 1:
            assert torch.equal(out[0], kept[0])


@given(count=st.integers(2, 30), d=st.sampled_from([1, 5, 8, 31, 32, 70]), dtype=dtypes, data=st.data())
@settings(max_examples=80, deadline=None)
def test_trimmed_means_without_one_of_all(count: int, d: int, dtype: torch.dtype, data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (count - 2) // 2))
    values = matrix(count + 1, d, dtype, offset=3, gap=2, seed=count)
    values = (2 * values).round() / 2 if data.draw(st.booleans()) else values  # ties
    rows, places = torch.arange(1, count + 1), torch.arange(count)
    out = torch.full((count + 1, d), torch.nan, dtype=dtype)
    assert native.trimmed_means_but_one([values], rows, places, trim, out, places)
    tolerance = max(1e-5, DTYPES[dtype] * 2)
    for r in range(count):
        others = values[[i + 1 for i in range(count) if i != r]].double().sort(0).values
        expected = others[trim : count - 1 - trim].mean(0)
        torch.testing.assert_close(out[r].double(), expected, rtol=tolerance, atol=tolerance)
    assert out[count].isnan().all()


def test_huge_values_do_not_overflow() -> None:
    values, out = torch.full((4, 20), 3e38), torch.empty(4, 20)
    one = torch.tensor([1])
    assert native.trimmed_means([values], torch.arange(4), 4 * one, one, out, 0 * one)
    assert (out[0] == 3e38).all()
    assert native.sums_but_one([values], torch.arange(4), torch.arange(4), 1 / 3, out, torch.arange(4))
    torch.testing.assert_close(out, values)


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    def everything() -> list[Tensor]:
        torch.manual_seed(0)
        sums, means, shared, sorted_, dense = (torch.empty(9, 80_001) for _ in range(5))
        native.weighted_sums(
            [bank], everybody.repeat_interleave(9), everybody.repeat(9), torch.rand(81).double(), dense
        )
        native.weighted_sums([bank], receivers, rows, torch.full((len(rows),), 0.3).double(), sums)
        native.trimmed_means([bank], rows, torch.full((9,), 4), torch.ones(9).long(), means, everybody)
        native.sums_but_one([bank], everybody, everybody, 0.125, shared, everybody)
        native.trimmed_means_but_one([bank], everybody, everybody, 2, sorted_, everybody)
        tiles = native.measure([bank], *torch.triu_indices(9, 9, offset=1), differ=True)
        return [*native.measure([bank], receivers, rows, differ=True), *tiles, sums, means, shared, sorted_, dense]

    bank, everybody, before = matrix(9, 80_001, torch.float32), torch.arange(9), torch.get_num_threads()
    receivers = everybody.repeat_interleave(4)
    rows = torch.stack([torch.randperm(9, generator=seeded(i))[:4] for i in range(9)]).flatten()
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(alone, everything(), strict=True))
    finally:
        torch.set_num_threads(before)


def test_large_results_are_written_past_the_caches_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = eq.Topology.complete(12)
    for d in (1000, 1001):  # rows that start at whole vectors, and rows that do not
        models = matrix(12, d, torch.float32)
        for rule in (eq.FedAvg(), eq.SCClip(), eq.Median()):
            monkeypatch.setattr(native, "CACHE", 1 << 60)
            cached = rule(models, graph.deliver(models)).model
            monkeypatch.setattr(native, "CACHE", 0)
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
@given(graph=st.sampled_from([*GRAPHS, regular(20, 10), complete(20)]), dtype=dtypes, seed=st.integers(0, 999))
@settings(max_examples=12, deadline=None)
def test_rules_are_the_same_in_c_and_in_torch(name: str, graph: Graph, dtype: torch.dtype, seed: int) -> None:
    """On any graph, with NaN, infinities, huge, equal and forged messages, and models long enough to be worth it."""
    exact = models_of(graph, 7001, torch.float64, seed)
    models, lies = exact.to(dtype), {edge: lie.to(dtype) for edge, lie in random_lies(graph, exact, seed).items()}
    rule, out = RULES[name](), []
    for path in (nullcontext, native.disabled):
        with path():
            out.append(rule(models, deliver(graph, models, lies, seed), t=1, total=4))
    ours, theirs = out
    largest = torch.stack([*models, *lies.values()]).double().nan_to_num(posinf=0, neginf=0).abs().amax(0)
    assert ((ours.model.double() - theirs.model.double()).abs() <= 4 * DTYPES[dtype] * largest).all()
    if ours.weights is not None:
        torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-5, atol=1e-6)


def test_what_the_library_serves() -> None:
    x = torch.ones(2, 3)
    assert all(native.serves(y, y[:, 1:]) for y in (x, x.double(), x.half(), x.bfloat16()))
    assert not any(native.serves(*some) for some in ([x.T], [x.to("meta")], [x, x.double()], [x.long()]))
    with native.disabled():
        assert not native.serves(x)
    assert native.serves(x)


def test_the_networks_in_c_are_those_in_python() -> None:
    header = Path(networks.__file__).parent / "native/csrc/networks.h"
    assert header.read_text() == networks.c_header()
