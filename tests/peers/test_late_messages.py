"""Messages whose round is over: refused, or used in place of an absent one."""

from __future__ import annotations

import torch

from equipoise.peers._arriving import Position
from tests.peers.mailboxes import OWN, finish, mailbox, message, push, refused, row


def test_waiting_message_of_skipped_round_is_late() -> None:
    box = mailbox()
    box.begin(OWN, Position(0))
    push(box, message(1))
    box.begin(OWN, Position(5))
    assert finish(box).absences[1] == "late: round 1 arrived in round 5"


def test_late_message_is_refused() -> None:
    box = mailbox()
    box.begin(OWN, Position(3))
    refusal = refused(box, message(2))
    assert (refusal.busy, refusal.reason) == (False, "late: round 2 arrived in round 3")
    assert finish(box).absences[1] == refusal.reason


def test_message_after_the_deadline_is_late() -> None:
    box = mailbox()
    box.begin(OWN, Position(3))
    finish(box)
    assert refused(box, message(3)).reason == "late: round 3 arrived in round 3"


def test_stale_message_stands_in() -> None:
    box = mailbox(max_staleness=2)
    box.begin(OWN, Position(3))
    finish(box)
    push(box, message(3, 8.0))
    box.begin(OWN, Position(5))
    assert row(finish(box)).tolist() == [8.0] * 3
    assert box.neighbors["b"].report.stale == 1


def test_stale_message_is_used_once() -> None:
    box = mailbox(max_staleness=2)
    box.begin(OWN, Position(3))
    finish(box)
    push(box, message(3))
    box.begin(OWN, Position(4))
    finish(box)
    assert refused(box, message(3)).reason == "duplicate: the first message counts"
    box.begin(OWN, Position(5))
    assert not finish(box).mask.any()


def test_newest_stale_message_remains() -> None:
    box = mailbox(max_staleness=3)
    box.begin(OWN, Position(3))
    finish(box)
    push(box, message(3, 3.0))
    push(box, message(2, 2.0))
    box.begin(OWN, Position(4))
    assert row(finish(box)).tolist() == [3.0] * 3


def test_stale_message_becomes_too_old() -> None:
    box = mailbox(max_staleness=1)
    box.begin(OWN, Position(3))
    finish(box)
    push(box, message(3))
    box.begin(OWN, Position(5))
    assert not finish(box).mask.any()


def test_fresh_message_beats_stale_one() -> None:
    box = mailbox(max_staleness=1)
    box.begin(OWN, Position(3))
    finish(box)
    push(box, message(3, 3.0))
    box.begin(OWN, Position(4))
    push(box, message(4, 4.0))
    assert row(finish(box)).tolist() == [4.0] * 3


def test_stale_message_of_other_exchange_is_not_used() -> None:
    box = mailbox(max_staleness=1)
    for position in (Position(3, 0), Position(3, 1)):
        box.begin(OWN, position)
        finish(box)
    push(box, message(3, exchange=1))
    box.begin(OWN, Position(4, 0))
    assert not finish(box).mask.any()


def test_unfinished_message_may_become_a_stale_one() -> None:
    box = mailbox(max_staleness=1)
    box.begin(OWN, Position(0))
    incoming = box.open("b")
    incoming.write(message(0, 5.0)[:-4])
    inbox = finish(box)
    incoming.write(message(0, 5.0)[-4:])
    incoming.complete()
    assert inbox.bank.tolist() == [[0.0] * 3] * 2
    box.begin(OWN, Position(1))
    assert row(finish(box)).tolist() == [5.0] * 3


def test_late_message_of_former_size_is_absent() -> None:
    box = mailbox(max_staleness=1)
    box.begin(OWN, Position(0))
    finish(box)
    push(box, message(0))
    box.begin(torch.zeros(5), Position(1))
    assert finish(box).absences[1] == "wrong size: 3 values, expected 5"
    assert box.neighbors["b"].report.stale == 0
