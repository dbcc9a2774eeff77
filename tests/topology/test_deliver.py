"""Topology.deliver: models and lies along the edges of a graph."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import Lies, Topology
from equipoise.messages.inbox import Inbox
from tests.digraphs import Edges, digraphs, edge_list, subsets


def messages(inbox: Inbox) -> dict[tuple[int, int], Tensor]:
    """Every message by (sender, receiver)."""
    return {
        (int(inbox.senders[i, s]), int(i)): inbox.bank[inbox.slots[i, s]]
        for i, s in inbox.mask.nonzero().tolist()
    }


def expected_messages(topology: Topology, models: Tensor, lies: Lies, malicious: list[int]) -> dict:
    """A dictionary of addresses, searched from the most to the least specific one."""
    told = {}
    for sender, receiver, row in zip(
        lies.senders, lies.receivers, lies.rows[lies.which], strict=True
    ):
        told[int(sender), int(receiver)] = row
    heard = {}
    for a, b in edge_list(topology):
        heard[a, b] = models[a]
        if a in malicious and a != b:
            addresses = ((a, b), (-1, b), (a, -1), (-1, -1))
            heard[a, b] = next(
                (told[address] for address in addresses if address in told), models[a]
            )
    return heard


KINDS = ("per_sender", "per_receiver", "per_edge", "to_all")


@st.composite
def lies_of_a_kind(draw: st.DrawFn, kind: str, n: int) -> Lies:
    if kind == "to_all":
        return Lies.to_all(torch.randn(3))
    if kind == "per_edge":
        client = st.integers(0, n - 1)
        edges = draw(st.lists(st.tuples(client, client), max_size=8))
        return Lies.per_edge(
            torch.tensor(edges, dtype=torch.int64).reshape(-1, 2), torch.randn(len(edges), 3)
        )
    only = draw(st.none() | subsets(n))
    if kind == "per_sender":
        return Lies.per_sender(torch.randn(n, 3), only=only)
    return Lies.per_receiver(torch.randn(n, 3), only=only, senders=draw(st.none() | subsets(n)))


@given(st.data(), digraphs(), st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
def test_lies_by_address(data: st.DataObject, graph: tuple[int, Edges], kinds: list[str]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    malicious = data.draw(st.just([]) | st.just(list(range(n))) | subsets(n))
    lies = Lies.join(*(data.draw(lies_of_a_kind(kind, n)) for kind in kinds))
    models = torch.randn(n, 3)
    before = models.clone()
    inbox = topology.deliver(models, lies, malicious)

    expected = expected_messages(topology, models, lies, malicious)
    found = messages(inbox)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[edge], expected[edge]) for edge in expected)
    assert torch.equal(inbox.mask, topology.mask)
    assert torch.equal(inbox.senders[inbox.mask], topology.senders[topology.mask])
    assert torch.equal(models, before)

    rows_used = {tuple(message.tolist()) for message in expected.values()}
    if inbox.bank is not models:
        assert len(inbox.bank) == len(rows_used)
    else:
        assert all(torch.equal(expected[a, b], models[a]) for a, b in expected)


def test_no_copy_without_lies():
    models = torch.randn(5, 3)
    topology = Topology.from_edges(5, [(0, 1), (1, 2), (1, 4)])
    inbox = topology.deliver(models)
    assert inbox.bank is models
    assert torch.equal(inbox.slots[inbox.mask], topology.senders[topology.mask])
    assert (inbox.slots[~inbox.mask] == 0).all()
    assert topology.deliver(models, torch.zeros(5, 3), malicious=[]).bank is models


def test_tensor_of_lies():
    models = torch.tensor([[0.0], [1.0], [2.0]])
    inbox = Topology.complete(3).deliver(
        models, models + 10, malicious=torch.tensor([False, True, False])
    )
    assert {edge: message.item() for edge, message in messages(inbox).items()} == {
        (0, 1): 0.0,
        (0, 2): 0.0,
        (1, 0): 11.0,
        (1, 2): 11.0,
        (2, 0): 2.0,
        (2, 1): 2.0,
    }
    assert len(inbox.bank) == 3  # two models and one lie


def test_nonfinite_lies():
    models = torch.zeros(3, 1)
    lie = Lies.to_all(torch.tensor([torch.nan]))
    topology = Topology.complete(3)
    assert topology.deliver(models, lie, [0]).counts.tolist() == [2, 1, 1]
    assert topology.deliver(models, lie, [0], keep_nonfinite=True).counts.tolist() == [2, 2, 2]
    assert topology.deliver(lie.rows.expand(3, 1)).counts.tolist() == [0, 0, 0]
    assert topology.deliver(lie.rows.expand(3, 1), keep_nonfinite=True).counts.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtype(dtype: torch.dtype):
    models = torch.ones(3, 2, dtype=dtype)
    inbox = Topology.ring(3).deliver(models, torch.zeros_like(models), malicious=[0])
    assert inbox.bank.dtype == dtype
    assert inbox.bank.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_models_with_gradient():
    models = torch.ones(3, 2, requires_grad=True)
    inbox = Topology.ring(3).deliver(models, torch.zeros(3, 2), malicious=[0, 1, 2])
    assert inbox.bank.tolist() == [[0, 0]] * 3
    assert not inbox.bank.requires_grad


@pytest.mark.parametrize("lies", [None, torch.zeros(1, 2)], ids=["truth", "lies"])
def test_one_client(lies: Tensor | None):
    models = torch.ones(1, 2)
    alone = Topology.ring(1)
    assert alone.deliver(models, lies, malicious=[0]).counts.tolist() == [0]
    inbox = alone.with_self_loops().deliver(models, lies, malicious=[0])
    assert inbox.bank[inbox.slots].tolist() == [[[1.0, 1.0]]]  # regardless of its lies to others


def test_no_lies_to_itself() -> None:
    models = torch.tensor([[0.0], [1.0], [2.0]])
    lie = Lies.to_all(torch.tensor([9.0]))
    inbox = Topology.complete(3).with_self_loops().deliver(models, lie, malicious=[1, 2])
    heard = {
        (int(sender), receiver): float(inbox.bank[slot])
        for receiver in range(3)
        for sender, slot in zip(inbox.senders[receiver], inbox.slots[receiver], strict=True)
    }
    assert heard == {(0, i): 0.0 for i in range(3)} | {
        (s, r): s if r == s else 9.0 for s in (1, 2) for r in range(3)
    }
