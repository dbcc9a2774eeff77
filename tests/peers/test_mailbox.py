"""The messages that a mailbox takes and refuses, without a network."""

from __future__ import annotations

import time

import pytest
import torch

from equipoise.messages.wire import pack
from equipoise.peers import RefusedError
from equipoise.peers._arriving import Position
from equipoise.peers._mailbox import MOST_STREAMS
from tests.peers.mailboxes import OWN, finish, mailbox, message, push, refused, row


def test_message_fills_slot_of_sender() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(0, 2.0, sender="c"), "c")
    inbox = finish(box)
    assert inbox.mask.tolist() == [[False, True]]
    assert row(inbox, 1).tolist() == [2.0, 2.0, 2.0]
    assert inbox.absences == {1: "silent: no message arrived before the deadline"}


def test_inbox_may_be_modified() -> None:
    box = mailbox()
    for t in range(2):
        box.begin(OWN, Position(t))
        push(box, message(t))
        push(box, message(t, sender="c"), "c")
        inbox = finish(box)
        assert inbox.senders.tolist() == [[1, 2]]
        assert inbox.mask.tolist() == [[True, True]]
        inbox.mask[0, 0] = False
        inbox.senders[0, 1] = 7


def test_absent_rows_hold_no_old_models() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(0, 7.0))
    finish(box)
    box.begin(OWN, Position(1))
    assert finish(box).bank.tolist() == [[0.0] * 3] * 2


def test_finish_returns_once_all_are_heard() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(0))
    push(box, message(0, sender="c"), "c")
    begun = time.monotonic()
    assert finish(box, timeout=60.0).mask.all()
    assert time.monotonic() - begun < 30


def test_byte_by_byte_is_one_message() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    incoming = box.open("b")
    for byte in message(0, 5.0):
        incoming.write(bytes([byte]))
    incoming.complete()
    incoming.close()
    assert row(finish(box)).tolist() == [5.0] * 3


def test_busy_before_first_exchange() -> None:
    assert refused(mailbox(), message(0)).busy


def test_message_for_later_round_waits() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(1, 4.0))
    assert not finish(box).mask.any()
    box.begin(OWN, Position(1))
    assert row(finish(box)).tolist() == [4.0] * 3


def test_stash_is_bounded() -> None:
    box = mailbox(stash=2)
    box.begin(OWN, Position(0))
    push(box, message(1))
    push(box, message(2))
    assert refused(box, message(3)).busy
    push(box, message(0))  # the running exchange has room of its own
    assert row(finish(box)).tolist() == [1.0] * 3


def test_full_stash_of_one_spares_others() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(10**9))
    push(box, message(1, sender="c"), "c")
    box.begin(OWN, Position(1))
    assert finish(box).mask.tolist() == [[False, True]]


def test_first_message_counts() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(0, 1.0))
    assert refused(box, message(0, 9.0)).reason == "duplicate: the first message counts"
    assert row(finish(box)).tolist() == [1.0] * 3


def test_waiting_message_is_not_replaced() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(1, 1.0))
    assert refused(box, message(1, 9.0)).reason == "duplicate: the first message counts"


def test_second_copy_replaces_unfinished_one() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    broken = box.open("b")
    broken.write(message(0, 1.0)[:-4])
    push(box, message(0, 2.0))
    with pytest.raises(RefusedError, match="replaced"):
        broken.write(b"1234")
    broken.close()
    assert row(finish(box)).tolist() == [2.0] * 3


def test_replaced_copy_frees_its_memory() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    broken = box.open("b")
    broken.write(message(0)[:-4])
    (buffer,) = box.neighbors["b"].arriving.values()
    push(box, message(0))
    assert len(buffer.body) == 0
    with pytest.raises(RefusedError, match="replaced"):
        broken.complete()


def test_message_is_written_to_its_row() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    incoming = box.open("b")
    incoming.write(message(0, 5.0))
    (buffer,) = box.neighbors["b"].arriving.values()
    assert buffer.is_in_place
    incoming.complete()
    # Although the stream is still open:
    assert len(buffer.body) == 0
    assert row(finish(box)).tolist() == [5.0] * 3


def test_unfinished_message_leaves_the_bank() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    incoming = box.open("b")
    incoming.write(message(0, 5.0)[:-4])
    inbox = finish(box)
    with pytest.raises(RefusedError, match="late: round 0 arrived in round 0"):
        incoming.write(b"1234")
    assert inbox.bank.tolist() == [[0.0] * 3] * 2


def test_interrupted_exchange_leaves_its_bank() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    incoming = box.open("b")
    incoming.write(message(0, 5.0)[:-4])
    box.begin(OWN, Position(1))
    with pytest.raises(RefusedError, match="late"):
        incoming.complete()
    assert not finish(box).mask.any()


def test_unknown_sender_is_refused() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    assert refused(box, message(0), "mallory").reason.startswith("unknown sender")
    assert refused(box, message(0, sender="mallory"), None).reason.startswith("unknown sender")
    assert box.strangers == {"unknown sender": 2}


def test_stolen_name_is_refused() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    stolen = refused(box, message(0, sender="c"), "b")
    assert stolen.reason == "unauthenticated: the message names another sender"
    assert finish(box).absences == {
        1: "unauthenticated: the message names another sender",
        2: "silent: no message arrived before the deadline",
    }


def test_message_names_sender_without_authentication() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(0, sender="c"), None)
    assert finish(box).mask.tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (message(0, d=4), "wrong size: 4 values, expected 3"),
        (message(0) + b"x", "malformed: longer than its header states"),
        (message(0)[:-1], "malformed: shorter than its header states"),
        (message(0)[:20], "malformed: shorter than its header states"),
        (b"", "malformed: shorter than its header states"),
    ],
    ids=["other d", "longer", "shorter", "half a header", "empty"],
)
def test_malformed_message_is_absent(payload: bytes, reason: str) -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    assert refused(box, payload).reason == reason
    assert finish(box).absences[1] == reason


def test_garbage_is_malformed() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    assert refused(box, bytes(5000)).reason.startswith("malformed: ")


def test_exchanges_have_sizes_of_their_own() -> None:
    box = mailbox()
    for t in (0, 1):
        box.begin(OWN, Position(t, 0))
        if t:
            push(box, message(1, exchange=1, d=5))
        else:
            assert refused(box, message(0, exchange=1, d=5)).busy
        finish(box)
        box.begin(torch.zeros(5), Position(t, 1))
        inbox = finish(box)
    assert row(inbox).tolist() == [1.0] * 5


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_waiting_message_of_former_size_is_absent(max_staleness: int) -> None:
    box = mailbox(max_staleness=max_staleness)
    box.begin(OWN, Position(0))
    push(box, message(1))
    finish(box)
    box.begin(torch.zeros(5), Position(1))
    assert finish(box).absences[1] == "wrong size: 3 values, expected 5"


def test_message_that_outlasts_its_size_is_refused() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    incoming = box.open("b")
    incoming.write(message(1))
    finish(box)
    box.begin(torch.zeros(5), Position(1))
    with pytest.raises(RefusedError, match="wrong size"):
        incoming.complete()


def test_streams_of_one_neighbor_are_bounded() -> None:
    box = mailbox()
    opened = [box.open("b") for _ in range(MOST_STREAMS)]
    with pytest.raises(RefusedError, match="too many streams"):
        box.open("b")
    opened[0].close()
    opened[0].close()
    box.open("b")
    with pytest.raises(RefusedError, match="too many streams"):
        box.open("b")


def test_announced_rounds_are_remembered() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(1))
    refused(box, message(7))
    assert box.newest_rounds() == [7, -1]


def test_half_precision_is_decoded() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, pack(torch.full((3,), 0.5), round=0, sender="b", dtype=torch.float16))
    inbox = finish(box)
    assert inbox.bank.dtype == torch.float32
    assert row(inbox).tolist() == [0.5] * 3


def test_non_finite_message_is_absent() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(0, float("nan")))
    assert finish(box).absences[1].startswith("non-finite")
