"""Messages on their way from the network to the mailbox."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from equipoise.messages.wire import HEADER_LIMIT, Header, read_header
from equipoise.peers.transport import RefusedError

REPLACED = "replaced by another copy of the same message"
TOO_SHORT = "malformed: shorter than its header states"
TOO_LONG = "malformed: longer than its header states"


class Position(NamedTuple):
    """An exchange of a round. Positions are ordered as the exchanges follow each other."""

    t: int
    exchange: int = 0


@dataclass(eq=False)
class Buffer:
    """The body of one message of a known sender, of which ``filled`` bytes have arrived.

    If ``is_in_place``, the body is a row of the bank of the exchange that is running.
    """

    header: Header
    body: memoryview
    is_in_place: bool = False
    filled: int = 0
    discarded: str | None = None  # why the message is no longer wanted

    @classmethod
    def for_header(cls, header: Header) -> Buffer:
        """Memory of its own for the message with this header."""
        return cls(header, _new_memory(header.body_size))

    def append(self, chunk: memoryview) -> bool:
        """Add the next bytes; return whether there is room for them."""
        end = self.filled + len(chunk)
        if end > len(self.body):
            return False
        self.body[self.filled : end] = chunk
        self.filled = end
        return True

    def leave_row(self) -> None:
        """Continue in memory of its own, because the bank goes to the user."""
        body = _new_memory(self.header.body_size)
        body[: self.filled] = self.body[: self.filled]
        self.body = body
        self.is_in_place = False

    def discard(self, reason: str) -> None:
        """Free the memory now, while the stream that fills it may still be open."""
        self.discarded = reason
        self.body = memoryview(b"")

    @property
    def sender(self) -> str:
        """The name in the header."""
        return self.header.sender

    @cached_property
    def position(self) -> Position:
        """The exchange that the message is for."""
        return Position(self.header.round, self.header.exchange)

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.filled == len(self.body)


class Mailbox(Protocol):
    """The part of a mailbox that an arriving message needs."""

    def admit(self, sender: str | None, header: Header) -> Buffer:
        """Memory for a message with this header, or RefusedError."""
        ...

    def store(self, buffer: Buffer, chunk: memoryview) -> None:
        """Add the next bytes of a message, or RefusedError."""
        ...

    def deliver(self, buffer: Buffer) -> None:
        """Take a complete message, or RefusedError."""
        ...

    def release(self, buffer: Buffer) -> None:
        """Forget a message, if it was not delivered."""
        ...

    def end_stream(self, sender: str | None) -> None:
        """Note that a stream of a message has ended."""
        ...

    def refuse(self, sender: str | None, reason: str) -> RefusedError:
        """Note why a message is not taken; return the error to raise."""
        ...


class ArrivingMessage:
    """Puts the chunks of one message together; an `Incoming` for transports."""

    def __init__(self, mailbox: Mailbox, sender: str | None) -> None:
        self._mailbox = mailbox
        self._sender = sender
        self._prefix = b""
        self._buffer: Buffer | None = None
        self._is_open = True

    def write(self, chunk: bytes) -> None:
        """Add the next bytes of the message."""
        rest = memoryview(chunk)
        if self._buffer is None:
            rest = self._read_header(rest)
        if self._buffer is not None:
            self._mailbox.store(self._buffer, rest)

    def _read_header(self, chunk: memoryview) -> memoryview:
        """Get a buffer as soon as the header is complete; return the bytes behind the header."""
        known = len(self._prefix)
        # A sender may cut its chunks anywhere. No more than the longest header is kept.
        self._prefix += bytes(chunk[: HEADER_LIMIT - known])
        header = read_header(self._prefix)
        if header is None:
            return chunk[:0]
        if isinstance(header, str):
            raise self._mailbox.refuse(self._sender, header)
        self._buffer = self._mailbox.admit(self._sender, header)
        self._prefix = b""
        return chunk[header.size - header.body_size - known :]

    def complete(self) -> None:
        """Deliver the message, of which all bytes have been written."""
        if self._buffer is None:
            raise self._mailbox.refuse(self._sender, TOO_SHORT)
        self._mailbox.deliver(self._buffer)

    def close(self) -> None:
        """Free the memory of the message, if it was not delivered."""
        if not self._is_open:
            return
        self._is_open = False
        self._mailbox.end_stream(self._sender)
        if self._buffer is not None:
            self._mailbox.release(self._buffer)


def _new_memory(size: int) -> memoryview:
    # Not cleared, as a bytearray would be: the system provides the pages as bytes arrive. A sender
    # that announces a model and sends nothing takes address space only.
    return np.empty(size, dtype=np.uint8).data
