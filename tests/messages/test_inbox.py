"""Inbox: messages of all receivers, and untrusted messages of one."""

from typing import Any

import numpy as np
import pytest
import torch

from equipoise import Aggregator, Balance, FedAvg, Inbox, Krum, Median, Topology

BANK = torch.tensor([[0.0, 1.0], [2.0, 3.0], [torch.nan, 4.0], [5.0, torch.inf]])
SLOTS = torch.tensor([[0, 1, 2], [3, 1, 0]])
MASK = torch.tensor([[True, False, True], [True, True, True]])


def test_sizes_and_counts() -> None:
    inbox = Inbox(BANK, SLOTS, MASK)
    assert (inbox.n, inbox.k, inbox.d) == (2, 3, 2)
    assert inbox.counts.tolist() == [1, 2]
    assert inbox.present.tolist() == [[True, False, False], [False, True, True]]


def test_default_senders() -> None:
    assert torch.equal(Inbox(BANK, SLOTS).senders, SLOTS)


def test_keep_nonfinite() -> None:
    assert torch.equal(Inbox(BANK, SLOTS, MASK, keep_nonfinite=True).present, MASK)
    out = FedAvg()(torch.zeros(2, 2), Inbox(BANK, SLOTS, MASK, keep_nonfinite=True))
    expected = torch.tensor([[torch.nan, 2.5], [7 / 3, torch.inf]])
    torch.testing.assert_close(out.model, expected, equal_nan=True)


def test_groups() -> None:
    inbox = Inbox(BANK, SLOTS, MASK)
    groups = list(inbox._arrived.groups)
    assert [g.receivers.tolist() for g in groups] == [[0], [1]]
    # By sender, as in the inbox of one client: without senders, the row is the sender.
    assert [g.columns.tolist() for g in groups] == [[[0]], [[2, 1]]]
    assert [g.rows.tolist() for g in groups] == [[[0]], [[0, 1]]]


@pytest.mark.parametrize("chosen", [1, torch.tensor([1]), torch.tensor([1, 0])])
@pytest.mark.parametrize("looked_at_before", [False, True])
def test_of_shares_the_bank(chosen: int | torch.Tensor, looked_at_before: bool) -> None:
    inbox = Inbox(BANK, SLOTS, MASK, keep_nonfinite=False)
    if looked_at_before:
        assert inbox.present.any()
    part = inbox.of(chosen)
    rows = torch.tensor([1]) if isinstance(chosen, int) else chosen
    assert part.bank is inbox.bank
    assert torch.equal(part.slots, SLOTS[rows])
    assert torch.equal(part.present, inbox.present[rows])


def test_collect() -> None:
    own = torch.zeros(4, dtype=torch.float32)
    inbox = Inbox.collect(
        [torch.ones(2, 2, dtype=torch.float64), torch.full((4,), 1e300, dtype=torch.float64)],
        like=own,
        senders=[7, 3],
    )
    assert inbox.senders.tolist() == [[7, 3]]
    assert inbox.bank.dtype == torch.float32
    assert inbox.present.tolist() == [[True, False]]  # 1e300 is infinite in float32


@pytest.mark.parametrize(
    "message",
    [
        None,
        [1.0, 2.0],
        "model",
        torch.ones(3),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        torch.ones(0),
    ],
)  # fmt: skip
def test_collect_malformed(message: object) -> None:
    inbox = Inbox.collect([torch.ones(2), message], like=torch.zeros(2))
    assert inbox.mask.tolist() == [[True, False]]
    assert FedAvg()(torch.zeros(2), inbox).model.tolist() == [1.0, 1.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["nested", "nested and jagged", "uninitialized"])
def test_collect_unreadable(kind: str) -> None:
    """Nested tensors can arrive: torch.load accepts them with weights_only."""
    message: object
    if kind.startswith("nested"):
        layout = torch.jagged if kind.endswith("jagged") else torch.strided
        message = torch.nested.nested_tensor([torch.ones(2)], layout=layout)
    else:
        message = torch.nn.UninitializedParameter()
    inbox = Inbox.collect([torch.ones(2), message], like=torch.zeros(2))
    assert inbox.mask.tolist() == [[True, False]]
    assert FedAvg()(torch.zeros(2), inbox).model.tolist() == [1.0, 1.0]


def test_collect_no_messages() -> None:
    out = FedAvg()(torch.ones(2), Inbox.collect([], like=torch.ones(2)))
    assert out.model.tolist() == [1.0, 1.0]
    assert out.weights is not None
    assert out.weights.shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"bank": torch.zeros(3)}, r"bank must be .* shape \(m, d\), found float32 \(3,\)"),
        (
            {"bank": torch.zeros(4, 2, dtype=torch.int32)},
            r"bank must be a floating-point .* found int32 \(4, 2\)",
        ),
        (
            {"slots": torch.zeros(2, dtype=torch.int64)},
            r"slots must be an int64 .* found int64 \(2,\)",
        ),
        ({"slots": SLOTS.int()}, r"slots must be an int64 .* found int32 \(2, 3\)"),
        ({"mask": MASK[:1]}, r"mask must be a bool tensor of shape \(2, 3\), found bool \(1, 3\)"),
        (
            {"mask": MASK.int()},
            r"mask must be a bool tensor of shape \(2, 3\), found int32 \(2, 3\)",
        ),
        (
            {"senders": SLOTS[:, :2]},
            r"senders must be an int64 tensor of shape \(2, 3\), found int64 \(2, 2\)",
        ),
        ({"bank": BANK.to("meta")}, r"must be on one device, found \['cpu', 'meta'\]"),
        ({"slots": SLOTS + 1}, r"slots must be rows of the bank, 0 to 3, found 1 to 4"),
        ({"slots": SLOTS - 1}, r"slots must be rows of the bank, 0 to 3, found -1 to 2"),
    ],
)
def test_errors(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Inbox(**{"bank": BANK, "slots": SLOTS, "mask": MASK} | arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_collect_arrays_and_bytes(dtype: torch.dtype) -> None:
    model = torch.tensor([1.0, -2.0, 0.5]).to(dtype)
    raw = model.view(torch.uint8).numpy().tobytes()
    array = np.array([1.0, -2.0, 0.5])
    array.flags.writeable = False
    unreadable = [
        raw[:-1],
        b"",
        np.array(["a", "b", "c"]),
        np.array([1, 2, 3]),
        np.zeros(2),
        array.astype(object),
    ]
    inbox = Inbox.collect(
        [raw, bytearray(raw), array, array[::-1][::-1], *unreadable],
        like=torch.zeros(3, dtype=dtype),
    )
    assert inbox.mask.tolist() == [[True] * 4 + [False] * 6]
    assert all(torch.equal(row, model) for row in inbox.bank[:4])


@pytest.mark.parametrize(
    "rule", [FedAvg(), Krum(0), Median()], ids=lambda rule: type(rule).__name__
)
def test_collect_duplicates(rule: Any) -> None:
    own = torch.zeros(3)
    lie = torch.full((3,), 9.0)
    honest = [torch.ones(3), torch.full((3,), 1.1), torch.full((3,), 1.2)]
    once = Inbox.collect([*honest, lie], like=own, senders=[1, 2, 3, 9])
    often = Inbox.collect(
        [*honest, "malformed", lie, lie, 2 * lie],
        like=own,
        senders=torch.tensor([1, 2, 3, 9, 9, 9, 9]),
    )
    assert often.mask.tolist() == [[True, True, True, False, True, False, False]]
    assert torch.equal(rule(own, often).model, rule(own, once).model)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (
            {1: torch.ones(2)},
            r"messages must be a list with one per sender, found dict; "
            r"pass messages\.values\(\) and senders=messages\.keys\(\)",
        ),
        (
            torch.ones(2),
            r"messages must be a list of messages, found float32 \(2,\); pass \[message\] for one",
        ),
        (np.ones(2), "messages must be a list of messages, found "),
        (b"12345678", "messages must be a list of messages, found "),
        ("gossip", "messages must be a list of messages, found "),
    ],
    ids=["dict", "tensor", "array", "bytes", "str"],
)
def test_collect_wrong_container(messages: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Inbox.collect(messages, like=torch.zeros(2))


def test_collect_largest_id() -> None:
    with pytest.raises(
        ValueError, match=r"senders must be an integer from 0 to 9223372036854775807, found 1180591"
    ):
        Inbox.collect([torch.ones(2)], like=torch.zeros(2), senders=[2**70])


def test_collect_sender_count() -> None:
    with pytest.raises(
        ValueError, match="senders must name one client per message, expected 2, found 1"
    ):
        Inbox.collect([torch.ones(2), torch.ones(2)], like=torch.ones(2), senders=[1])


@pytest.mark.parametrize(
    "rule", [FedAvg(), Balance(kappa=0), Krum(1), Median()], ids=lambda rule: type(rule).__name__
)
def test_only_edges_are_cached(rule: Aggregator) -> None:
    graph = Topology.regular(20, 10, seed=0)
    models = torch.randn(20, 700)
    for change in (1.0, 2.0, torch.nan, 3.0):
        models[4] *= change
        models[7] = change
        found = rule(models, graph.deliver(models)).model
        fresh = rule(models, Topology(graph.senders).deliver(models)).model
        assert torch.equal(found.nan_to_num(), fresh.nan_to_num())
        models.nan_to_num_()
    assert graph.deliver(models)._sent is graph.deliver(models)._sent


def test_why_absent() -> None:
    messages = [torch.ones(2), torch.ones(3), "model", torch.ones(2), torch.tensor([torch.nan, 0])]
    inbox = Inbox.collect(messages, like=torch.zeros(2), senders=[0, 1, 2, 0, 3])
    kinds = {slot: reason.split(":")[0] for slot, reason in inbox.why_absent().items()}
    assert kinds == {1: "wrong size", 2: "malformed", 3: "duplicate", 4: "non-finite"}


def test_why_absent_of_a_graph() -> None:
    graph = Topology.from_edges(3, [(0, 1), (2, 1)], directed=True)
    inbox = graph.deliver(torch.ones(3, 1))
    assert inbox.why_absent(1) == {}
    assert list(inbox.why_absent(0).values()) == ["silent: no message arrived"] * 2
    with pytest.raises(ValueError, match="receiver must be an integer from 0 to 2, found 3"):
        inbox.why_absent(3)


def test_fields_are_frozen() -> None:
    inbox = Inbox.of_one(torch.zeros(2, 3))
    with pytest.raises(AttributeError, match="cannot assign to field 'mask'"):
        inbox.mask = ~inbox.mask  # type: ignore[misc]


def test_reasons_are_keyword_only() -> None:
    bank = torch.zeros(1, 3)
    slots = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(TypeError, match="positional arguments"):
        Inbox(bank, slots, slots == 0, slots, False, {0: "late"})  # type: ignore[misc]


@pytest.mark.parametrize("n", [3, 4])
def test_why_absent_beyond_range(n: int) -> None:
    inbox = Topology.complete(n).deliver(torch.zeros(n, 2))
    with pytest.raises(ValueError, match=f"receiver must be .*, found {n}"):
        inbox.why_absent(n)
