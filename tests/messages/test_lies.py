"""Lies: the lie along each edge, compared with a dictionary of addresses."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import Lies, Topology
from equipoise.messages import as_lies, substitute_lies, unforged
from equipoise.messages.lies import lies_received

EVERYBODY = -1


def row_heard(lies: Lies, sender: int, receiver: int) -> int:
    """The obvious way: look up the addresses from the most to the least specific one."""
    addresses = zip(lies.senders.tolist(), lies.receivers.tolist(), strict=True)
    row_at = dict(
        zip(addresses, lies.which.tolist(), strict=True)
    )  # later entries replace earlier ones
    for address in (
        (sender, receiver),
        (EVERYBODY, receiver),
        (sender, EVERYBODY),
        (EVERYBODY, EVERYBODY),
    ):
        if address in row_at:
            return row_at[address]
    return -1


def heard_by_all(n: int) -> Tensor:
    """(n, n) senders of a complete graph with self-loops."""
    return torch.arange(n).expand(n, n)


def resolve_complete(lies: Lies, n: int) -> list[list[int]]:
    return lies_received(lies, heard_by_all(n), torch.ones(n, n, dtype=torch.bool)).tolist()


@st.composite
def random_lies(draw: st.DrawFn, n: int) -> Lies:
    ids = st.integers(EVERYBODY, n - 1)
    rows = draw(st.integers(1, 4))
    entries = draw(st.lists(st.tuples(ids, ids, st.integers(0, rows - 1)), max_size=12))
    senders, receivers, which = torch.tensor(entries, dtype=torch.int64).reshape(-1, 3).T
    return Lies(torch.randn(rows, 2), senders, receivers, which)


@given(st.data(), st.integers(1, 5))
def test_most_specific_entry(data: st.DataObject, n: int):
    lies = data.draw(random_lies(n))
    expected = [[row_heard(lies, sender, receiver) for sender in range(n)] for receiver in range(n)]
    assert resolve_complete(lies, n) == expected


@given(st.data(), st.integers(1, 5))
def test_masked(data: st.DataObject, n: int):
    lies = Lies.to_all(torch.zeros(2))
    mask = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n))
    )
    table = lies_received(lies, heard_by_all(n), mask)
    assert table.dtype == torch.int64
    assert torch.equal(table == 0, mask)
    assert torch.equal(table == -1, ~mask)


@given(st.data(), st.integers(1, 5))
def test_unforged(data: st.DataObject, n: int):
    lies = data.draw(random_lies(n))
    rows = st.lists(st.booleans(), min_size=n, max_size=n)
    mask = torch.tensor(data.draw(st.lists(rows, min_size=n, max_size=n)))
    before = mask.clone()
    expected = [
        [bool(mask[i, s]) and row_heard(lies, s, i) < 0 for s in range(n)] for i in range(n)
    ]
    assert unforged(lies, heard_by_all(n), mask).tolist() == expected
    assert torch.equal(unforged(None, heard_by_all(n), mask), mask)
    assert torch.equal(mask, before)


@given(st.data(), st.integers(2, 5))
def test_unforged_after_delivery(data: st.DataObject, n: int):
    """These are the messages in which benign clients receive a malicious client's model."""
    lies = data.draw(random_lies(n))
    malicious = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    graph = Topology.complete(n)
    edges = malicious[graph.senders] & ~malicious[:, None]
    models = 100.0 + torch.arange(n)[:, None].expand(n, 2)  # unlike any lie
    inbox = graph.deliver(models, lies, malicious)
    is_model = (inbox.bank[inbox.slots] == models[graph.senders]).all(2)
    assert torch.equal(unforged(lies, graph.senders, edges), edges & is_model)


def test_unforged_unused_slots():
    """Unused slots of a graph hold -1, which is no sender."""
    graph = Topology.from_edges(3, [(0, 1), (1, 2)])
    lies = Lies.per_sender(torch.zeros(3, 2), only=[1])
    assert unforged(lies, graph.senders, graph.mask).tolist() == [
        [False, False],
        [True, True],
        [False, False],
    ]


def test_worked_precedence():
    lies = Lies.join(
        Lies.per_edge(torch.tensor([[0, 1]]), torch.full((1, 1), 40.0)),
        Lies.per_receiver(torch.full((3, 1), 30.0), only=[1]),
        Lies.per_sender(torch.full((3, 1), 20.0), only=[0]),
        Lies.to_all(torch.full((1,), 10.0)),
    )
    values = lies.rows[torch.tensor(resolve_complete(lies, 3)), 0]  # [receiver, sender]
    assert values.tolist() == [[20.0, 10.0, 10.0], [40.0, 30.0, 30.0], [20.0, 10.0, 10.0]]


@given(st.data(), st.integers(1, 4))
def test_join_later_wins(data: st.DataObject, n: int):
    parts = data.draw(st.lists(random_lies(n), min_size=1, max_size=3))
    joined = Lies.join(*parts)
    assert torch.equal(joined.rows, torch.cat([part.rows for part in parts]))
    told = [(part, j) for part in parts for j in range(len(part.which))]
    for j, (part, place) in enumerate(told):
        assert joined.senders[j] == part.senders[place]
        assert joined.receivers[j] == part.receivers[place]
        assert torch.equal(joined.rows[joined.which[j]], part.rows[part.which[place]])
    assert len(joined.which) == len(told)


def test_join_equal_address():
    lies = Lies.join(Lies.to_all(torch.tensor([1.0])), Lies.to_all(torch.tensor([2.0])))
    assert resolve_complete(lies, 2) == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "only",
    [
        [3, 1],
        (1, 3),
        {1, 3},
        range(1, 4, 2),
        torch.tensor([1, 3]),
        torch.tensor([False, True, False, True]),
    ],
)
def test_per_sender_only(only):
    rows = torch.randn(4, 2)
    lies = Lies.per_sender(rows, only=only)
    assert lies.rows is rows
    assert resolve_complete(lies, 4) == [[-1, 1, -1, 3]] * 4


def test_all_senders_or_receivers():
    rows = torch.randn(3, 2)
    assert resolve_complete(Lies.per_sender(rows), 3) == [[0, 1, 2]] * 3
    assert resolve_complete(Lies.per_receiver(rows), 3) == [[0] * 3, [1] * 3, [2] * 3]


def test_per_receiver_limits():
    rows = torch.randn(4, 2)
    to_some = Lies.per_receiver(rows, only=[0, 3])
    assert resolve_complete(to_some, 4) == [[0] * 4, [-1] * 4, [-1] * 4, [3] * 4]
    by_some = Lies.per_receiver(rows, only=[0, 3], senders=[1, 2])
    assert by_some.rows is rows
    assert resolve_complete(by_some, 4) == [[-1, 0, 0, -1], [-1] * 4, [-1] * 4, [-1, 3, 3, -1]]


def test_two_attacks_share_rows():
    first = torch.zeros(3, 2)
    second = torch.ones(3, 2)
    lies = Lies.join(Lies.per_receiver(first, senders=[0]), Lies.per_receiver(second, senders=[1]))
    assert len(lies.rows) == 6
    assert resolve_complete(lies, 3) == [[0, 3, -1], [1, 4, -1], [2, 5, -1]]


@given(st.data(), st.integers(1, 5))
def test_along(data: st.DataObject, n: int):
    lies = data.draw(random_lies(n))
    ids = st.integers(0, n - 1)
    edges = data.draw(st.lists(st.tuples(ids, ids), max_size=8))
    part = lies.along(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2))
    assert part.rows is lies.rows
    for sender in range(n):
        for receiver in range(n):
            expected = row_heard(lies, sender, receiver) if (sender, receiver) in edges else -1
            assert row_heard(part, sender, receiver) == expected


def test_per_edge_shares_rows():
    edges = torch.tensor([[0, 1], [0, 2], [1, 2]])
    lies = Lies.per_edge(edges, torch.zeros(2, 3), which=torch.tensor([1, 0, 1]))
    assert resolve_complete(lies, 3) == [[-1, -1, -1], [1, -1, -1], [0, 1, -1]]


def test_no_gradients():
    models = torch.zeros(2, 3, requires_grad=True)
    senders = torch.tensor([[1], [0]])
    lies = Lies.to_all(torch.ones(3, requires_grad=True))
    all_edges = torch.ones(2, 1, dtype=torch.bool)
    bank, _ = substitute_lies(lies, models, senders, all_edges, all_edges)
    assert not bank.requires_grad


def test_large_sparse_graph():
    n = 100_000
    k = 10
    senders = (torch.arange(n)[:, None] + torch.arange(1, k + 1)) % n
    edges = torch.stack([senders.flatten(), torch.arange(n).repeat_interleave(k)], dim=1)
    lies = Lies.per_edge(edges, torch.zeros(1, 1), torch.zeros(n * k, dtype=torch.int64))
    lies = Lies.join(Lies.per_sender(torch.zeros(n, 1)), lies.along(edges[::2]))
    table = lies_received(lies, senders, torch.ones(n, k, dtype=torch.bool))
    assert torch.equal(table[:, ::2], torch.full((n, k // 2), n))
    assert torch.equal(table[:, 1::2], senders[:, 1::2])


ONE_ROW = torch.zeros(1, 2)
NOBODY = torch.tensor([-1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Lies(torch.zeros(3), NOBODY, NOBODY),
            "rows must be a floating-point tensor of shape (l, d), found float32 (3,)",
        ),
        (
            lambda: Lies(torch.zeros(1, 2, dtype=torch.int64), NOBODY, NOBODY),
            "rows must be a floating-point tensor of shape (l, d), found int64 (1, 2)",
        ),
        (
            lambda: Lies(ONE_ROW, torch.tensor([0, 1]), NOBODY),
            "senders must be an int64 tensor of shape (1,), found int64 (2,)",
        ),
        (
            lambda: Lies(ONE_ROW, NOBODY, torch.tensor([0.0])),
            "receivers must be an int64 tensor of shape (1,), found float32 (1,)",
        ),
        (
            lambda: Lies(ONE_ROW, NOBODY[None], NOBODY[None], torch.tensor([[0]])),
            "senders must be an int64 tensor of shape (1,), found int64 (1, 1)",
        ),
        (
            lambda: Lies(ONE_ROW, NOBODY.to("meta"), NOBODY),
            "senders must be on the device of rows, cpu, found meta",
        ),
        (
            lambda: Lies(ONE_ROW, torch.tensor([-2]), NOBODY),
            "senders must be at least -1, found -2",
        ),
        (
            lambda: Lies(ONE_ROW, NOBODY, torch.tensor([-3])),
            "receivers must be at least -1, found -3",
        ),
        (
            lambda: Lies(ONE_ROW, NOBODY, NOBODY, torch.tensor([1])),
            "which must be from 0 to 0, found 1",
        ),
        (
            lambda: Lies(ONE_ROW, NOBODY, NOBODY, torch.tensor([-1])),
            "which must be from 0 to 0, found -1",
        ),
        (lambda: Lies.per_sender(ONE_ROW, only=[1]), "only must be from 0 to 0, found 1"),
        (lambda: Lies.per_receiver(ONE_ROW, senders=[4]), "senders must be from 0 to 0, found 4"),
        (
            lambda: Lies.per_edge(torch.tensor([0, 1]), ONE_ROW),
            "edges must be an int64 tensor of shape (a, 2), found int64 (2,)",
        ),
        (
            lambda: Lies.to_all(torch.zeros(2)).along(torch.zeros(1, 2)),
            "edges must be an int64 tensor of shape (a, 2), found float32 (1, 2)",
        ),
        (
            lambda: Lies.per_edge(torch.tensor([[0, -1]]), ONE_ROW),
            "edges must be at least 0, found -1 to 0",
        ),
        (
            lambda: Lies.per_edge(torch.tensor([[0, 1], [1, 0]]), ONE_ROW),
            "rows must be one per edge without which, expected 2, found 1",
        ),
        (
            lambda: Lies.to_all(ONE_ROW),
            "row must be a floating-point tensor of shape (d,), found float32 (1, 2)",
        ),
        (
            lambda: Lies.to_all(torch.tensor(1.0)),
            "row must be a floating-point tensor of shape (d,), found float32 ()",
        ),
        (lambda: Lies.join(), "lies must hold at least one Lies to join, found none"),
        (
            lambda: Lies.join(Lies.to_all(torch.zeros(2)), Lies.to_all(torch.zeros(3))),
            "lies must share one width d, dtype and device, found float32 (1, 2) "
            "on cpu, float32 (1, 3) on cpu",
        ),
        (
            lambda: Lies.join(Lies.to_all(torch.zeros(2)), Lies.to_all(torch.zeros(2).double())),
            "found float32 (1, 2) on cpu, float64 (1, 2) on cpu",
        ),
        *(
            (partial(as_lies, torch.zeros(shape), torch.zeros(3, 2)), "shaped like models, (3, 2)")
            for shape in [(2, 2), (4, 2), (3, 1), (3, 3)]
        ),
        *(
            (partial(as_lies, Lies.to_all(torch.zeros(d)), torch.zeros(3, 2)), "d = 2 parameters")
            for d in (1, 3)
        ),
        (
            lambda: as_lies(torch.zeros(3, 2).double(), torch.zeros(3, 2)),
            "the dtype and device of models, torch.float32 on cpu, found torch.float64 on cpu",
        ),
        (
            lambda: as_lies(torch.zeros(3, 2), torch.zeros(3, 2).double()),
            "the dtype and device of models, torch.float64 on cpu, found torch.float32 on cpu",
        ),
        (
            lambda: resolve_complete(Lies.per_sender(torch.zeros(4, 1)), 3),
            "senders of lies must be from -1 to 2",
        ),
        (
            lambda: unforged(Lies.per_sender(torch.zeros(4, 1)), heard_by_all(3), torch.eye(3) > 0),
            "senders of lies must be from -1 to 2",
        ),
        (
            lambda: resolve_complete(Lies.per_receiver(torch.zeros(4, 1)), 3),
            "receivers of lies must be from -1 to 2",
        ),
    ],
)
def test_bad_lies(make, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
