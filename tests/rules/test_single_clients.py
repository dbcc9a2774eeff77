"""A client on its own, as on a network, gets the bits that a batch of all clients gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from equipoise.testing._laws import inputs_of, rule_of
from equipoise.testing._rounds import Distance
from tests.cases import LEARNS, RULES

pytestmark = [
    pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning"),
    # torch chooses the order of its sums by the shape of the whole problem.
    pytest.mark.skipif(not eq.native_available, reason="holds for the C kernels"),
]


class Case(NamedTuple):
    own: Tensor
    topology: eq.Topology
    absent: Tensor
    inputs: dict[str, Any]
    lies: eq.Lies | None
    malicious: Tensor

    def deliver(self, models: Tensor) -> eq.Inbox:
        inbox = self.topology.deliver(models, self.lies, self.malicious)
        return eq.Inbox(inbox.bank, inbox.slots, inbox.mask & ~self.absent, inbox.senders)


def _graph(kind: str, n: int, seed: int) -> eq.Topology:
    if kind == "complete":
        return eq.Topology.complete(n)
    if kind == "loops":
        return eq.Topology.erdos_renyi(n, 0.6, seed=seed).with_self_loops()
    if kind == "sparse":
        return eq.Topology.regular(n, 2, seed=seed)
    return eq.Topology.erdos_renyi(n, 0.8, seed=seed)


def _lies(kind: str, models: Tensor, generator: torch.Generator) -> eq.Lies | None:
    rows = models + torch.randn(models.shape, generator=generator, dtype=models.dtype)
    if kind == "wild":  # every norm from 1e-35 to 1e35
        sizes = torch.randint(-35, 35, (len(rows), 1), generator=generator)
        rows = (rows.double() * 10.0**sizes).to(models.dtype)
    if kind == "nan":
        rows[:, 0] = torch.nan
    if kind == "none":
        return None
    return eq.Lies.to_all(rows[0]) if kind == "one" else eq.Lies.per_sender(rows)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # Beyond 32 values, order statistics take other networks; from 20 on, sums have runs.
    n = draw(st.sampled_from([3, 6, 11, 21, 35, 44]))
    d = draw(st.sampled_from([1, 7, 64, 130, 3000]))
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    topology = _graph(draw(st.sampled_from(["complete", "loops", "sparse", "random"])), n, seed)
    center = torch.randn(1, d, generator=generator, dtype=torch.float64)
    spread = draw(st.sampled_from([1e-6, 0.05, 2.0]))
    own = center + spread * torch.randn(n, d, generator=generator, dtype=torch.float64)
    own = own.to(draw(st.sampled_from([torch.float32, torch.float64])))
    lies = _lies(draw(st.sampled_from(["none", "noise", "one", "wild", "nan"])), own, generator)
    lost = draw(st.sampled_from([0.0, 0.2]))
    inputs = {
        "t": draw(st.integers(0, 3)),
        "total": 9,
        "tolerated": torch.randint(n // 3 + 1, (n,), generator=generator),
        "samples": torch.arange(1, n + 1),
        "loss_of": Distance(own + 0.3),
        "update": 0.1 * torch.randn(n, d, generator=generator).to(own.dtype),
    }
    absent = torch.rand(topology.mask.shape, generator=generator) < lost
    malicious = torch.randperm(n, generator=generator)[: n // 4]
    return Case(own, topology, absent, inputs, lies, malicious)


def _received(inbox: eq.Inbox, client: int) -> tuple[eq.Inbox, Tensor]:
    """The inbox of one client with a bank of its own, and the slots of its messages."""
    slots = inbox.mask[client].nonzero().flatten()
    bank = inbox.bank[inbox.slots[client, slots]]
    rows = torch.arange(len(bank))[None]
    senders = inbox.senders[client, slots][None]
    return eq.Inbox(bank, rows, torch.ones_like(rows, dtype=torch.bool), senders), slots


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), data=st.data())
def test_single_client_bits(rule: Any, case: Case, data: st.DataObject) -> None:
    inbox = case.deliver(case.own)
    client = data.draw(st.integers(0, len(case.own) - 1), "client")
    together = rule(case.own, inbox, **case.inputs)
    own_rule = rule_of(rule, client)
    inputs = inputs_of(case.inputs, client)
    compact, slots = _received(inbox, client)
    for received, kept in ((inbox.of(client), slice(None)), (compact, slots)):
        alone = own_rule(case.own[client], received, **inputs)
        assert torch.equal(alone.model, together.model[client])
        if together.weights is not None and alone.weights is not None:
            assert torch.equal(alone.weights, together.weights[client, kept])


@pytest.mark.parametrize("rule", LEARNS.values(), ids=LEARNS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), data=st.data())
def test_single_client_of_learn(rule: eq.LEARN, case: Case, data: st.DataObject) -> None:
    client = data.draw(st.integers(0, len(case.own) - 1), "client")
    delivered = []

    def exchange(sent: Tensor) -> eq.Inbox:
        inbox = case.deliver(sent)
        # A client on its own does not know its id, so its caller leaves its own message out.
        if rule.own_update == "included" and rule.sends_updates(len(delivered), case.inputs["t"]):
            delivered.append(_received(replace(inbox, mask=inbox.from_others), client)[0])
        else:
            delivered.append(_received(inbox, client)[0])
        return inbox

    sent, together = eq.run_exchanges(rule, case.own, exchange, **case.inputs)
    replies = iter(delivered)
    inputs = inputs_of(case.inputs, client)
    mine, alone = eq.run_exchanges(rule, case.own[client], lambda _: next(replies), **inputs)
    assert torch.equal(mine, sent[client])
    assert torch.equal(alone.model, together.model[client])


class _Operations(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("rule", "most"), [(eq.FedAvg(), 28), (eq.Median(), 50), (eq.Balance(), 52)]
)
def test_single_call_takes_few_operations(rule: Any, most: int) -> None:
    """Small models take the time of calls: each costs 1 to 4 microseconds, and more when idle."""
    own = torch.ones(5_000)
    received = own + 0.01 * torch.randn(10, 5_000, generator=torch.Generator().manual_seed(0))
    rule(own, received, t=0, total=10)  # prepares what later calls share
    with _Operations() as operations:
        rule(own, received, t=0, total=10)
    assert operations.count <= most
