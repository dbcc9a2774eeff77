"""A mailbox under arbitrary interleavings of what several senders do."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from equipoise.messages.wire import pack
from equipoise.peers import RefusedError
from equipoise.peers._arriving import ArrivingMessage, Position
from equipoise.peers._mailbox import MOST_STREAMS, Mailbox

HONEST = "a"
MALICIOUS = ["b", "c"]
NAMES = [HONEST, *MALICIOUS]
D = 2

rounds = st.integers(0, 6) | st.sampled_from([10**6, 2**53])
exchanges = st.integers(0, 2)


class Mailboxes(RuleBasedStateMachine):
    """One honest neighbor, which keeps to the protocol, and two that do anything."""

    @initialize(stash=st.integers(1, 2), max_staleness=st.integers(0, 2))
    def make(self, stash: int, max_staleness: int) -> None:
        self.box = Mailbox(NAMES, stash=stash, max_staleness=max_staleness)
        self.stash = stash
        self.max_staleness = max_staleness
        self.position = Position(-1)
        self.is_running = False
        self.honest_is_sent = False
        self.values: dict[float, tuple[str, Position]] = {}  # who sent which value, and for what
        self.used: set[float] = set()
        self.streams: list[ArrivingMessage] = []

    def message(self, sender: str, position: Position, *, d: int = D) -> bytes:
        """A message whose value nobody has used before."""
        value = float(len(self.values) + 1)
        self.values[value] = (sender, position)
        t, exchange = position
        return pack(torch.full((d,), value), round=t, sender=sender, exchange=exchange)

    # The peer

    @rule(skipped=st.integers(0, 2), exchange=st.booleans())
    @precondition(lambda self: not self.is_running)
    def begin(self, skipped: int, exchange: bool) -> None:
        t, last = self.position
        following = exchange and t >= 0 and last < 2
        self.position = Position(t, last + 1) if following else Position(t + 1 + skipped)
        self.box.begin(torch.zeros(D), self.position)
        self.is_running = True
        self.honest_is_sent = False

    @rule()
    @precondition(lambda self: self.is_running)
    def finish(self) -> None:
        inbox = self.box.finish(tuple(range(len(NAMES))), time.monotonic())
        self.is_running = False
        assert not self.honest_is_sent or bool(inbox.mask[0, 0])
        for row, name in enumerate(NAMES):
            if not inbox.mask[0, row]:
                assert inbox.bank[row].tolist() == [0.0] * D
                continue
            first, second = inbox.bank[row].tolist()
            assert first == second
            sender, position = self.values[first]
            assert sender == name
            assert first not in self.used
            self.used.add(first)
            age = self.position.t - position.t
            is_late = 0 < age <= self.max_staleness or (age == 0 and self.max_staleness > 0)
            is_stale = is_late and position.exchange == self.position.exchange
            assert position == self.position or is_stale

    # The honest neighbor

    @rule()
    @precondition(lambda self: self.is_running and not self.honest_is_sent)
    def honest_sends(self) -> None:
        incoming = self.box.open(HONEST)
        payload = self.message(HONEST, self.position)
        incoming.write(payload[:50])
        incoming.write(payload[50:])
        incoming.complete()
        incoming.close()
        self.honest_is_sent = True

    # The malicious ones

    @rule(sender=st.sampled_from(MALICIOUS))
    def open(self, sender: str) -> None:
        if self.box.neighbors[sender].streams < MOST_STREAMS:
            self.streams.append(self.box.open(sender))
        else:
            with pytest.raises(RefusedError, match="too many streams"):
                self.box.open(sender)

    @rule(
        data=st.data(),
        sender=st.sampled_from(NAMES),
        t=rounds,
        exchange=exchanges,
        d=st.sampled_from([D, D, D, D, 1, 1000]),
        garbage=st.binary(max_size=30),
        cut=st.integers(0, 400),
    )
    @precondition(lambda self: self.streams)
    def write(
        self,
        data: st.DataObject,
        sender: str,
        t: int,
        exchange: int,
        d: int,
        garbage: bytes,
        cut: int,
    ) -> None:
        stream = data.draw(st.sampled_from(self.streams))
        payload = self.message(sender, Position(t, exchange), d=d)
        parts = data.draw(
            st.sampled_from(
                [
                    [payload],
                    [payload[:cut], payload[cut:]],
                    [payload[:cut]],
                    [payload, garbage],
                    [garbage, payload],
                ]
            )
        )
        try:
            for part in parts:
                stream.write(part)
        except RefusedError:
            self.end(stream)

    @rule(data=st.data(), is_complete=st.booleans())
    @precondition(lambda self: self.streams)
    def stop(self, data: st.DataObject, is_complete: bool) -> None:
        stream = data.draw(st.sampled_from(self.streams))
        try:
            if is_complete:
                stream.complete()
        except RefusedError:
            pass
        self.end(stream)

    def end(self, stream: ArrivingMessage) -> None:
        stream.close()
        self.streams.remove(stream)

    # Invariants

    @invariant()
    def memory_is_bounded(self) -> None:
        most = (2 + self.stash) if self.max_staleness == 0 else (4 + self.stash)
        for neighbor in self.box.neighbors.values():
            late = [] if neighbor.late is None else [neighbor.late]
            held = [*neighbor.arriving.values(), *neighbor.waiting.values(), *late]
            # One is the row of the bank.
            assert len(held) + 1 <= most
            assert all(len(buffer.body) == 4 * D for buffer in held)
            assert neighbor.streams <= MOST_STREAMS

    @invariant()
    def closed_streams_hold_nothing(self) -> None:
        held = sum(len(neighbor.arriving) for neighbor in self.box.neighbors.values())
        assert held <= len(self.streams)


TestMailboxes = Mailboxes.TestCase
TestMailboxes.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
