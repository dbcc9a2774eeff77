"""An endpoint that records, and pairs of transports."""

from __future__ import annotations

import queue
import threading

from equipoise.peers import GrpcTransport, RefusedError


class RecordingIncoming:
    def __init__(self, endpoint, sender):
        self.endpoint = endpoint
        self.sender = sender
        self.parts = []

    def write(self, chunk):
        self.parts.append(chunk)
        self.endpoint.began.set()

    def complete(self):
        self.endpoint.received.put((self.sender, b"".join(self.parts)))

    def close(self):
        self.endpoint.closed.put(self.sender)


class RecordingEndpoint:
    """Takes every message, after it has refused the first ``refusals``."""

    def __init__(self, *refusals):
        self.refusals = list(refusals)
        self.received = queue.Queue()
        self.results = queue.Queue()
        self.closed = queue.Queue()
        self.began = threading.Event()

    def open(self, sender):
        if self.refusals:
            raise self.refusals.pop(0)
        return RecordingIncoming(self, sender)

    def sent(self, neighbor, size, error):
        self.results.put((neighbor, size, error))


def busy():
    return RefusedError("busy", busy=True)


class Pair:
    """Transports a and b on free ports, each with its endpoint."""

    def __init__(self, *refusals, credentials=None, patience=60.0):
        credentials = credentials or {}
        self.at_a = RecordingEndpoint()
        self.at_b = RecordingEndpoint(*refusals)
        self.a = GrpcTransport(
            "a", {"b": "127.0.0.1:1"}, listen="127.0.0.1:0", credentials=credentials.get("a")
        )
        self.b = GrpcTransport(
            "b",
            {"a": "127.0.0.1:1"},
            listen="127.0.0.1:0",
            credentials=credentials.get("b"),
            patience=patience,
        )

    def __enter__(self):
        self.a.start(self.at_a)
        self.b.start(self.at_b)
        self.a.set_address("b", self.b.address)
        self.b.set_address("a", self.a.address)
        return self

    def __exit__(self, *_):
        self.a.close()
        self.b.close()

    def send(self, chunks, timeout=5.0):
        """Send from a to b, and return the error."""
        self.a.send("b", chunks, timeout)
        return self.at_a.results.get(timeout=timeout + 3)[2]
