"""Three ways in which a client exchanges models with its neighbors: sockets, bare gRPC, peers."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
from equipoise.peers import Credentials
from equipoise.peers._background_loop import background_loop
from equipoise.peers._grpc_package import import_grpc

LIMIT = 600.0  # seconds
EXPECTED = "every neighbor must be heard, found absences"

Exchange = Callable[[int], None]
Graph = list[list[int]]


def socket_exchange(i: int, graph: Graph, ports: list[int], d: int) -> Exchange:
    """Exchange models over one connection per pair; the client with the lower number listens."""
    neighbors = graph[i]
    own = torch.full((d,), float(i))
    bank = torch.empty(len(neighbors), d)
    connections: dict[int, socket.socket] = {}
    with socket.create_server(("127.0.0.1", ports[i]), backlog=64) as listener:
        for j in (x for x in neighbors if x < i):
            connections[j] = _connect(ports[j])
            connections[j].sendall(i.to_bytes(2, "little"))
        while len(connections) < len(neighbors):
            connection, _ = listener.accept()
            connections[int.from_bytes(connection.recv(2), "little")] = connection

    def receive(connection: socket.socket, row: torch.Tensor) -> None:
        memory = row.numpy().data.cast("B")
        while memory:
            memory = memory[connection.recv_into(memory) :]

    def exchange(t: int) -> None:
        threads = [
            threading.Thread(target=receive, args=(connections[j], bank[row]))
            for row, j in enumerate(neighbors)
        ]
        threads += [
            threading.Thread(target=connections[j].sendall, args=(own.numpy().data,))
            for j in neighbors
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bank[:, -1].tolist() == neighbors

    return exchange


def _connect(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)


def grpc_exchange(i: int, graph: Graph, ports: list[int], d: int) -> Exchange:
    """Exchange bytes by unary calls of gRPC, without models, checks, deadlines or names."""
    grpc = import_grpc()
    background = background_loop()
    own = bytes(4 * d)
    arrived = asyncio.Semaphore(0)
    calls: list[Any] = []

    async def receive(request: bytes, context: Any) -> bytes:
        arrived.release()
        return b""

    async def start() -> Any:
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(receive)
        handler = grpc.method_handlers_generic_handler("bare", {"Send": method})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"127.0.0.1:{ports[i]}")
        await server.start()
        for j in graph[i]:
            options = [("grpc.enable_http_proxy", 0)]
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports[j]}", options=options)
            calls.append(channel.unary_unary("/bare/Send"))
        return server

    async def talk() -> None:
        sent = [call(own, wait_for_ready=True) for call in calls]
        for _ in calls:
            await arrived.acquire()
        await asyncio.gather(*sent)

    server = background.submit(start()).result()

    def exchange(t: int, server: Any = server) -> None:  # a server that nobody refers to ends
        background.submit(talk()).result()

    return exchange


def peer_exchange(
    i: int, graph: Graph, ports: list[int], d: int, *, folder: str | None = None
) -> Exchange:
    """Exchange models with `Peer.exchange`, over TLS if there is a folder of certificates."""
    own = torch.full((d,), float(i))
    addresses = {name_of(j): f"127.0.0.1:{ports[j]}" for j in graph[i]}
    credentials = None if folder is None else Credentials.load(Path(folder), name_of(i))
    peer = eq.Peer(name_of(i), addresses, listen=f"127.0.0.1:{ports[i]}", credentials=credentials)
    peer.start()

    def exchange(t: int) -> None:
        inbox = peer.exchange(own, t, deadline=LIMIT)
        assert not inbox.absences, (EXPECTED, inbox.absences)
        assert inbox.bank[:, -1].tolist() == graph[i]

    return exchange


def name_of(i: int) -> str:
    return f"peer-{i:03}"
