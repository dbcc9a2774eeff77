"""The protocols between a peer and the network that carries its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CHUNK_BYTES = 2 << 20
"""The largest chunk of a message. Smaller chunks cost more calls, larger ones leave the cache."""


class RefusedError(Exception):
    """A peer does not take an incoming message.

    ``reason`` is short and contains no text of the message, so that senders cannot fill logs. If
    ``busy``, the peer may take the same message later, and the sender may try again.
    """

    def __init__(self, reason: str, *, busy: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.busy = busy


class Incoming(Protocol):
    """One message that arrives in chunks.

    The transport passes each chunk to `write` in order, then calls `complete`. Both raise
    `RefusedError` if the peer does not take the message; the transport then stops reading. Whatever
    happens, it calls `close` in the end. The methods never block, and they can be called from any
    one thread at a time.
    """

    def write(self, chunk: bytes) -> None:
        """Add the next bytes of the message."""
        ...

    def complete(self) -> None:
        """Deliver the message, of which all bytes have been written."""
        ...

    def close(self) -> None:
        """Free the memory of the message, if it was not delivered. A second call does nothing."""
        ...


class Endpoint(Protocol):
    """The side of a peer that a transport knows: the place that messages come to. Thread-safe."""

    def open(self, sender: str | None) -> Incoming:
        """Begin to receive a message; raise `RefusedError` if it is not welcome.

        ``sender`` is the authenticated name, or None if the transport does not authenticate and the
        message itself names its sender.
        """
        ...

    def sent(self, neighbor: str, size: int, error: str | None) -> None:
        """Take note that a message of ``size`` bytes was delivered, or why it was not."""
        ...


class Transport(Protocol):
    """Carries messages between a peer and its neighbors.

    A transport decides how bytes travel and who sent them. It knows nothing about models, rounds
    or rules.
    """

    def start(self, endpoint: Endpoint) -> None:
        """Listen, and pass incoming messages to the endpoint until `close`."""
        ...

    def send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
        """Send the chunks as one message, in the background, within ``timeout`` seconds.

        A chunk has at most ``CHUNK_BYTES`` bytes. While the neighbor cannot be reached or is busy,
        the transport tries again. In the end it calls `Endpoint.sent` once. The call itself returns
        at once.
        """
        ...

    def close(self) -> None:
        """Stop listening and sending, within a few seconds. A second call does nothing."""
        ...
