"""Messages on their way from the network to the mailbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from equipoise.messages.wire import HEADER_LIMIT, Header, read_header
from equipoise.peers.transport import RefusedError

REPLACED = "replaced by another copy of the same message"


class Position(NamedTuple):
    """An exchange of a round. Positions are ordered as the exchanges follow each other."""

    t: int
    exchange: int = 0


@dataclass(eq=False)
class Buffer:
    """The body of one message of a known sender, of which ``filled`` bytes have arrived.

    The memory is not cleared, so that the system provides its pages as bytes arrive. A sender that
    announces a model and sends nothing takes address space only.
    """

    sender: str
    header: Header
    body: memoryview
    filled: int = 0
    is_discarded: bool = False

    @classmethod
    def for_header(cls, header: Header) -> Buffer:
        """Memory for the message with this header."""
        memory = np.empty(header.body_size, dtype=np.uint8)  # a bytearray would be cleared
        return cls(header.sender, header, memory.data)

    def discard(self) -> None:
        """Free the memory now, while the stream that fills it may still be open."""
        self.is_discarded = True
        self.body = memoryview(b"")

    @property
    def position(self) -> Position:
        """The exchange that the message is for."""
        return Position(self.header.round, self.header.exchange)

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.filled == len(self.body)


class Mailbox(Protocol):
    """What an arriving message needs of the mailbox."""

    def admit(self, sender: str | None, header: Header) -> Buffer:
        """Memory for a message with this header, or RefusedError."""
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
        buffer = self._buffer
        if buffer is None:
            return
        if buffer.is_discarded:
            raise RefusedError(REPLACED)
        end = buffer.filled + len(rest)
        if end > len(buffer.body):
            raise self._mailbox.refuse(buffer.sender, "malformed: longer than its header states")
        buffer.body[buffer.filled : end] = rest
        buffer.filled = end

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
        buffer = self._buffer
        if buffer is not None and buffer.is_discarded:
            raise RefusedError(REPLACED)
        if buffer is None or not buffer.is_complete:
            sender = self._sender if buffer is None else buffer.sender
            raise self._mailbox.refuse(sender, "malformed: shorter than its header states")
        self._mailbox.deliver(buffer)

    def close(self) -> None:
        """Free the memory of the message, if it was not delivered."""
        if not self._is_open:
            return
        self._is_open = False
        self._mailbox.end_stream(self._sender)
        if self._buffer is not None:
            self._mailbox.release(self._buffer)
