"""A transport between peers of one process."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from threading import Lock, Thread

from equipoise.peers.transport import Endpoint, RefusedError, Transport

FIRST_PAUSE = 0.001  # seconds before a message is sent again
LONGEST_PAUSE = 0.05


class InMemoryNetwork:
    """Carries messages between peers of one process, for tests and rehearsals.

    >>> network = eq.peers.InMemoryNetwork()
    >>> a = eq.Peer("a", ["b"], transport=network.transport("a"))
    >>> b = eq.Peer("b", ["a"], transport=network.transport("b"))
    >>> with a, b:
    ...     print(a.exchange(torch.zeros(2), 0, deadline=0.01).absences)
    {1: 'silent: no message arrived before the deadline'}
    """

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}

    def transport(self, name: str) -> Transport:
        """The transport of the peer with this name."""
        return _InMemoryTransport(name, self._endpoints)


class _InMemoryTransport:
    def __init__(self, name: str, endpoints: dict[str, Endpoint]) -> None:
        self._name = name
        self._endpoints = endpoints
        self._own: Endpoint | None = None
        self._lock = Lock()

    def start(self, endpoint: Endpoint) -> None:
        with self._lock:
            self._own = self._endpoints[self._name] = endpoint

    def send(self, neighbor: str, chunks: Sequence[bytes], timeout: float) -> None:
        end = time.monotonic() + timeout
        Thread(target=self._send, args=(neighbor, chunks, end), daemon=True).start()

    def _send(self, neighbor: str, chunks: Sequence[bytes], end: float) -> None:
        pause = FIRST_PAUSE
        error: str | None = "timed out"
        while time.monotonic() < end and self._own is not None:
            try:
                if self._offer(neighbor, chunks):
                    error = None
                    break
            except RefusedError as refused:
                if not refused.busy:
                    error = f"refused: {refused.reason}"
                    break
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)
        own = self._own
        if own is not None:
            own.sent(neighbor, sum(map(len, chunks)), error)

    def _offer(self, neighbor: str, chunks: Sequence[bytes]) -> bool:
        """Pass the message to the neighbor; return False if it does not listen."""
        endpoint = self._endpoints.get(neighbor)
        if endpoint is None:
            return False
        incoming = endpoint.open(self._name)
        try:
            for chunk in chunks:
                incoming.write(chunk)
            incoming.complete()
        finally:
            incoming.close()
        return True

    def close(self) -> None:
        with self._lock:
            # Another peer of this name may have taken the place.
            if self._endpoints.get(self._name) is self._own:
                self._endpoints.pop(self._name, None)
            self._own = None
