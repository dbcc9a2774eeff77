"""How fast peers exchange models, next to raw sockets in the same pattern.

    python -m benchmarks.peer_speed --parameters 11000000 --neighbors 5

One peer exchanges a message with each of its neighbors, processes of their own, in both directions
at once. Raw sockets and the transport take turns. A receiver keeps the bytes of a message in
memory that it has already: sockets read into it, the transport copies each chunk to it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from equipoise.peers import GrpcTransport
from equipoise.peers.grpc_transport import CHUNK_BYTES

_LIMIT = 120.0  # seconds


class Node(Protocol):
    """One end of the exchange."""

    received: threading.Semaphore
    address: str

    def send(self, addresses: Sequence[str], chunks: Sequence[bytes]) -> None:
        """Send the message to each address, in the background."""
        ...


class SocketNode:
    def __init__(self, size: int) -> None:
        self.size = size
        self.received = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: dict[str, socket.socket] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        memory = memoryview(bytearray(self.size))
        while True:
            position = 0
            while position < self.size:
                count = connection.recv_into(memory[position:])
                if count == 0:
                    return
                position += count
            self.received.release()

    def send(self, addresses: Sequence[str], chunks: Sequence[bytes]) -> None:
        for address in addresses:
            threading.Thread(target=self._send, args=(address, chunks), daemon=True).start()

    def _send(self, address: str, chunks: Sequence[bytes]) -> None:
        if address not in self._connections:
            host, _, port = address.rpartition(":")
            self._connections[address] = socket.create_connection((host, int(port)))
        for chunk in chunks:
            self._connections[address].sendall(chunk)


class CopyingIncoming:
    def __init__(self, node: TransportNode) -> None:
        self._node = node
        self._memory = node.memory.pop() if node.memory else memoryview(bytearray(node.size))
        self._position = 0

    def write(self, chunk: bytes) -> None:
        end = self._position + len(chunk)
        self._memory[self._position : end] = chunk
        self._position = end

    def complete(self) -> None:
        self._node.received.release()

    def close(self) -> None:
        self._node.memory.append(self._memory)


class TransportNode:
    def __init__(self, size: int) -> None:
        self.size = size
        self.received = threading.Semaphore(0)
        self.memory: list[memoryview] = []
        # Neighbors are named by place; their addresses are known later.
        self._neighbors = {str(i): "127.0.0.1:1" for i in range(64)}
        self._known: list[str] = []
        self._transport = GrpcTransport("node", self._neighbors, listen="127.0.0.1:0")
        self._transport.start(self)
        self.address = self._transport.address

    def open(self, sender: str | None) -> CopyingIncoming:
        return CopyingIncoming(self)

    def sent(self, neighbor: str, size: int, error: str | None) -> None:
        if error is not None:
            raise RuntimeError(f"{neighbor}: {error}")

    def send(self, addresses: Sequence[str], chunks: Sequence[bytes]) -> None:
        for address in addresses:
            if address not in self._known:
                self._transport.set_address(str(len(self._known)), address)
                self._known.append(address)
            self._transport.send(str(self._known.index(address)), chunks, _LIMIT)


NODES = {"sockets": SocketNode, "transport": TransportNode}


class Star:
    """One node here, and its neighbors in processes of their own."""

    def __init__(self, kind: str, size: int, neighbors: int) -> None:
        self._chunks = cut(size)
        self._center: Node = NODES[kind](size)
        self._pipes = []
        context = multiprocessing.get_context("spawn")
        for _ in range(neighbors):
            here, there = context.Pipe()
            context.Process(target=serve, args=(kind, size, there), daemon=True).start()
            self._pipes.append(here)
        self._addresses = [pipe.recv() for pipe in self._pipes]
        for pipe in self._pipes:
            pipe.send(self._center.address)

    def exchange(self) -> float:
        """Seconds of one exchange."""
        begin = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(True)
        self._center.send(self._addresses, self._chunks)
        for _ in self._pipes:
            assert self._center.received.acquire(timeout=_LIMIT)
        for pipe in self._pipes:
            pipe.recv()
        return time.perf_counter() - begin

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(False)


def serve(kind: str, size: int, pipe: multiprocessing.connection.Connection) -> None:
    """Be a neighbor until the pipe says False."""
    node: Node = NODES[kind](size)
    pipe.send(node.address)
    center = pipe.recv()
    chunks = cut(size)
    while pipe.recv():
        node.send([center], chunks)
        assert node.received.acquire(timeout=_LIMIT)
        pipe.send(True)


def cut(size: int) -> list[bytes]:
    return [bytes(min(CHUNK_BYTES, size - i)) for i in range(0, size, CHUNK_BYTES)]


def measure(parameters: int, neighbors: int, repeats: int) -> dict[str, float]:
    """The median seconds of an exchange of each kind, and of the ratio of neighboring ones."""
    stars = {kind: Star(kind, 4 * parameters, neighbors) for kind in NODES}
    times: dict[str, list[float]] = {kind: [] for kind in NODES}
    for _ in range(2):  # connections and memory
        for star in stars.values():
            star.exchange()
    for _ in range(repeats):
        for kind, star in stars.items():
            times[kind].append(star.exchange())
    for star in stars.values():
        star.close()
    pairs = zip(times["sockets"], times["transport"], strict=True)
    ratio = statistics.median(sockets / transport for sockets, transport in pairs)
    return {kind: statistics.median(found) for kind, found in times.items()} | {"ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=11_000_000)
    parser.add_argument("--neighbors", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    found = measure(options.parameters, options.neighbors, options.repeats)
    traffic = 2 * options.neighbors * 4 * options.parameters
    for kind in NODES:
        rate = traffic / found[kind] / 1e9
        print(f"{kind:10} {found[kind] * 1e3:8.2f} ms  {rate:6.2f} GB/s")
    print(f"transport / sockets {found['ratio']:.2f}")


if __name__ == "__main__":
    main()
