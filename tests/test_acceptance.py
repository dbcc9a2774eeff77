"""Consensus of models, and acceptance of messages."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise import Inbox, Topology
from equipoise.metrics import (
    acceptance,
    consensus_error,
)

# Consensus


@given(
    st.lists(
        st.lists(st.integers(-(2**20), 2**20), min_size=3, max_size=3), min_size=1, max_size=6
    ),
    st.integers(0, 3),
)
def test_consensus_error_is_exact(rows: list[list[int]], exponent: int):
    models = torch.tensor(rows, dtype=torch.float32) * 2.0**-exponent
    exact = [[Fraction(v) / 2**exponent for v in row] for row in rows]
    means = [sum(column, Fraction(0)) / len(rows) for column in zip(*exact, strict=True)]
    total = sum(
        ((v - m) ** 2 for row in exact for v, m in zip(row, means, strict=True)), Fraction(0)
    ) / len(rows)
    assert consensus_error(models) == pytest.approx(float(total), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_consensus_of_near_models(dtype: torch.dtype):
    models = (1 + 1e-3 * torch.randn(7, 1, dtype=torch.float64)).to(dtype).repeat(1, 3000)
    first = models[:, 0].double()
    assert consensus_error(models) == pytest.approx(3000 * first.var(correction=0).item(), rel=1e-9)
    assert consensus_error(models[:1].repeat(5, 1)) == 0


def test_consensus_error_in_blocks():
    models = torch.randn(300, 9000)  # more than one block of columns
    centred = models.double() - models.double().mean(0)
    assert consensus_error(models) == pytest.approx(centred.square().sum().item() / 300, rel=1e-12)
    kept = models.clone()
    consensus_error(models)
    assert torch.equal(models, kept)
    doubles = models.double()
    consensus_error(doubles)
    assert torch.equal(doubles, kept.double())


@pytest.mark.parametrize(("n", "d"), [(20, 50_000), (20, 139_960), (300, 9000)])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_consensus_ignores_threads(n: int, d: int, mode: Any):
    before, generator = torch.get_num_threads(), torch.Generator().manual_seed(0)
    found = []
    try:
        for threads in (1, 2, 4) * 3:
            torch.set_num_threads(threads)
            with mode():
                found.append(
                    consensus_error(
                        torch.randn(n, d, generator=generator.manual_seed(len(found) // 3))
                    )
                )
    finally:
        torch.set_num_threads(before)
    assert [len(set(found[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_consensus_of_broken_models(value: float):
    models = torch.randn(4, 5)
    models[1, 2] = value
    assert not math.isfinite(consensus_error(models))


def test_consensus_without_overflow():
    assert consensus_error(torch.tensor([[3e38], [-3e38]])) == pytest.approx(9e76)


# Acceptance


@given(st.integers(2, 8), st.integers(0, 100), st.data())
def test_acceptance_by_counting(n: int, seed: int, data: st.DataObject):
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.rand(n, n, generator=generator) < 0.6
    topology = Topology.from_adjacency((adjacency | adjacency.T) & ~torch.eye(n, dtype=torch.bool))
    malicious = data.draw(st.sets(st.integers(0, n - 1)))
    inbox = topology.deliver(torch.ones(n, 1))
    weights = torch.randint(0, 2, inbox.slots.shape, generator=generator).float()
    got: dict[bool, list[bool]] = {False: [], True: []}
    for i in set(range(n)) - malicious:
        for s in range(inbox.k):
            if inbox.mask[i, s]:
                got[int(inbox.senders[i, s]) in malicious].append(bool(weights[i, s] > 0))
    rates = acceptance(weights, inbox, sorted(malicious))
    assert rates is not None
    for rate, accepted in zip(rates, (got[False], got[True]), strict=True):
        assert (
            rate == pytest.approx(sum(accepted) / len(accepted)) if accepted else math.isnan(rate)
        )


def test_one_neighbor_of_two():
    models = torch.tensor([[1.0], [1.01], [50.0]])
    inbox = Topology.complete(3).deliver(models)
    out = eq.Balance()(models, inbox, t=0, total=1)
    assert acceptance(out.weights, inbox, malicious=[2]) == (1.0, 0.0)
    benign, malicious = acceptance(out.weights, inbox, malicious=None) or (0.0, 0.0)
    assert benign == pytest.approx(1 / 3)  # of six messages, two are accepted
    assert math.isnan(malicious)


def test_nonfinite_messages_count():
    models = torch.tensor([[1.0], [1.0], [torch.nan]])
    inbox = Topology.complete(3).deliver(models)
    out = eq.FedAvg()(models, inbox)
    assert acceptance(out.weights, inbox, malicious=[2]) == (1.0, 0.0)


def test_own_messages_do_not_count():
    inbox = Topology.complete(3).with_self_loops().deliver(torch.ones(3, 1))
    weights = torch.where(inbox.senders == torch.arange(3)[:, None], 1.0, 0.0)
    rates = acceptance(weights, inbox, malicious=[2])
    assert rates == (0.0, 0.0)


def test_clients_without_weights():
    models = torch.ones(3, 1)
    inbox = Topology.complete(3).deliver(models)
    out = eq.PerClient([eq.FedAvg(), eq.Median(), eq.Median()])(models, inbox)
    assert acceptance(out.weights, inbox, malicious=[2]) == (1.0, 1.0)


def test_rule_without_weights():
    inbox = Topology.ring(3).deliver(torch.ones(3, 1))
    assert acceptance(None, inbox, malicious=[0]) is None


@pytest.mark.parametrize("malicious", [None, [], [7], [7, 9], torch.tensor([1000, 7]), [7, 10**12]])
def test_single_client_ids(malicious: Any):
    own = torch.tensor([1.0])
    messages = [
        torch.tensor([1.01]),
        torch.tensor([50.0]),
        torch.tensor([torch.nan]),
        torch.tensor([1.02]),
    ]
    inbox = Inbox.collect(messages, like=own, senders=[3, 7, 9, 1000])
    weights = eq.Balance()(own, inbox, t=0, total=1).weights
    assert weights is not None
    assert weights.shape == (4,)
    liars = set() if malicious is None else {int(i) for i in malicious}
    accepted = {3: True, 7: False, 9: False, 1000: True}
    counted = {
        i: accepted[i]
        for i, there in zip(inbox.senders[0].tolist(), inbox.mask[0], strict=True)
        if there
    }
    expected = [[counted[i] for i in counted if (i in liars) == wanted] for wanted in (False, True)]
    for rate, some in zip(acceptance(weights, inbox, malicious) or (), expected, strict=True):
        assert rate == sum(some) / len(some) if some else math.isnan(rate)


def test_single_client_acceptance():
    models = torch.tensor([[1.0], [1.01], [50.0], [1.02]])
    inbox = Topology.complete(4).deliver(models)
    out = eq.Balance()(models, inbox, t=0, total=1)
    assert out.weights is not None
    alone = [acceptance(out.weights[i], inbox.of(i), malicious=[2]) for i in (0, 1, 3)]
    assert alone == [(1.0, 0.0)] * 3
    assert acceptance(out.weights, inbox, malicious=[2]) == (1.0, 0.0)


def test_masked_slots_are_ignored():
    nonsense = torch.tensor([[1, 99], [0, -5]])
    inbox = Inbox(
        torch.ones(2, 1), nonsense, torch.tensor([[True, False], [True, False]]), nonsense
    )
    assert acceptance(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), inbox, malicious=[])[0] == 0.5  # type: ignore[index]
