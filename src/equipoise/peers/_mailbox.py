"""Where the messages of neighbors arrive, and which of them a peer takes.

A neighbor may send arbitrary bytes at any time. Three properties bound what it can cause:

- Memory: a neighbor has a fixed number of buffers of one model each. A message that finds no free
  buffer is refused as busy, and its sender may try again.
- Time: no method waits for a neighbor, except until the deadline of an exchange.
- Reach: a neighbor that sends too much, too late or the wrong thing loses its own messages only.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from threading import Condition

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.messages import Header, Inbox, decode_into
from equipoise.messages.inbox import inbox_of_one
from equipoise.peers._arriving import (
    REPLACED,
    TOO_LONG,
    TOO_SHORT,
    ArrivingMessage,
    Buffer,
    Position,
)
from equipoise.peers.report import NeighborReport, kind_of
from equipoise.peers.transport import RefusedError

SILENT = "silent: no message arrived before the deadline"
MOST_STREAMS = 4  # of one neighbor at a time; an honest one has a stream per exchange on its way


class When(Enum):
    """The place of a message's exchange in time, as the peer sees it."""

    OVER = 0
    RUNNING = 1
    LATER = 2


@dataclass(eq=False)
class Neighbor:
    """The messages of one neighbor, and what is known of them."""

    row: int
    report: NeighborReport = field(default_factory=NeighborReport)
    streams: int = 0
    arriving: dict[Position, Buffer] = field(default_factory=dict)
    waiting: dict[Position, Buffer] = field(default_factory=dict)  # for later exchanges
    late: Buffer | None = None  # the newest message whose exchange is over
    taken: set[Position] = field(default_factory=set)  # against replays
    trouble: str = SILENT  # why no message was taken in this exchange
    newest: int = -1  # the latest round that the neighbor has announced


@dataclass(eq=False)
class Exchange:
    """An exchange that is running: each neighbor has a row of the bank."""

    position: Position
    bank: Tensor
    begun: float
    missing: set[str]

    def buffer_for(self, header: Header, row: int) -> Buffer:
        """The row itself if it holds the same bytes as the message, or else memory of its own."""
        is_plain = self.bank.device.type == "cpu" and sys.byteorder == "little"
        if not is_plain or self.bank.dtype != header.dtype:
            return Buffer.for_header(header)
        return Buffer(header, self._bytes[row].data, is_in_place=True)

    @cached_property
    def _bytes(self) -> np.ndarray:
        return self.bank.view(torch.uint8).numpy()


class Mailbox:
    """Collects the messages of all neighbors; an `Endpoint` for transports.

    Args:
        neighbors: their names, in the order of their ids.
        stash: how many messages of one neighbor may wait for later exchanges.
        max_staleness: how many rounds old a late message may be that stands in for an absent one.
    """

    def __init__(self, neighbors: Iterable[str], *, stash: int, max_staleness: int) -> None:
        self.neighbors = {name: Neighbor(row) for row, name in enumerate(neighbors)}
        self.strangers: Counter[str] = Counter()  # refused messages of others, by kind of reason
        self._stash = stash
        self._max_staleness = max_staleness
        self._sizes: dict[int, int] = {}  # the number of values of a message, by exchange
        self._position = Position(-1)  # of the exchange that is running, or of the last one
        self._running: Exchange | None = None
        self._on_their_way = 0  # messages of this peer
        self._unnamed = 0  # streams without an authenticated sender
        self._memory = RecycledMemory()
        self._changed = Condition()  # guards everything above

    # The exchanges of the peer

    def begin(self, own: Tensor, position: Position) -> None:
        """Start an exchange; messages for it that have been waiting count at once."""
        with self._changed:
            if self._running is not None:  # it was interrupted before its end
                self._clear_rows(self._running, self.neighbors)
            bank = self._memory.take(own, len(self.neighbors), own.numel())
            self._running = Exchange(position, bank, time.monotonic(), set(self.neighbors))
            self._position = position
            self._sizes[position.exchange] = own.numel()
            self._on_their_way += len(self.neighbors)
            for neighbor in self.neighbors.values():
                neighbor.taken = {x for x in neighbor.taken if self._age(x) <= self._max_staleness}
                for due in sorted(x for x in neighbor.waiting if x <= position):
                    with suppress(RefusedError):  # its round was skipped, or its size is wrong now
                        self._take(neighbor.waiting.pop(due))

    def finish(self, senders: tuple[int, ...], end: float) -> Inbox:
        """The inbox of the exchange, once each neighbor has been heard or the time is ``end``.

        ``senders`` are the ids of the neighbors.
        """
        with self._changed:
            running = self._running
            assert running is not None, "finish follows begin"
            self._changed.wait_for(lambda: not running.missing, end - time.monotonic())
            self._clear_rows(running, running.missing)
            for name in sorted(running.missing):
                self._use_late(running, self.neighbors[name])
            self._running = None
            missing = [self.neighbors[name] for name in running.missing]
            reasons = {neighbor.row: neighbor.trouble for neighbor in missing}
            for neighbor in self.neighbors.values():
                neighbor.trouble = SILENT
        inbox = inbox_of_one(running.bank, senders)
        if not reasons:
            return inbox
        absent = list(reasons)
        # The memory holds messages of earlier rounds.
        running.bank[absent] = 0.0
        mask = inbox.mask.clone()
        mask[0, absent] = False
        return Inbox(running.bank, inbox.slots, mask, inbox.senders, reasons=reasons)

    def newest_rounds(self) -> list[int]:
        """The latest round that each neighbor has announced, -1 if it was not heard."""
        with self._changed:
            return [neighbor.newest for neighbor in self.neighbors.values()]

    def drain(self, end: float) -> None:
        """Wait until all messages of this peer have arrived, or failed, or the time is ``end``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._on_their_way, end - time.monotonic())

    def _clear_rows(self, running: Exchange, names: Iterable[str]) -> None:
        """Keep messages that are still arriving from writing to the bank any longer."""
        for name in names:
            buffer = self.neighbors[name].arriving.get(running.position)
            if buffer is None or not buffer.is_in_place:
                continue
            if self._max_staleness:
                buffer.leave_row()
            else:
                buffer.discard(self._late(buffer.position))

    def _use_late(self, running: Exchange, neighbor: Neighbor) -> None:
        late = neighbor.late
        if late is None or late.position.exchange != running.position.exchange:
            return
        neighbor.late = None
        if self._age(late.position) > self._max_staleness:
            return
        with suppress(RefusedError):  # the size of models has changed meanwhile
            self._check_size(late.header)
            neighbor.report.stale += 1
            self._fill(running, neighbor, late)

    # Counts for the report

    def count_absences(self, kinds: Mapping[str, str]) -> None:
        """Count the neighbors that were absent from an exchange, with the kind of reason."""
        with self._changed:
            for name, kind in kinds.items():
                self.neighbors[name].report.absent[kind] += 1

    def count_decisions(self, accepted: Iterable[str], rejected: Iterable[str]) -> None:
        """Count the neighbors whose messages the rule accepted, and rejected."""
        with self._changed:
            for name in accepted:
                self.neighbors[name].report.accepted += 1
            for name in rejected:
                self.neighbors[name].report.rejected += 1

    def reports(self) -> tuple[dict[str, NeighborReport], Counter[str]]:
        """Copies of the counts of all neighbors, and of those of strangers."""
        with self._changed:
            reports = {name: deepcopy(of.report) for name, of in self.neighbors.items()}
            return reports, self.strangers.copy()

    # The endpoint of a transport

    def open(self, sender: str | None) -> ArrivingMessage:
        """Begin to receive a message; see `Endpoint.open`."""
        if sender is not None and sender not in self.neighbors:
            raise self.refuse(None, "unknown sender: not a neighbor of this peer")
        with self._changed:
            # Without authentication, all neighbors share their streams.
            most = MOST_STREAMS * (len(self.neighbors) if sender is None else 1)
            streams = self._unnamed if sender is None else self.neighbors[sender].streams
            if streams >= most:
                raise RefusedError("busy: too many streams", busy=True)
            self._count_stream(sender, 1)
        return ArrivingMessage(self, sender)

    def sent(self, neighbor: str, size: int, error: str | None) -> None:
        """Count a message of this peer; see `Endpoint.sent`."""
        with self._changed:
            report = self.neighbors[neighbor].report
            if error is None:
                report.sent += 1
                report.bytes_sent += size
            else:
                report.unsent[kind_of(error)] += 1
            self._on_their_way -= 1
            if not self._on_their_way:
                self._changed.notify_all()

    # Messages that arrive

    def admit(self, sender: str | None, header: Header) -> Buffer:
        """Memory for a message with this header, or RefusedError."""
        self._check_sender(sender, header)
        position = Position(header.round, header.exchange)
        with self._changed:
            neighbor = self.neighbors[header.sender]
            neighbor.newest = max(neighbor.newest, header.round)
            if header.exchange not in self._sizes:
                raise RefusedError("busy: this exchange has not begun", busy=True)
            self._check_size(header)
            if position in neighbor.taken or position in neighbor.waiting:
                raise self.refuse(header.sender, "duplicate: the first message counts")
            if self._is_useless(position):
                raise self.refuse(header.sender, self._late(position))
            self._check_room(neighbor, position)
            # A sender that lost its connection sends again while the first copy still seems to be
            # on its way. The later copy takes the place of the first one.
            if position in neighbor.arriving:
                neighbor.arriving[position].discard(REPLACED)
            if self._running is not None and self._when(position) is When.RUNNING:
                buffer = self._running.buffer_for(header, neighbor.row)
            else:
                buffer = Buffer.for_header(header)
            neighbor.arriving[position] = buffer
            return buffer

    def store(self, buffer: Buffer, chunk: memoryview) -> None:
        """Add the next bytes of a message, or RefusedError."""
        # The lock keeps a message that was discarded meanwhile from writing to the bank.
        with self._changed:
            self._check_wanted(buffer)
            if not buffer.append(chunk):
                raise self.refuse(buffer.sender, TOO_LONG)

    def deliver(self, buffer: Buffer) -> None:
        """Take a complete message, or RefusedError."""
        with self._changed:
            self._check_wanted(buffer)
            if not buffer.is_complete:
                raise self.refuse(buffer.sender, TOO_SHORT)
            self.release(buffer)
            neighbor = self.neighbors[buffer.sender]
            neighbor.report.bytes_received += buffer.header.size
            if self._when(buffer.position) is When.LATER:
                neighbor.waiting[buffer.position] = buffer
            else:
                self._take(buffer)

    def release(self, buffer: Buffer) -> None:
        """Forget a message, if it was not delivered."""
        with self._changed:
            arriving = self.neighbors[buffer.sender].arriving
            if arriving.get(buffer.position) is buffer:
                del arriving[buffer.position]

    def end_stream(self, sender: str | None) -> None:
        """Note that a stream of a message has ended."""
        with self._changed:
            self._count_stream(sender, -1)

    def _count_stream(self, sender: str | None, change: int) -> None:
        if sender is None:
            self._unnamed += change
        else:
            self.neighbors[sender].streams += change

    def refuse(self, sender: str | None, reason: str) -> RefusedError:
        """Note why a message is not taken; return the error to raise."""
        kind = kind_of(reason)
        with self._changed:
            if sender is None:
                self.strangers[kind] += 1
            else:
                self.neighbors[sender].report.refused[kind] += 1
                self.neighbors[sender].trouble = reason
        return RefusedError(reason)

    def _check_wanted(self, buffer: Buffer) -> None:
        if buffer.discarded == REPLACED:
            raise RefusedError(REPLACED)
        if buffer.discarded is not None:
            raise self.refuse(buffer.sender, buffer.discarded)

    def _late(self, position: Position) -> str:
        return f"late: round {position.t} arrived in round {self._position.t}"

    def _when(self, position: Position) -> When:
        if position > self._position:
            return When.LATER
        is_running = position == self._position and self._running is not None
        return When.RUNNING if is_running else When.OVER

    def _age(self, position: Position) -> int:
        return self._position.t - position.t

    def _is_useless(self, position: Position) -> bool:
        """Whether a message comes too late to stand in for a later one."""
        is_fresh = 0 < self._max_staleness >= self._age(position)
        return self._when(position) is When.OVER and not is_fresh

    def _check_sender(self, authenticated: str | None, header: Header) -> None:
        """Raise unless the message names a neighbor, and the one that sent it if that is known."""
        if authenticated is None and header.sender not in self.neighbors:
            raise self.refuse(None, "unknown sender: not a neighbor of this peer")
        if authenticated is not None and header.sender != authenticated:
            raise self.refuse(authenticated, "unauthenticated: the message names another sender")

    def _check_size(self, header: Header) -> None:
        size = self._sizes[header.exchange]
        if header.d != size:
            raise self.refuse(header.sender, f"wrong size: {header.d} values, expected {size}")

    def _check_room(self, neighbor: Neighbor, position: Position) -> None:
        """Raise unless the neighbor has a free buffer for a message at this position."""
        # Messages of the past, the present and the future do not take each other's buffers: a
        # neighbor that is ahead can still send what the others wait for.
        when = self._when(position)
        room = self._stash if when is When.LATER else 1
        held = {x for x in (*neighbor.arriving, *neighbor.waiting) if self._when(x) is when}
        if len(held - {position}) >= room:
            raise RefusedError("busy: too many messages on their way", busy=True)

    def _take(self, buffer: Buffer) -> None:
        """Use a complete message in the exchange that is running, or keep it as a late one."""
        neighbor = self.neighbors[buffer.sender]
        if self._is_useless(buffer.position):
            raise self.refuse(buffer.sender, self._late(buffer.position))
        self._check_size(buffer.header)  # it may have changed since the message was admitted
        if self._running is not None and self._when(buffer.position) is When.RUNNING:
            neighbor.report.seconds_waited += time.monotonic() - self._running.begun
            self._fill(self._running, neighbor, buffer)
        elif neighbor.late is None or neighbor.late.position < buffer.position:
            neighbor.late = buffer

    def _fill(self, running: Exchange, neighbor: Neighbor, buffer: Buffer) -> None:
        if not buffer.is_in_place:
            decode_into(buffer.header, buffer.body, running.bank[neighbor.row])
        # The stream may still be open, and the user may drop the bank.
        buffer.body = memoryview(b"")
        neighbor.taken.add(buffer.position)
        neighbor.report.received += 1
        running.missing.discard(buffer.sender)
        if not running.missing:
            self._changed.notify_all()
